"""One stage's parameters, moved on by prediction; and back, where the prediction was wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.errors import ConfigError
from freewheel.monitors import monitors
from freewheel.monitors.backtest import Backtest
from freewheel.predictors import History, Predictor, predictors
from freewheel.protocols.checks import at_least

#: The name in ``[predictor]`` that stands for choosing one per tensor by backtest.
BACKTEST = "backtest"


class Coasting:
    """Watches a module's trainable parameters and predicts them.

    Buffers (BatchNorm's statistics) are never predicted, and the optimizer's state is left as it
    is. A module without trainable parameters has nothing to predict, and jumps are nothing. After
    a jump, or on the way back from one, what was seen is forgotten: a jump is no training.

    Memory, in copies of the parameters: those of the predictor, ``history`` and, from a jump to
    the next real step, one more.

    Args:
        module: one stage.
        name: a predictor, or ``"backtest"`` to choose one per tensor from the recent past.
        settings: the predictor's; and ``every``: show it only each so many real steps (1);
            ``history``: snapshots that are kept for the report (3, spread over a round), 0 for
            none. For ``backtest``, which predicts from the history, ``max_copies`` of it (12), one
            each ``every`` steps.
        real: real steps between two jumps; the backtest looks once in so many.
        log: writes an event of the run: before each jump what the history says (``"history"``),
            and the backtest's ``"verdict"``.

    Raises:
        ConfigError: no such predictor or setting, or a number out of range.
    """

    def __init__(
        self,
        module: nn.Module,
        name: str,
        settings: Mapping[str, Any],
        real: int,
        log: Callable[[str, Mapping[str, Any]], None] = lambda *_: None,
    ) -> None:
        self._module = module
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._sizes = [p.numel() for p in self._parameters]
        settings = dict(settings)
        self._every, self._real, self._log = _whole(settings, "every", 1, 1), real, log
        self.backtest: Backtest | None = None
        self._predictor: Predictor
        if name == BACKTEST:
            copies, self._snapshot_every = _whole(settings, "max_copies", 12, 1), self._every
            self.backtest = _backtest(settings)
            self._predictor = predictors.create("static")
        else:
            copies = _whole(settings, "history", 3, 0)
            self._snapshot_every = max(1, real // max(1, copies))
            self._predictor = predictors.create(name, settings)
        self._snapshots = copies > 0
        self.history = History(max_copies=max(1, copies))
        self._since_jump = 0
        self._before: tuple[Tensor, list[Tensor]] | None = None

    def observe(self, clock: int, loss: float | None) -> dict[str, float]:
        """Take note of the parameters after a real step; return evidence for the protocol.

        Args:
            clock: local steps finished.
            loss: of the step, where this stage knows it.

        Raises:
            NonFiniteError: a parameter is NaN or infinite.
        """
        self._before = None
        self._since_jump += 1
        if not self._parameters:
            return {}
        turn = self._since_jump
        kept = self._snapshots and turn % self._snapshot_every == 0
        shown = self.backtest is None and (turn % self._every == 0 or turn == 1)
        state = self._flat() if kept or shown else None
        if shown and state is not None:
            self._predictor.observe(clock, state)
        self.history.observe(clock, state if kept else None, loss)
        # a proposal needs one more step to reach the last stage before it decides
        if self.backtest is None or turn != max(1, self._real - 1):
            return {}
        evidence = {"history": self.history, "sizes": self._sizes}
        verdict = self.backtest.observe(clock, evidence).log()
        self._log("verdict", {"step": clock, "monitor": verdict.pop("name"), **verdict})
        return {"trusted_horizon": float(self.backtest.horizon)}

    @torch.no_grad()
    def jump(self, steps: int) -> None:
        """Replace the parameters by those predicted ``steps`` steps ahead."""
        if not self._parameters:
            return
        now = self._flat()
        self._before = (now, [buffer.clone() for buffer in self._module.buffers()])
        predictor = self._predictor
        if self.backtest is not None:
            predictor = self.backtest.build(self._sizes)
            self.history.feed(predictor)
        predicted = predictor.predict(steps)
        self._log("history", self._told(now, predicted, steps))
        self._write(predicted)
        self._forget()

    def _told(self, now: Tensor, predicted: Tensor, steps: int) -> dict[str, Any]:
        """Return what is known before a jump: of the round that ends, and of the jump."""
        summary = {key: value for key, value in self.history.summary().items() if value is not None}
        return {
            **summary,
            "step": summary["last_clock"],
            "steps": steps,
            "state_norm": float(torch.linalg.vector_norm(now)),
            "jump_norm": float(torch.linalg.vector_norm(predicted - now)),
        }

    @torch.no_grad()
    def roll_back(self) -> None:
        """Return to the parameters and buffers before the last jump."""
        if self._before is None:
            return
        flat, buffers = self._before
        self._write(flat)
        for buffer, value in zip(self._module.buffers(), buffers, strict=True):
            buffer.copy_(value)
        self._before = None
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """Return what is remembered, for a checkpoint."""
        return {
            "since_jump": self._since_jump,
            "predictor": self._predictor.state_dict(),
            "history": self.history.state_dict(),
            "backtest": None if self.backtest is None else self.backtest.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        self._since_jump = int(state["since_jump"])
        self._predictor.load_state_dict(state["predictor"])
        self.history.load_state_dict(state["history"])
        if self.backtest is not None:
            self.backtest.load_state_dict(state["backtest"])

    def _forget(self) -> None:
        self._since_jump = 0
        self._predictor.reset()
        self.history.reset()

    def _flat(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self._parameters])

    def _write(self, flat: Tensor) -> None:
        for parameter, part in zip(self._parameters, torch.split(flat, self._sizes), strict=True):
            parameter.copy_(part.view_as(parameter))


def _whole(settings: dict[str, Any], key: str, default: int, least: int) -> int:
    """Take a whole number out of the settings."""
    value = settings.pop(key, default)
    try:
        at_least(f"predictor.{key}", value, least)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return int(value)


def _backtest(settings: Mapping[str, Any]) -> Backtest:
    """Make the backtest; its settings are checked as those of any monitor."""
    made = monitors.create(BACKTEST, settings)
    if not isinstance(made, Backtest):
        raise ConfigError(
            f"predictor {BACKTEST!r} needs the monitor of that name that comes with freewheel, "
            f"and {type(made).__name__} is registered in its place"
        )
    return made
