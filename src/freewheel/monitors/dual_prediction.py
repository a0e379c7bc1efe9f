r"""Dual prediction: a worker and a server that run the same predictors over what has crossed.

Each end of a pair makes a ``DualPrediction`` with the same settings and tells it the same facts in
the same order, so that both hold the same numbers without a message. Two things are predicted:

- the worker's **change**: the sum of what was folded of it, :math:`s(t)`, seen at each push, goes
  on as the predictor says; :math:`p = \hat s(t) - s` is folded when the worker only asks;
- the server's **state**: what the worker was last told, plus its own folded changes since, plus
  the predicted move of the others, whose state is the server's less the worker's own share.

``WorkerEnd`` and ``ServerEnd`` turn that into what is sent. With several servers there is a pair of
ends for each part of the parameters.

References:
    Jain, Chang, Wang, "Adaptive stream resource management using Kalman filters", 2004.
    Cormode, Garofalakis, "Approximate continuous querying over distributed streams", 2008.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from freewheel.errors import ConfigError
from freewheel.monitors.deviation import Deviation
from freewheel.predictors import Predictor, predictors


def read_spec(spec: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return name and settings of a predictor.

    Raises:
        ConfigError: a table without a name.

    Example:
        >>> from freewheel.monitors.dual_prediction import read_spec
        >>> read_spec({"name": "velocity", "window": 4})
        ('velocity', {'window': 4})
    """
    settings = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(
            f'a predictor needs a name, got {spec!r}; write for example {{ name = "velocity", '
            "window = 4 }"
        )
    return name, settings


class DualPrediction:
    """What both ends hold of one worker and one part of the parameters.

    Memory, in copies of the part: 1 with ``static``; else 3 and those of two predictors.

    Args:
        predictor: by name, or a table of its name and settings.

    Example:
        >>> import torch
        >>> from freewheel.monitors.dual_prediction import DualPrediction
        >>> both = DualPrediction("static")
        >>> both.told(0, torch.tensor([1.0]))
        >>> both.folded(3, torch.tensor([2.0]), weight=0.5)
        tensor([2.])
        >>> both.known(9)
        tensor([2.])
    """

    def __init__(self, predictor: str | Mapping[str, Any]) -> None:
        name, settings = read_spec(predictor)
        self.moves = name != "static"
        self._change: Predictor = predictors.create(name, settings)
        self._others: Predictor = predictors.create(name, settings)
        self._change_clock = 0
        self._told_clock: int | None = None
        self._known: Tensor | None = None
        self._folded: Tensor | None = None
        self._share: Tensor | None = None

    def expected(self, clock: int) -> Tensor | None:
        """Return the change [P] that is predicted beyond what was folded; None where it is none."""
        if not self.moves or self._folded is None:
            return None
        return self._change.predict(clock - self._change_clock).sub_(self._folded)

    def folded(self, clock: int, sent: Tensor | None, weight: float) -> Tensor | None:
        """Take note that a fold, at ``weight``, took in the worker's change.

        Args:
            clock: of the worker, when it pushed or asked.
            sent: what was sent beyond the expected change, as it arrived, [P]; None: nothing.
            weight: of the fold.

        Returns:
            The whole change [P], a new tensor, or None where it is none.
        """
        change = self.expected(clock)
        if sent is not None:
            change = sent.clone() if change is None else change.add_(sent)
        if change is None:
            return None
        if self._known is not None:
            self._known.add_(change, alpha=weight)
        if self.moves:
            if self._folded is None or self._share is None:
                self._folded, self._share = torch.zeros_like(change), torch.zeros_like(change)
            self._folded.add_(change)
            self._share.add_(change, alpha=weight)
            if sent is not None:
                self._change.observe(clock, self._folded)
                self._change_clock = clock
        return change

    def known(self, clock: int) -> Tensor | None:
        """Return what the worker predicts of the server's state, new, or None before any."""
        if self._known is None:
            return None
        if not self.moves or self._told_clock is None:
            return self._known.clone()
        still = self._others.predict(0)
        return self._others.predict(clock - self._told_clock).sub_(still).add_(self._known)

    def corrected(self, clock: int, correction: Tensor) -> Tensor:
        """Return what the worker predicts of the server's state with a correction [P] to it."""
        known = self.known(clock)
        return correction if known is None else known.add_(correction)

    def told(self, clock: int, state: Tensor) -> None:
        """Take note that the server's state [P] was sent, as it arrived; it is copied."""
        self._known = state.clone()
        if not self.moves:
            return
        if self._told_clock is not None and clock <= self._told_clock:
            self._others.reset()
        self._others.observe(clock, state if self._share is None else state - self._share)
        self._told_clock = clock


