"""Which traced calls write to a tensor in place, and which return a view of their argument."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch._ops import OpOverload
from torch.fx import Graph, Node

from freewheel.errors import ModelError

#: Operators that write to running statistics without saying so in their schema.
_RUNNING_STATISTICS: dict[str, tuple[int, ...]] = {
    "aten::batch_norm": (3, 4),
    "aten::instance_norm": (3, 4),
}


def written_by(call: Node) -> Iterator[Node]:
    """Yield the values that a call writes to in place."""
    if isinstance(call.target, OpOverload):
        for value, is_write in _aliased(call):
            if is_write:
                yield value
        for position in _RUNNING_STATISTICS.get(call.target._schema.name, ()):
            statistics = call.args[position]
            if isinstance(statistics, Node):
                yield statistics


def _aliased(call: Node) -> Iterator[tuple[Node, bool]]:
    """Yield the arguments that a call's results may share memory with, and whether it writes."""
    if not isinstance(call.target, OpOverload):
        return
    for position, argument in enumerate(call.target._schema.arguments):
        value = call.args[position] if position < len(call.args) else None
        value = call.kwargs.get(argument.name, value)
        if argument.alias_info is not None and isinstance(value, Node):
            yield value, argument.alias_info.is_write


def _families(calls: Sequence[Node]) -> dict[Node, set[Node]]:
    """Map each value that shares memory with others to all of them, itself included."""
    families: dict[Node, set[Node]] = {}
    for call in calls:
        for value, _ in _aliased(call):
            joined = families.get(value, {value}) | families.get(call, {call})
            families.update(dict.fromkeys(joined, joined))
    return families


def forward_written_values(graph: Graph) -> None:
    """Let later uses of a tensor that was written to in place go through the call that wrote it.

    ``y = x.add_(1); f(x)`` becomes ``f(y)``: the same tensor, and now a value crosses a cut once
    and never in its state before the call.
    """
    order = {node: index for index, node in enumerate(graph.nodes)}
    for call in list(graph.nodes):
        if call.op == "call_function" and _returns_what_it_writes(call):
            for value in list(written_by(call)):
                if value.op != "get_attr":
                    for user in [user for user in value.users if order[user] > order[call]]:
                        user.replace_input_with(value, call)


def _returns_what_it_writes(call: Node) -> bool:
    if not isinstance(call.target, OpOverload):
        return False
    returned = [result.alias_info for result in call.target._schema.returns]
    return len(returned) == 1 and returned[0] is not None and returned[0].is_write


def written_inputs(calls: Sequence[Node], start: int, stop: int) -> set[Node]:
    """Return the values made before ``start`` that calls from there to ``stop - 1`` write to.

    Each side of a cut has its own copy of what crosses it. A write is seen through every view of
    the tensor, so no two views of what is written may cross.

    Args:
        calls: of the whole model, in order.
        start: position of a stage's first call.
        stop: position after its last call.

    Raises:
        ModelError: two views cross.
    """
    position = {call: index for index, call in enumerate(calls)}
    families = _families(calls)
    found: set[Node] = set()
    for call in calls[start:stop]:
        for value in written_by(call):
            if value.op == "get_attr":
                continue
            before = {
                other
                for other in families.get(value, {value})
                if position.get(other, -1) < start
                and any(position.get(user, stop) >= start for user in other.users)
            }
            if len(before) > 1:
                names = " and ".join(sorted(other.name for other in before))
                raise ModelError(
                    f"{call.name} writes in place to a tensor that crosses the cut before it as "
                    f"two views ({names}); use the operation that is not in place, or cut elsewhere"
                )
            found |= before
    return found
