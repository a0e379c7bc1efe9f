"""What criteria look at, as it rides beside the gradients in the same all-reduce.

Each replica writes its own numbers, the collective adds them up, and all have the same sums: one
more message is not needed, and no two processes can see different evidence. Rank 0's decision
travels in the same way, so that all hear of it at the same step::

    0        1     2      3           4      5       6 ... 6 + N - 1
    switch   loss  count  validation  count  norm^2  seconds of each replica's step
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from freewheel.monitors.expected_gain import speedup
from freewheel.monitors.stragglers import slowness

_SWITCH, _LOSS, _COUNT, _HELD_OUT, _HELD_OUT_COUNT, _NORM_SQ, _SECONDS = range(7)


def num_slots(num_workers: int) -> int:
    """Return how many numbers travel.

    Example:
        >>> from freewheel.runtime.switching.evidence import num_slots
        >>> num_slots(4)
        10
    """
    return _SECONDS + num_workers


def write(
    slots: Tensor,
    rank: int,
    switch: bool,
    loss: tuple[float, float],
    held_out: tuple[float, float],
    norm_sq: float,
    seconds: float,
) -> None:
    """Fill one replica's slots.

    Args:
        slots: ``[6 + N]``, before the collective.
        rank: of the replica.
        switch: only rank 0 says so.
        loss: sum over its samples, and their number.
        held_out: the same on its share of the validation part; (0, 0) in most steps.
        norm_sq: squared norm of its own mean gradient; 0 where nobody asks.
        seconds: that its step took before the collective.
    """
    slots.zero_()
    slots[_SWITCH] = float(switch)
    slots[_LOSS], slots[_COUNT] = loss
    slots[_HELD_OUT], slots[_HELD_OUT_COUNT] = held_out
    slots[_NORM_SQ] = norm_sq
    slots[_SECONDS + rank] = seconds


def samples(slots: Tensor) -> float:
    """Return the number of samples behind a step, after the collective."""
    return float(slots[_COUNT])


def read(
    slots: Tensor, lasted_s: float, mean_norm_sq: float, epoch: int, progress: float
) -> tuple[bool, dict[str, float]]:
    """Return whether rank 0 says switch, and the evidence of the step.

    Args:
        slots: after the collective.
        lasted_s: of the whole step, the collective included.
        mean_norm_sq: squared norm of the mean gradient; 0 where nobody asks.
        epoch: of the step.
        progress: the part of all steps that is done.

    Example:
        >>> import torch
        >>> from freewheel.runtime.switching.evidence import num_slots, read, write
        >>> slots = torch.zeros(num_slots(1))
        >>> write(slots, 0, True, (6.0, 4.0), (0.0, 0.0), 0.0, seconds=1.0)
        >>> switch, evidence = read(slots, 2.0, 0.0, epoch=0, progress=0.5)
        >>> switch, evidence["loss"], evidence["speedup"]
        (True, 1.5, 2.0)
    """
    values: Sequence[float] = slots.tolist()
    took = list(values[_SECONDS:])
    evidence = {
        "num_samples": values[_COUNT],
        "num_workers": float(len(took)),
        "epoch": float(epoch),
        "progress": progress,
    }
    if values[_COUNT] > 0:
        evidence["loss"] = values[_LOSS] / values[_COUNT]
    if values[_HELD_OUT_COUNT] > 0:
        evidence["validation_loss"] = values[_HELD_OUT] / values[_HELD_OUT_COUNT]
    if mean_norm_sq > 0:
        evidence["grad_norm_sq"] = values[_NORM_SQ] / len(took)
        evidence["mean_grad_norm_sq"] = mean_norm_sq
    if all(each > 0 for each in took):
        lasted_s = max(lasted_s, *took, 0.0)
        evidence["slowness"] = slowness(took)
        evidence["speedup"] = speedup([lasted_s - each for each in took], lasted_s)
    return values[_SWITCH] > 0, evidence
