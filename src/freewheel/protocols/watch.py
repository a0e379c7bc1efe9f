"""What a protocol needs measured of tensors, since its machines see only numbers.

The runtime and the simulator do as a watch says, with the tools of ``freewheel.monitors``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

#: A predictor by name, or a table of its name and settings.
PredictorSpec: TypeAlias = str | Mapping[str, Any]

#: How the variance of models is estimated from what each worker tells of its own.
Estimate: TypeAlias = Literal["linear", "sketch"]


@dataclass(frozen=True, slots=True)
class Predicted:
    """Worker and server predict each other; see ``freewheel.monitors.dual_prediction``.

    ``StepDone`` then has ``error_norm``, ``move_norm`` and ``state_norm``: of what the worker has
    changed beyond what both ends predict, of all it has changed and not pushed, and of its
    parameters. A pull is answered with parameters only when those that the server has have left
    what the worker predicts.

    Args:
        predictor: that both ends run.
        tolerance: of the answer to a pull, relative to the norm of the server's parameters.
    """

    predictor: PredictorSpec
    tolerance: float


@dataclass(frozen=True, slots=True)
class Variance:
    """Workers report their share of the variance of models; see ``monitors.model_variance``.

    Args:
        rows: of the sketch; 0 for the linear estimate.
        columns: of the sketch.
    """

    rows: int = 0
    columns: int = 0

    @property
    def size(self) -> int:
        """Numbers in a report."""
        return 2 + self.rows * self.columns


Watch: TypeAlias = Predicted | Variance
