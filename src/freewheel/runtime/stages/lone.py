"""A whole model as the only stage: what replicas, workers of servers and readers compute with."""

from __future__ import annotations

from torch import nn

from freewheel.runtime.context import Context
from freewheel.runtime.stages.stage import Stage


def lone_stage(context: Context, module: nn.Module) -> Stage:
    """Return a stage without neighbours: it computes as a pipeline of one stage does.

    Args:
        context: for loss, metrics and how to compute.
        module: the whole model.
    """
    config = context.config
    return Stage(
        module,
        0,
        1,
        None,
        None,
        context.pieces.loss(),
        context.pieces.metrics(),
        device=config.run.device,
        autocast=context.autocast,
        recompute=config.model.checkpoint_activations,
    )
