"""Cut a traced graph into pieces that hand each other every value that is used later."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import SymInt, Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from freewheel.models.aliases import written_inputs
from freewheel.models.tracing import Trace


def crossing(trace: Trace, position: int) -> list[Node]:
    """Return the values made before a position that are used at or after it, in order.

    Sizes that can be read off a tensor that crosses too are left out.
    """
    live = _live(trace, position)
    return [value for value in live if _size_source(value, live) is None]


def _live(trace: Trace, position: int) -> list[Node]:
    if position == 0:
        return [node for node in trace.module.graph.nodes if node.op == "placeholder"]
    order = {call: index for index, call in enumerate(trace.calls)}
    return [
        node
        for node in trace.module.graph.nodes
        if node.op != "get_attr"
        and order.get(node, -1) < position
        and any(order.get(user, position) >= position for user in node.users)
    ]


def _size_source(value: Node, live: Sequence[Node]) -> tuple[Node, int] | None:
    """Find a live tensor with a dimension whose length is the number ``value``."""
    size = value.meta.get("val")
    if not isinstance(size, SymInt):
        return None
    for node in live:
        tensor = node.meta.get("val")
        if isinstance(tensor, Tensor):
            for dimension, length in enumerate(tensor.shape):
                if str(length) == str(size):
                    return node, dimension
    return None


def cut_out(
    trace: Trace, start: int, stop: int, *, last: bool, rename: Callable[[str], str]
) -> Graph:
    """Copy the calls from ``start`` to ``stop - 1`` into a graph of their own.

    Its inputs are the values that cross at ``start``, its outputs those that cross at ``stop``, or
    the leaves of the model's output for the last stage.

    Args:
        trace: the whole.
        start: position of the first call.
        stop: position after the last call.
        last: whether this is the last stage.
        rename: gives the new name of an attribute.

    Raises:
        ModelError: a call in it writes in place to what two views of cross the cut.
    """
    graph = Graph()
    values: dict[Node, Node] = {}
    live = _live(trace, start)
    inputs = crossing(trace, start)
    written = written_inputs(trace.calls, start, stop)
    for value in inputs:
        values[value] = graph.placeholder(value.name)
    for value in live:
        source = None if start == 0 else _size_source(value, live)
        if source is not None:
            node, dimension = source
            size = graph.call_function(torch.ops.aten.sym_size.int, (values[node], dimension))
            values[value] = size
    for value in inputs:
        if value in written:
            # What came in belongs to autograd (a leaf) or to the user.
            values[value] = graph.call_function(torch.ops.aten.clone.default, (values[value],))

    def copied(node: Node) -> Node:
        if node not in values:
            values[node] = graph.get_attr(rename(str(node.target)))
        return values[node]

    for call in trace.calls[start:stop]:
        values[call] = graph.node_copy(call, copied)
    if last:
        (leaves,) = trace.module.graph.output_node().args
        graph.output(map_arg(leaves, copied))
    else:
        graph.output(tuple(copied(value) for value in crossing(trace, stop)))
    return graph
