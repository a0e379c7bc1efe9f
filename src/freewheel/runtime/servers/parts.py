"""Which server holds which part of the parameters: a split of the flat vector, balanced by size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from freewheel.errors import ConfigError, ModelError

#: A tensor is cut at multiples of this many elements from its start, so that each element meets
#: the same kernel (vector body or scalar tail) as in the whole tensor.
GRAIN = 64


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements ``start`` to ``stop`` of one parameter, flattened row by row.

    Args:
        parameter: its place in the list of parameters.
        start: first element.
        stop: one past the last.
    """

    parameter: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.stop - self.start


#: What one server holds, in the order in which it lies in a message.
Part = tuple[Slice, ...]


def size_of(part: Part) -> int:
    """Return the number of elements in a part.

    Example:
        >>> from freewheel.runtime.servers.parts import Slice, size_of
        >>> size_of((Slice(0, 0, 6), Slice(1, 0, 2)))
        8
    """
    return sum(piece.size for piece in part)


def split_flat(sizes: Sequence[int], num_servers: int) -> list[Part]:
    """Cut the flat vector of all parameters into nearly equal parts, through tensors if need be.

    Args:
        sizes: elements of each parameter.
        num_servers: parts wanted, from 1 to the number of elements.

    Returns:
        One part a server; together they hold every element once, in order.

    Raises:
        ConfigError: more servers than elements.

    Example:
        >>> from freewheel.runtime.servers.parts import size_of, split_flat
        >>> [size_of(part) for part in split_flat([1000, 24], 2)]
        [512, 512]
    """
    total = sum(sizes)
    _check(num_servers, total, "parameters (numbers)")
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    grain = GRAIN if total >= 2 * GRAIN * num_servers else 1
    bounds = [0]
    for server in range(1, num_servers):
        wanted = total * server // num_servers
        owner = max(index for index, start in enumerate(starts) if start <= wanted)
        inside = round((wanted - starts[owner]) / grain) * grain
        bounds.append(starts[owner] + min(inside, sizes[owner]))
    bounds.append(total)
    parts = []
    for low, high in pairwise(bounds):
        part = []
        for index, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            first, last = max(low, start), min(high, start + size)
            if first < last:
                part.append(Slice(index, first - start, last - start))
        parts.append(tuple(part))
    return parts


def split_tensors(sizes: Sequence[int], num_servers: int) -> list[Part]:
    """Give whole tensors to servers: the largest first, each to the one that has least so far.

    Args:
        sizes: elements of each parameter.
        num_servers: parts wanted, from 1 to the number of tensors.

    Returns:
        One part a server, its tensors in their order.

    Raises:
        ConfigError: more servers than tensors.

    Example:
        >>> from freewheel.runtime.servers.parts import size_of, split_tensors
        >>> [size_of(part) for part in split_tensors([10, 70, 60], 2)]
        [70, 70]
    """
    _check(num_servers, len(sizes), "parameter tensors, which this optimizer needs whole")
    loads = [0] * num_servers
    held: list[list[int]] = [[] for _ in range(num_servers)]
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        # Ties go to who holds fewer, so that tensors without elements leave no server empty.
        server = min(range(num_servers), key=lambda s: (loads[s], len(held[s]), s))
        loads[server] += sizes[index]
        held[server].append(index)
    return [tuple(Slice(index, 0, sizes[index]) for index in sorted(own)) for own in held]


def check_trainable(parameters: Sequence[nn.Parameter]) -> None:
    """Refuse a model whose parameters cannot be one flat vector.

    Raises:
        ModelError: nothing is trainable, or dtypes differ.
    """
    if not parameters:
        raise ModelError("the model has no trainable parameters; there is nothing to train")
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in parameters})
    if len(dtypes) > 1:
        raise ModelError(
            f"a parameter server needs trainable parameters of one dtype, got {', '.join(dtypes)}; "
            "convert the model with .to(dtype)"
        )


def _check(num_servers: int, available: int, what: str) -> None:
    if num_servers > available:
        raise ConfigError(
            f"layout.servers = {num_servers}, and the model has only {available} {what}; every "
            f"server needs at least one: use {max(1, available)} or fewer"
        )
