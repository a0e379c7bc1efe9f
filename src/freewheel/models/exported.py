"""Any ``nn.Module`` as a chain of layers: its traced calls, cut where submodules end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from freewheel.errors import ModelError
from freewheel.models.aliases import written_by
from freewheel.models.forms import Group, refuse_uninitialised
from freewheel.models.lazy import materialise
from freewheel.models.slicing import cut_out
from freewheel.models.stage import container
from freewheel.models.tracing import Trace, trace


class ExportedForm:
    """An arbitrary module, traced once in training and once in evaluation mode.

    Layers are the submodules that are called once, by their dotted names; what is computed between
    two of them belongs to the later one. All values that a later stage needs travel along the
    chain, as a tuple where there are several. Both modes share the parameters and buffers.

    Args:
        model: the module; its parameters are used as they are, not copied.
        example: an input batch.
        seed: for initial values, where the module is on the meta device.

    Raises:
        ModelError: ``torch.export`` cannot trace it.
    """

    def __init__(self, model: nn.Module, example: Any, seed: int) -> None:
        refuse_uninitialised(type(model).__name__, model)
        self._model, self._seed = model, seed
        self._traces = {mode: trace(model, example, training=mode) for mode in (True, False)}
        train = self._traces[True]
        by_end: dict[int, list[str]] = {}
        for path, end in train.ends.items():
            by_end.setdefault(end, []).append(path)
        ends = sorted(by_end)
        self.names: tuple[str, ...] = tuple(
            min(by_end[end], key=lambda path: (path.count("."), path)) for end in ends
        ) or ("forward",)
        self.known: Mapping[str, int] = {
            path: index for index, end in enumerate(ends) for path in by_end[end]
        }
        self.refused: Mapping[str, str] = dict.fromkeys(
            train.repeated, "it is called several times, or between calls of others"
        )
        self.blocks = self._top_level(len(self.names))
        self.default_cuts: Mapping[int, tuple[str, ...]] = {}
        self._ends = {mode: self._positions(mode, ends) for mode in (True, False)}
        used = self._uses()
        parameters = dict(model.named_parameters())
        crossing = {name: layers for name, layers in used.items() if len(layers) > 1}
        written = self._written()
        self.ties: tuple[Group, ...] = tuple(
            tuple((layer, name) for layer in sorted(layers))
            for name, layers in crossing.items()
            if name in parameters
        )
        self.shared_state: tuple[Group, ...] = tuple(
            tuple((layer, name) for layer in sorted(layers))
            for name, layers in crossing.items()
            if name not in parameters and name in written
        )
        self._used = used

    def _top_level(self, count: int) -> tuple[int, ...]:
        """Ends of the children of the model, as layer indices."""
        ends = {index + 1 for path, index in self.known.items() if "." not in path}
        return tuple(sorted((ends - {count}) | {count}))

    def _positions(self, training: bool, train_ends: Sequence[int]) -> tuple[int, ...]:
        """For each layer the position after its last call in one mode."""
        trace_ = self._traces[training]
        if training:
            ends = list(train_ends)
        else:
            ends = []
            for name in self.names:
                ends.append(trace_.ends.get(name, ends[-1] if ends else 0))
        if ends != sorted(ends):
            raise ModelError(
                f"{type(self._model).__name__} runs its submodules in another order in evaluation "
                "mode than in training mode; it cannot be cut into the same stages for both"
            )
        return (*ends[:-1], len(trace_.calls))

    def _layer_at(self, training: bool, position: int) -> int:
        return next(index for index, end in enumerate(self._ends[training]) if position < end)

    def _uses(self) -> dict[str, set[int]]:
        """For each parameter and buffer, by its first name, the layers that use it."""
        first = self._first_names()
        used: dict[str, set[int]] = {}
        for training, trace_ in self._traces.items():
            for position, call in enumerate(trace_.calls):
                for node in call.all_input_nodes:
                    if node.op == "get_attr" and str(node.target) in first:
                        layer = self._layer_at(training, position)
                        used.setdefault(first[str(node.target)], set()).add(layer)
        for name in dict.fromkeys(first.values()):
            # Never used, yet part of the model's state_dict: it stays with the last layer.
            used.setdefault(name, {len(self.names) - 1})
        return used

    def _written(self) -> set[str]:
        """Names of the buffers that a forward pass writes to."""
        first = self._first_names()
        return {
            first[str(value.target)]
            for trace_ in self._traces.values()
            for call in trace_.calls
            for value in written_by(call)
            if value.op == "get_attr" and str(value.target) in first
        }

    def _first_names(self) -> dict[str, str]:
        """Map each name of a parameter or buffer to the first name of the same tensor."""
        first: dict[int, str] = {}
        names: dict[str, str] = {}
        for name, tensor in chain(
            self._model.named_parameters(remove_duplicate=False),
            self._model.named_buffers(remove_duplicate=False),
        ):
            names[name] = first.setdefault(id(tensor), name)
        return names

    def build(self, start: int, stop: int) -> nn.Module:
        """Cut out some layers; see ``Form.build``."""
        first = self._first_names()
        here = range(start, stop)
        names = [name for name in first if not self._used[first[name]].isdisjoint(here)]
        model = self._model
        if any(tensor.is_meta for tensor in chain(model.parameters(), model.buffers())):
            model = copy.deepcopy(model)
            materialise(model, names, self._seed)
        stage = GraphStage(
            self.names[start:stop],
            last=self._traces[True].out_spec if stop == len(self.names) else None,
        )
        if start == 0:
            stage.takes_input_of(self._traces[True])
        for name in names:
            _share(model, stage, name)
        for training, trace_ in self._traces.items():
            low = self._ends[training][start - 1] if start else 0
            high = self._ends[training][stop - 1]
            stage.add_graph(training, trace_, low, high, set(first))
        return stage


class GraphStage(nn.Module):
    """Consecutive calls of a traced module, run in the mode that ``train()`` or ``eval()`` set.

    Args:
        layer_names: the layers that they make up.
        last: structure of the model's output where this is the last stage.
    """

    def __init__(self, layer_names: Sequence[str], *, last: TreeSpec | None) -> None:
        super().__init__()
        self.layer_names = tuple(layer_names)
        self._out_spec = last
        self._in_spec: TreeSpec | None = None
        self._spread = False
        self._run: dict[bool, Callable[..., Any]] = {}
        self._num_inputs: dict[bool, int] = {}

    def takes_input_of(self, traced: Trace) -> None:
        """Take the whole model's input, and not another stage's output."""
        self._in_spec = traced.in_spec
        self._spread = traced.spread

    def add_graph(
        self, training: bool, trace_: Trace, start: int, stop: int, state: set[str]
    ) -> None:
        """Cut the calls of one mode out of the whole; constants come along, outside state_dict."""
        prefix = "_training" if training else "_evaluation"

        def rename(name: str) -> str:
            if name in state:
                return name
            holder = container(self, [prefix])
            value: Any = trace_.module.get_submodule(name.rpartition(".")[0])
            value = getattr(value, name.rpartition(".")[2])
            local = name.replace(".", "_")
            if isinstance(value, nn.Module):
                holder.add_module(local, value)
            else:
                holder.register_buffer(local, value, persistent=False)
            return f"{prefix}.{local}"

        last = self._out_spec is not None
        graph = cut_out(trace_, start, stop, last=last, rename=rename)
        self._num_inputs[training] = sum(node.op == "placeholder" for node in graph.nodes)
        self._run[training] = _compiled(graph)

    def forward(self, value: Any) -> Any:
        """Run the calls on what the previous stage returned, or on the model's input."""
        outputs = self._run[self.training](self, *self._inputs(value))
        if self._out_spec is not None:
            return tree_unflatten(outputs, self._out_spec)
        return outputs[0] if len(outputs) == 1 else outputs

    def _inputs(self, value: Any) -> Sequence[Any]:
        if self._in_spec is None:
            return (value,) if self._num_inputs[self.training] == 1 else tuple(value)
        leaves, spec = tree_flatten(value if self._spread else (value,))
        if spec != self._in_spec:
            raise ModelError(
                f"the input has the structure {spec}, but the example had {self._in_spec}; "
                "give every batch in the form of the example"
            )
        return leaves


def _compiled(graph: Graph) -> Callable[..., Any]:
    """Return the graph as a function of the module that holds its attributes, and its inputs."""
    # An fx.GraphModule would hold the parameters a second time, under its own name.
    code = graph.python_code("self")
    namespace = dict(code.globals)
    exec(code.src, namespace)
    run: Callable[..., Any] = namespace["forward"]
    return run


def _share(model: nn.Module, stage: nn.Module, name: str) -> None:
    """Register one of the model's parameters or buffers under its own name in the stage."""
    path, _, attribute = name.rpartition(".")
    owner = model.get_submodule(path)
    holder = container(stage, path.split(".") if path else ())
    value: Tensor = getattr(owner, attribute)
    if isinstance(value, nn.Parameter):
        holder.register_parameter(attribute, value)
    else:
        persistent = attribute not in owner._non_persistent_buffers_set
        holder.register_buffer(attribute, value, persistent=persistent)
