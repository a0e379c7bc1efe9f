"""A guard over jumps: one stands only if the next real loss stays within bounds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from freewheel.monitors.base import Evidence, Verdict, Word, fields_of, monitors, next_clock, number


@monitors.register("loss_guard")
class LossGuard:
    r"""Judges a jump by the first real loss after it, and sets the length of the next one.

    With m and s the mean and standard deviation of the last ``window`` accepted losses, the loss L
    after a jump must obey each bound that is set:

    .. math:: L \le m \cdot \text{factor} \qquad L \le m + \text{sigmas} \cdot s

    ``trust``: the jump stands, L joins the losses, and after ``patience`` jumps that stood in a
    row ``horizon`` doubles, up to ``max_horizon``. ``doubt``: roll back; L is forgotten and
    ``horizon`` is halved, down to ``min_horizon``. A loss that is NaN or infinite after a jump is
    in doubt. Between jumps the loss of each real step is only taken note of, and the verdict is
    ``trust``; one that is NaN or infinite is counted, and answered with ``doubt``.

    ``horizon`` is 0 until ``min_losses`` losses are known: there is nothing to judge a jump by,
    and one made all the same is in doubt. It also is 0 after a doubt at ``min_horizon``, for the
    next ``rest`` losses: where even the shortest jump fails, coasting pauses.

    Evidence: ``loss``, and ``jumped``: above 0 on the first real step after a jump.

    Args:
        factor: largest loss as a multiple of the mean, >= 1, for losses above 0; None for none.
        sigmas: largest loss in standard deviations above the mean, >= 0; None for none.
        window: losses remembered, >= 2.
        min_losses: losses without which no jump is judged, in [2, window].
        horizon: first horizon, in steps, >= ``min_horizon``.
        min_horizon: shortest, >= 1.
        max_horizon: longest, >= ``horizon``.
        patience: jumps in a row that must stand before the horizon grows, >= 1.
        rest: losses to wait for after a doubt at the shortest horizon, >= 0.

    Raises:
        ValueError: a setting is out of range, or neither bound is set.

    Example:
        >>> from freewheel.monitors.loss_guard import LossGuard
        >>> guard = LossGuard(factor=1.1, sigmas=None, min_losses=2, horizon=8)
        >>> for clock in (1, 2):
        ...     _ = guard.observe(clock, {"loss": 1.0})
        >>> guard.observe(10, {"loss": 1.05, "jumped": 1}).verdict, guard.horizon
        ('trust', 16)
        >>> guard.observe(26, {"loss": 1.5, "jumped": 1}).verdict, guard.horizon
        ('doubt', 8)
    """

    name = "loss_guard"
    needs = ("loss", "jumped")

    def __init__(
        self,
        factor: float | None = None,
        sigmas: float | None = 2.0,
        window: int = 40,
        min_losses: int = 5,
        horizon: int = 8,
        min_horizon: int = 1,
        max_horizon: int = 256,
        patience: int = 1,
        rest: int = 0,
    ) -> None:
        if factor is None and sigmas is None:
            raise ValueError("set factor, sigmas, or both: without a bound every jump would stand")
        if factor is not None and not factor >= 1.0:
            raise ValueError(f"factor must be >= 1, got {factor}")
        if sigmas is not None and not sigmas >= 0.0:
            raise ValueError(f"sigmas must be >= 0, got {sigmas}")
        if not 2 <= min_losses <= window:
            raise ValueError(f"min_losses must lie in [2, window = {window}], got {min_losses}")
        if not 1 <= min_horizon <= horizon <= max_horizon:
            raise ValueError(
                "1 <= min_horizon <= horizon <= max_horizon must hold, got "
                f"{min_horizon}, {horizon}, {max_horizon}"
            )
        if patience < 1 or rest < 0:
            raise ValueError(f"patience must be >= 1 and rest >= 0, got {patience} and {rest}")
        self.factor, self.sigmas, self.window, self.min_losses = factor, sigmas, window, min_losses
        self.first_horizon, self.min_horizon, self.max_horizon = horizon, min_horizon, max_horizon
        self.patience, self.rest = patience, rest
        self.reset()

    def reset(self) -> None:
        """Forget every loss and start from the first horizon."""
        self._losses: deque[float] = deque(maxlen=self.window)
        self._horizon = self.first_horizon
        self._clock: int | None = None
        self._stood_in_a_row = self._resting = 0
        self.num_stood = self.num_rolled_back = self.num_non_finite = 0

    @property
    def horizon(self) -> int:
        """Steps that the next jump may span; 0 where there should be none."""
        known = len(self._losses) >= self.min_losses
        return self._horizon if known and self._resting == 0 else 0

    @property
    def bound(self) -> float:
        """Largest loss with which a jump stands now; infinite while too few losses are known."""
        if len(self._losses) < self.min_losses:
            return math.inf
        mean = sum(self._losses) / len(self._losses)
        bounds = []
        if self.factor is not None:
            bounds.append(mean * self.factor)
        if self.sigmas is not None:
            square = sum((loss - mean) ** 2 for loss in self._losses) / (len(self._losses) - 1)
            bounds.append(mean + self.sigmas * math.sqrt(square))
        return min(bounds)

    def observe(self, clock: int, evidence: Evidence) -> Verdict:
        """Take note of a real step and judge; see ``Monitor.observe``.

        After a doubt the clock may go back, as training does.
        """
        self._clock = next_clock(self.name, clock, self._clock)
        bound, loss = self.bound, number(evidence, "loss")
        jumped = (number(evidence, "jumped") or 0.0) > 0.0
        if evidence.get("loss") is None:
            return self._verdict("unsure", None, bound, jumped)
        if loss is None:
            self.num_non_finite += 1
            stands = False
        else:
            stands = not jumped or (len(self._losses) >= self.min_losses and loss <= bound)
        if loss is not None and stands:
            self._losses.append(loss)
            self._resting = max(0, self._resting - 1)
        if jumped:
            self._learn(stands)
        if not stands:
            self._clock = None  # training goes back to an earlier clock
        return self._verdict("trust" if stands else "doubt", loss, bound, jumped)

    def _learn(self, stood: bool) -> None:
        """Lengthen or shorten the next jump."""
        if stood:
            self.num_stood += 1
            self._stood_in_a_row += 1
            if self._stood_in_a_row >= self.patience:
                self._horizon = min(2 * self._horizon, self.max_horizon)
                self._stood_in_a_row = 0
            return
        self.num_rolled_back += 1
        self._stood_in_a_row = 0
        if self._horizon == self.min_horizon:
            self._resting = self.rest
        self._horizon = max(self._horizon // 2, self.min_horizon)

    def _verdict(self, word: Word, loss: float | None, bound: float, jumped: bool) -> Verdict:
        detail = {
            "jumped": jumped,
            "horizon": self.horizon,
            "num_stood": self.num_stood,
            "num_rolled_back": self.num_rolled_back,
            "num_non_finite": self.num_non_finite,
        }
        return Verdict(self.name, word, loss, bound, detail)

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON values for a checkpoint."""
        return {
            "losses": list(self._losses),
            "horizon": self._horizon,
            "clock": self._clock,
            "stood_in_a_row": self._stood_in_a_row,
            "resting": self._resting,
            "num_stood": self.num_stood,
            "num_rolled_back": self.num_rolled_back,
            "num_non_finite": self.num_non_finite,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave."""
        losses, *rest = fields_of(self.name, state, "losses", *list(self.state_dict())[1:])
        self.reset()
        self._losses.extend(float(loss) for loss in losses)
        (
            self._horizon,
            self._clock,
            self._stood_in_a_row,
            self._resting,
            self.num_stood,
            self.num_rolled_back,
            self.num_non_finite,
        ) = rest