class WorkerEnd:
    """The worker's end: its own parameters are what it knows of the server plus what it holds back.

    Args:
        predictor: by name, or a table of its name and settings.
        own: the part of its parameters [P] at the start, which the server's end takes them for,
            too; kept, not copied.

    Example:
        >>> import torch
        >>> from freewheel.monitors.dual_prediction import WorkerEnd
        >>> end = WorkerEnd("static", torch.tensor([1.0]))
        >>> end.stepped(torch.tensor([3.0]), clock=4)
        (4.0, 4.0, 9.0)
        >>> end.sent = end.ask()
        >>> end.sent, end.answered(weight=0.5, told=torch.tensor([1.5]))
        (tensor([2.]), tensor([1.5000]))
    """

    def __init__(self, predictor: str | Mapping[str, Any], own: Tensor) -> None:
        self.both = DualPrediction(predictor)
        self.both.told(0, own)
        self._base, self._own, self._clock = own, own, 0
        #: What the last request carried beyond the expected change, as it arrives; None: nothing.
        self.sent: Tensor | None = None

    def stepped(self, own: Tensor, clock: int) -> tuple[float, float, float]:
        """Take note of a step; return squared norms.

        Args:
            own: the worker's parameters now, [P]; kept, not copied.
            clock: steps finished.

        Returns:
            Those of the change beyond what is expected, of the whole change, and of ``own``.
        """
        self._own, self._clock = own, clock
        change = own - self._base
        move, expected = float(change @ change), self.both.expected(clock)
        error = change if expected is None else change.sub_(expected)
        return float(error @ error), move, float(own @ own)

    def ask(self) -> Tensor:
        """Begin a request; return what a push carries: the change beyond what is expected, [P]."""
        self.sent = None
        change, expected = self._own - self._base, self.both.expected(self._clock)
        return change if expected is None else change.sub_(expected)

    def answered(
        self, weight: float | None, told: Tensor | None, correction: bool = False
    ) -> Tensor | None:
        """Take an answer in; return the worker's new parameters, or None where they stay.

        Args:
            weight: with which the change was folded; None: it was not, and is still held back.
            told: the server's state, as it arrived; None: what is predicted of it stands.
            correction: ``told`` is to be added to what is predicted.
        """
        held, clock = None, self._clock
        if weight is None:
            held = self._own - self._base
        else:
            change = self.both.folded(clock, self.sent, weight)
            if self.sent is None:
                held = self._own - self._base
                if change is not None:
                    held.sub_(change)
        if told is not None:
            told = self.both.corrected(clock, told) if correction else told
            self.both.told(clock, told)
        elif weight is None and not self.both.moves:
            return None
        state = told if told is not None else self.both.known(clock)
        assert state is not None  # it knows what it began with
        self._base = state
        self._own = state if held is None else state + held
        return self._own


class ServerEnd:
    """The server's end, for one worker.

    Args:
        predictor: by name, or a table of its name and settings.
        tolerance: of ``Deviation``, relative to the state; 0: always tell.
        state: what the worker begins with, [P]; None: that is not known here.

    Example:
        >>> import torch
        >>> from freewheel.monitors.dual_prediction import ServerEnd
        >>> state = torch.tensor([2.0])
        >>> end = ServerEnd("static", 0.1, state)
        >>> end.holds(2, state + 0.1), end.holds(3, state + 0.3)
        (True, False)
    """

    def __init__(
        self, predictor: str | Mapping[str, Any], tolerance: float, state: Tensor | None = None
    ) -> None:
        self.both = DualPrediction(predictor)
        if state is not None:
            self.both.told(0, state)
        self._monitor = Deviation(tolerance, "state") if tolerance else None
        self._num_asked = 0
        #: With which weight the worker's last push was folded, until that is told.
        self.weight: float | None = None

    def fold(self, clock: int, sent: Tensor | None, weight: float) -> Tensor | None:
        """Take note of a fold, see ``DualPrediction.folded``; return the whole change."""
        self.weight = weight
        return self.both.folded(clock, sent, weight)

    def take_weight(self) -> float | None:
        """Return the weight of the last fold, if it was not told yet."""
        weight, self.weight = self.weight, None
        return weight

    def holds(self, clock: int, state: Tensor) -> bool:
        """Whether what the worker predicts of the state [P] is close enough.

        Args:
            clock: of the worker that asks.
            state: the server's own.
        """
        known = self.both.known(clock)
        if self._monitor is None or known is None:
            return False
        self._num_asked += 1
        error, size = torch._foreach_norm([known.sub_(state), state])
        evidence = {"error_norm": float(error), "state_norm": float(size)}
        return self._monitor.observe(self._num_asked, evidence).verdict == "trust"
