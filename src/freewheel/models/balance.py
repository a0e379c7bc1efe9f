"""Choose where to cut from what each layer costs. Pure arithmetic; measuring is in ``costs``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from freewheel.errors import ConfigError, ModelError
from freewheel.models.cuts import check_stages


@dataclass(frozen=True, slots=True)
class LayerCost:
    """What one layer costs for one batch.

    Args:
        name: of the layer.
        compute_s: seconds of its forward and backward pass.
        state_bytes: its parameters, gradients, optimizer state and buffers.
        activation_bytes: what its forward pass keeps for the backward pass.
        cut_bytes: what crosses a cut right after it, activations forward and gradients back.
    """

    name: str
    compute_s: float
    state_bytes: int
    activation_bytes: int
    cut_bytes: int


def balance(
    costs: Sequence[LayerCost],
    stages: int,
    *,
    rate_mbit: float | None = None,
    memory_bytes: int | None = None,
    in_flight: int = 1,
) -> tuple[str, ...]:
    """Choose the cuts that make the slowest stage as fast as possible.

    Minimises, over all ways to cut the layers into ``stages`` consecutive parts, the maximum over
    stages of

        sum of compute_s + 8 cut_bytes of its last layer / (1e6 rate_mbit)

    subject to ``sum of (state_bytes + in_flight activation_bytes) <= memory_bytes`` for each. Of
    several best ones it takes that with the fewest bytes over all cuts, then with the earliest
    cuts. Takes O(stages layers^2) steps.

    Args:
        costs: one per layer, in order.
        stages: how many.
        rate_mbit: rate of the link between stages in Mbit/s; None for free communication.
        memory_bytes: what a process may hold; None for no limit.
        in_flight: batches whose activations a stage holds at a time.

    Returns:
        For each cut the name of the layer before it.

    Raises:
        ConfigError: stages, rate, memory or in_flight out of range.
        ModelError: no way to cut keeps within the memory.

    References:
        D. Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", 2019.

    Example:
        >>> from freewheel.models.balance import LayerCost, balance
        >>> layers = [LayerCost(name, 1.0, 0, 0, 0) for name in "abcd"]
        >>> balance(layers, stages=2)
        ('b',)
    """
    check_stages(stages, len(costs))
    for name, value in (("rate_mbit", rate_mbit), ("memory_bytes", memory_bytes)):
        if value is not None and not value > 0:
            raise ConfigError(f"{name} must be > 0, got {value}; leave it out for no limit")
    if in_flight < 1:
        raise ConfigError(f"in_flight must be >= 1, got {in_flight}")

    held = [0, *accumulate(cost.state_bytes + in_flight * cost.activation_bytes for cost in costs)]
    computed = [0.0, *accumulate(cost.compute_s for cost in costs)]

    def memory(start: int, stop: int) -> float:
        return held[stop] - held[start]

    def sent(start: int, stop: int) -> float:
        del start
        return costs[stop - 1].cut_bytes if stop < len(costs) else 0

    def seconds(start: int, stop: int) -> float:
        compute = computed[stop] - computed[start]
        return compute + (8 * sent(start, stop) / (1e6 * rate_mbit) if rate_mbit else 0.0)

    def fits(start: int, stop: int) -> bool:
        return memory_bytes is None or memory(start, stop) <= memory_bytes

    slowest, _ = _best(len(costs), stages, seconds, max, fits)
    if slowest == inf:
        least, ends = _best(len(costs), stages, memory, max, lambda *_: True)
        raise ModelError(
            f"no way to cut {len(costs)} layers into {stages} stages keeps each within "
            f"{memory_bytes} bytes: the best one needs {int(least)} (cut after "
            f"{', '.join(costs[end - 1].name for end in ends[:-1]) or 'nothing'}); use more "
            "stages, smaller micro-batches or activation checkpointing"
        )
    _, ends = _best(
        len(costs),
        stages,
        sent,
        lambda total, part: total + part,
        lambda start, stop: fits(start, stop) and seconds(start, stop) <= slowest,
    )
    return tuple(costs[end - 1].name for end in ends[:-1])


def _best(
    layers: int,
    stages: int,
    cost: Callable[[int, int], float],
    join: Callable[[float, float], float],
    allowed: Callable[[int, int], bool],
) -> tuple[float, tuple[int, ...]]:
    """Cut ``layers`` into ``stages`` with the least joined cost, of equals the earliest cuts.

    Args:
        layers: how many.
        stages: how many.
        cost: of the part from a start to a stop index.
        join: the cost of the parts so far and of one more; never falls when either rises.
        allowed: whether a part may be a stage.

    Returns:
        The least cost, infinite where nothing is allowed, and the ends of the stages.
    """
    part = {
        (start, stop): cost(start, stop)
        for start in range(layers)
        for stop in range(start + 1, layers + 1)
        if allowed(start, stop)
    }
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for _ in range(stages):
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for (start, stop), extra in part.items():
            if start in best:
                total, ends = best[start]
                candidate = (join(total, extra), (*ends, stop))
                longer[stop] = min(longer.get(stop, candidate), candidate)
        best = longer
    return best.get(layers, (inf, ()))
