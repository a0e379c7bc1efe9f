"""The published rule of Strategy-Switch: the mean relative change of the loss is small."""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal

from freewheel.monitors.base import criteria
from freewheel.monitors.loss_criterion import LossCriterion
from freewheel.monitors.losses import LossPoints, Smoothing


@criteria.register("relative_change")
class RelativeChange(LossCriterion):
    r"""Switch when the loss changes by at most a hundredth from point to point, on average.

    .. math:: s = \frac{1}{w - 1} \sum_{i=1}^{w-1} \frac{|L_i - L_{i-1}|}{|L_{i-1}|} \le 0.01

    over the last w points. Both a fall and a rise count as change; a constant loss, also one of
    zero, gives s = 0 and fires; a loss that leaves zero gives an infinite s and does not. A loss
    that goes on falling by a constant factor below 0.99 never fires, however small it is.

    Args:
        window: w, points looked at, >= 2.
        threshold: largest s that fires, >= 0.
        loss: name of the evidence.
        per: ``"step"`` or ``"epoch"``: what a point stands for.
        every: losses per point where ``per = "step"``.
        smoothing: ``"none"`` or ``"ema"``.
        decay: of the latter.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> from freewheel.monitors.relative_change import RelativeChange
        >>> rule = RelativeChange(window=3)
        >>> [rule.observe(epoch, {"loss": loss}).verdict for epoch, loss in
        ...  enumerate([2.0, 1.0, 1.0, 1.0])]
        ['unsure', 'unsure', 'stay', 'switch']

    References:
        Provatas, Chalas, Konstantinou, Koziris, "Strategy-Switch: from all-reduce to parameter
        server for faster efficient training", 2025.
    """

    name = "relative_change"

    def __init__(
        self,
        window: int = 6,
        threshold: float = 0.01,
        loss: str = "loss",
        per: Literal["step", "epoch"] = "step",
        every: int = 1,
        smoothing: Smoothing = "none",
        decay: float = 0.9,
    ) -> None:
        if window < 2:
            raise ValueError(f"window must be >= 2 losses, got {window}")
        if not threshold >= 0.0:
            raise ValueError(f"threshold must be >= 0, got {threshold}")
        super().__init__(LossPoints(loss, per, every, smoothing, decay, window), threshold)

    def _judge(self, clocks: list[int], losses: list[float]) -> tuple[float, dict[str, Any]]:
        changes = [
            abs(after - before) / abs(before) if before else (math.inf if after else 0.0)
            for before, after in itertools.pairwise(losses)
        ]
        return sum(changes) / len(changes), {}
