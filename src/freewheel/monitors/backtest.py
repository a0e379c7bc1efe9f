"""Backtest: predict the recent past from the older past, and choose by the error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from freewheel.monitors.base import Evidence, Verdict, Word, fields_of, monitors, next_clock
from freewheel.predictors.base import Predictor, predictors
from freewheel.predictors.history import History
from freewheel.predictors.per_tensor import PerTensor, per_tensor

#: A predictor's name, or its name and settings: ``{"name": "velocity", "estimate": "ewma"}``.
Candidate = str | Mapping[str, Any]

STATIC = "static"


def make_candidate(candidate: Candidate) -> Predictor:
    """Make a fresh predictor from its name, or from a table of its name and settings.

    Raises:
        ConfigError: there is none of that name, or it refuses a setting.
        ValueError: a table has no name.

    Example:
        >>> from freewheel.monitors.backtest import make_candidate
        >>> make_candidate({"name": "average", "window": 3}).copies
        3.0
    """
    if isinstance(candidate, str):
        return predictors.create(candidate)
    settings = dict(candidate)
    if "name" not in settings:
        raise ValueError(f"each candidate needs a name, got {settings}")
    return predictors.create(settings.pop("name"), settings)


@monitors.register("backtest")
class Backtest:
    r"""Chooses a predictor for each tensor, and one horizon, by how they would have done lately.

    Each candidate is shown the snapshots of a history one by one, and after each predicts those
    that follow. For tensor p and horizon h, over all pairs of snapshots h steps apart,

    .. math:: e_p(h)^2 = \frac{\sum \|\hat x_p(t + h) - x_p(t + h)\|^2}
                              {\sum \|x_p(t) - x_p(t + h)\|^2}

    so that ``static`` has e = 1. At each horizon every tensor gets the candidate with the least
    error, or ``static`` if none is at or below ``1 - margin``. The horizon chosen is the longest at
    which the stage as a whole, each tensor with its choice, is at or below ``1 - margin``; the
    verdict then is ``trust``. If there is none it is ``doubt``, the horizon 0 and every choice
    ``static``. While no horizon has ``min_pairs`` pairs it is ``unsure``, likewise. An error that
    is not finite counts as infinite.

    Evidence: ``history``, a ``History``; and ``sizes``, the number of values of each tensor (the
    whole vector as one tensor where absent). Without a history it answers as before. It holds no
    copies; while it works, those of one candidate and two more.

    Args:
        candidates: predictors to try, by name or as tables of a name and settings; ``static`` is
            always among them.
        horizons: in steps, each >= 1; None for every distance between snapshots of the history.
        margin: how much better than ``static`` a choice must be, in [0, 1).
        min_pairs: pairs of snapshots without which a horizon is not judged, >= 1.

    Raises:
        ValueError: a setting is out of range.
        ConfigError: a candidate is unknown or refuses its settings.

    Example:
        >>> import torch
        >>> from freewheel.monitors.backtest import Backtest
        >>> from freewheel.predictors import History
        >>> history = History(max_copies=6)
        >>> for clock in range(6):  # a line, and a constant
        ...     history.observe(clock, torch.tensor([float(clock), 1.0]))
        >>> backtest = Backtest(["velocity"], horizons=[1, 2])
        >>> backtest.observe(5, {"history": history, "sizes": [1, 1]}).verdict
        'trust'
        >>> backtest.horizon, backtest.choice
        (2, ('velocity', 'static'))
    """

    name = "backtest"
    needs = ("history", "sizes")

    def __init__(
        self,
        candidates: Sequence[Candidate] = ("velocity", "regression", "average"),
        horizons: Sequence[int] | None = None,
        margin: float = 0.1,
        min_pairs: int = 2,
    ) -> None:
        if isinstance(candidates, str):
            raise ValueError(f"candidates must be a list, got {candidates!r}")
        if horizons is not None and (not horizons or any(h < 1 for h in horizons)):
            raise ValueError(f"horizons must be >= 1 step each, at least one, got {horizons}")
        if not 0.0 <= margin < 1.0:
            raise ValueError(f"margin must lie in [0, 1), got {margin}")
        if min_pairs < 1:
            raise ValueError(f"min_pairs must be >= 1, got {min_pairs}")
        self.candidates: dict[str, Candidate] = {STATIC: STATIC}
        for candidate in candidates:
            make_candidate(candidate)  # refuses a wrong one now rather than in the run
            label = candidate if isinstance(candidate, str) else str(candidate["name"])
            if label == STATIC:
                continue
            same = sum(known.split("#")[0] == label for known in self.candidates)
            self.candidates[f"{label}#{same + 1}" if same else label] = candidate
        self.horizons = None if horizons is None else tuple(horizons)
        self.threshold, self.min_pairs = 1.0 - margin, min_pairs
        self.reset()

    def reset(self) -> None:
        """Forget the choice."""
        self._clock: int | None = None
        self.horizon = 0
        self.choice: tuple[str, ...] = ()
        self._last: tuple[Word, float | None, dict[str, Any]] = ("unsure", None, {})

    def observe(self, clock: int, evidence: Evidence) -> Verdict:
        """Test the candidates on a history and choose; see ``Monitor.observe``."""
        self._clock = next_clock(self.name, clock, self._clock)
        history = evidence.get("history")
        if isinstance(history, History):
            total = history.states[-1].numel() if history.states else 0
            self._last = self._choose(history, list(evidence.get("sizes") or [total]))
        word, statistic, detail = self._last
        return Verdict(self.name, word, statistic, self.threshold, detail)

    def build(self, sizes: Sequence[int]) -> Predictor:
        """Return a fresh predictor made of the choice, ``static`` where there is none yet.

        Args:
            sizes: values of each tensor, as they were given as evidence.
        """
        choice = self.choice or (STATIC,) * len(sizes)
        return PerTensor(sizes, [make_candidate(self.candidates[label]) for label in choice])

    def _choose(
        self, history: History, sizes: list[int]
    ) -> tuple[Word, float | None, dict[str, Any]]:
        pairs = self._pairs(history.clocks)
        self.horizon, self.choice = 0, (STATIC,) * len(sizes)
        still = self._still(history, sizes, pairs)
        judged = [h for h in sorted(pairs) if float(still[h].sum()) > 0.0]
        if not judged:
            return "unsure", None, {"horizon": 0, "num_horizons": len(pairs)}
        errors = {
            label: self._errors(candidate, history, sizes, pairs)
            for label, candidate in self.candidates.items()
            if label != STATIC
        }
        by_horizon: dict[int, float] = {}
        for horizon in judged:
            choice, ratio = self._pick(horizon, still[horizon], errors)
            by_horizon[horizon] = ratio
            if ratio <= self.threshold:
                self.horizon, self.choice = horizon, choice
        trusted = self.horizon > 0
        # Without a horizon to trust, the log shows how near the best one came.
        statistic = by_horizon[self.horizon] if trusted else min(by_horizon.values())
        detail = {
            "horizon": self.horizon,
            "num_horizons": len(judged),
            "choice": {label: self.choice.count(label) for label in dict.fromkeys(self.choice)},
        }
        return ("trust" if trusted else "doubt"), statistic, detail

    def _pairs(self, clocks: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
        """Return, by horizon, the pairs of snapshots that lie that far apart."""
        pairs: dict[int, list[tuple[int, int]]] = {}
        for later, clock in enumerate(clocks):
            for earlier in range(1, later):  # the oldest alone gives nothing to extrapolate
                pairs.setdefault(clock - clocks[earlier], []).append((earlier, later))
        return {
            horizon: found
            for horizon, found in pairs.items()
            if len(found) >= self.min_pairs and (self.horizons is None or horizon in self.horizons)
        }

    def _still(
        self, history: History, sizes: list[int], pairs: dict[int, list[tuple[int, int]]]
    ) -> dict[int, Tensor]:
        """Return the squared error of standing still: for each horizon [tensors], float64."""
        states = history.states
        return {
            horizon: _sum(_squares(states[i] - states[j], sizes) for i, j in found)
            for horizon, found in pairs.items()
        }

    def _errors(
        self,
        candidate: Candidate,
        history: History,
        sizes: list[int],
        pairs: dict[int, list[tuple[int, int]]],
    ) -> dict[int, Tensor]:
        """Return the squared error of one candidate: for each horizon [tensors], float64."""
        predictor, states = make_candidate(candidate), history.states
        errors = {h: torch.zeros(len(sizes), dtype=torch.float64) for h in pairs}
        for index, (clock, state) in enumerate(zip(history.clocks, states, strict=True)):
            predictor.observe(clock, state)
            for horizon, found in pairs.items():
                for earlier, later in found:
                    if earlier == index:
                        missed = predictor.predict(horizon) - states[later]
                        errors[horizon] += _squares(missed, sizes)
        return errors

    def _pick(
        self, horizon: int, still: Tensor, errors: Mapping[str, Mapping[int, Tensor]]
    ) -> tuple[tuple[str, ...], float]:
        """Return each tensor's choice at a horizon, and the error of the stage with them."""
        chosen, best = [STATIC] * len(still), still.clone()
        for label, by_horizon in errors.items():
            for tensor, error in enumerate(by_horizon[horizon].tolist()):
                bound = min(float(best[tensor]), self.threshold**2 * float(still[tensor]))
                # Strictly below: a tensor that never moves has no error to better.
                if math.isfinite(error) and error < float(best[tensor]) and error <= bound:
                    chosen[tensor], best[tensor] = label, error
        return tuple(chosen), math.sqrt(float(best.sum()) / float(still.sum()))

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON values for a checkpoint."""
        word, statistic, detail = self._last
        return {
            "clock": self._clock,
            "horizon": self.horizon,
            "choice": list(self.choice),
            "verdict": word,
            "statistic": statistic,
            "detail": detail,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave, from a backtest of the same candidates."""
        clock, horizon, choice, word, statistic, detail = fields_of(
            self.name, state, "clock", "horizon", "choice", "verdict", "statistic", "detail"
        )
        self._clock, self.horizon, self.choice = clock, int(horizon), tuple(choice)
        self._last = (word, statistic, dict(detail))


def _squares(difference: Tensor, sizes: list[int]) -> Tensor:
    """Return the squared norm of each tensor's piece: [tensors], float64, on the CPU."""
    norms = [torch.linalg.vector_norm(part) for part in per_tensor(difference, sizes)]
    return torch.stack(norms).double().square().cpu()


def _sum(parts: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(dim=0)
