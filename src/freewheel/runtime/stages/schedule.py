"""In which order one stage runs the forwards and backwards of a step's micro-batches."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Op(NamedTuple):
    """One forward or backward of one micro-batch."""

    what: Literal["forward", "backward"]
    micro: int


def stage_ops(schedule: str, stage: int, num_stages: int, num_micro: int) -> list[Op]:
    """Return the operations of one stage in one step.

    Backwards always run in the order of the micro-batches, so that gradients are accumulated in
    the same order under every schedule and number of stages.

    Args:
        schedule: ``"gpipe"`` (all forwards, then all backwards; all activations are kept) or
            ``"1f1b"`` (alternates once the pipeline is full; at most ``num_stages - stage``
            micro-batches' activations are kept).
        stage: 0 is the one that reads the inputs.
        num_stages: stages in the pipeline.
        num_micro: micro-batches in this step, at least 1.

    Returns:
        ``2 * num_micro`` operations.

    Example:
        >>> from freewheel.runtime.stages.schedule import stage_ops
        >>> [f"{op.what[0]}{op.micro}" for op in stage_ops("1f1b", 0, 2, 3)]
        ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']

    References:
        Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline
        Parallelism", 2019; Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN
        Training", 2019 (1F1B; here with a flush at each step).
    """
    ahead = num_micro if schedule == "gpipe" else min(num_micro, num_stages - stage)
    ops = [Op("forward", i) for i in range(ahead)]
    for i in range(num_micro):
        ops.append(Op("backward", i))
        if ahead + i < num_micro:
            ops.append(Op("forward", ahead + i))
    return ops
