"""What is trained, how the rounds lie at each ratio of bytes, and the predictors that are tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Table = Mapping[str, Any]
Sections = dict[str, dict[str, Any]]

STATIC: Table = {"name": "static"}
#: Jumps are much longer than rounds, so what counts is not to believe noise: long windows, low
#: rank, and in half of them a cap.
PREDICTORS: dict[str, Table] = {
    "velocity, window": {"name": "velocity", "estimate": "window", "window": 30},
    "velocity, ewma": {"name": "velocity", "estimate": "ewma"},
    "trend": {"name": "trend", "gamma": 0.98},
    "koopman": {"name": "koopman", "window": 32, "rank": 16},
    "koopman, short": {"name": "koopman"},
    "regression": {"name": "regression", "window": 30, "anchored": True},
    "regression, capped": {"name": "regression", "window": 30, "anchored": True, "cap": 60},
}
#: The ones that are tried where runs take long.
FEW = ("koopman", "koopman, short", "regression, capped")
#: Chooses itself what it trusts, and how far: bytes are what comes of it.
BACKTEST: Table = {"name": "backtest", "every": 4, "candidates": ["velocity", "regression"]}


@dataclass(frozen=True)
class Rounds:
    """Real steps, and steps of the jump after them."""

    real: int
    horizon: int

    def exchanges(self, steps: int) -> int:
        """Return how many of so many steps are real; the last one always is.

        Example:
            >>> from benchmarks.coast.cells import Rounds
            >>> Rounds(2, 6).exchanges(17), Rounds(2, 6).exchanges(24)
            (5, 7)
        """
        clock = count = 0
        while clock < steps:
            real = min(self.real, steps - clock)
            clock, count = clock + real, count + real
            clock += max(0, min(self.horizon, steps - 1 - clock))
        return count


@dataclass(frozen=True)
class Cell:
    """One task of the table.

    Args:
        data: a data set of ours.
        model: a model of the zoo, with settings.
        rates: tried for vanilla on validation data; one that is alone stands.
        momentum: of SGD.
        stages: in the pipeline.
        batch_size: samples in a step.
        steps: of one pass.
        rounds: by ratio of bytes.
    """

    data: str
    model: Table
    rates: tuple[float, ...]
    momentum: float
    stages: int
    batch_size: int
    steps: int
    rounds: Mapping[int, Rounds]

    def sections(
        self, rate: float, *, steps: int | None = None, momentum: float | None = None
    ) -> Sections:
        """Return a vanilla run of one pass, or of so many steps."""
        return {
            "data": {"name": self.data, "batch_size": self.batch_size},
            "model": dict(self.model),
            "optimizer": {
                "name": "sgd",
                "lr": rate,
                "momentum": self.momentum if momentum is None else momentum,
            },
            "train": {"steps": self.steps if steps is None else steps},
            "layout": {"kind": "pipeline", "stages": self.stages, "micro_batches": 1},
        }

    def coasting(
        self,
        rate: float,
        rounds: Rounds,
        predictor: Table,
        guard: Table | None = None,
        momentum: float | None = None,
    ) -> Sections:
        """Return a run of one pass that coasts."""
        sections = self.sections(rate, momentum=momentum)
        sections["protocol"] = {"name": "coast", "real": rounds.real, "horizon": rounds.horizon}
        sections["predictor"] = dict(predictor)
        if guard is not None:
            sections["monitor"] = dict(guard)
        return sections


_ROUNDS = {2: Rounds(40, 40), 4: Rounds(40, 120), 8: Rounds(40, 280), 27: Rounds(8, 208)}
#: Few jumps, as the path is straight; more of them would add up their errors.
_STRAIGHT = {4: Rounds(40, 120), 8: Rounds(40, 280), 27: Rounds(16, 416)}
_TINY = {4: Rounds(20, 60)}
_TUNED = (0.005, 0.01, 0.02, 0.05)
_MLP, _LENET = {"name": "mlp"}, {"name": "lenet"}
_FASHION = "fashion_mnist"

CELLS = {
    "mlp, SGD 0.01": Cell(_FASHION, _MLP, (0.01,), 0.0, 2, 64, 860, _ROUNDS),
    "mlp, SGD 0.0005": Cell(_FASHION, _MLP, (0.0005,), 0.0, 2, 64, 860, _STRAIGHT),
    "mlp, SGD 0.001": Cell(_FASHION, _MLP, (0.001,), 0.0, 2, 64, 860, _STRAIGHT),
    "mlp, tuned": Cell(_FASHION, _MLP, _TUNED, 0.9, 2, 64, 860, _ROUNDS),
    "lenet, SGD 0.01": Cell(_FASHION, _LENET, (0.01,), 0.0, 2, 64, 860, _ROUNDS),
    "lenet, tuned": Cell(_FASHION, _LENET, _TUNED, 0.9, 2, 64, 860, _ROUNDS),
    "mlp of 4 stages, SGD 0.01": Cell(
        _FASHION, {"name": "mlp", "hidden": [256, 256, 256]}, (0.01,), 0.0, 4, 64, 860, _ROUNDS
    ),
    # 10 passes over 1,257 images: no stream, and where the pilot of this project looked first
    "digits, SGD 0.01": Cell(
        "digits", {"name": "mlp", "hidden": [64]}, (0.01,), 0.0, 2, 32, 400, _TINY
    ),
    # of the tiny form
    "mlp, digits": Cell("digits", {"name": "mlp", "hidden": [16]}, (0.05,), 0.9, 2, 32, 240, _TINY),
}
