"""The forms in which a model may be given, behind one interface: layers, in order, by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from freewheel.errors import ModelError
from freewheel.models.layers import LayeredModel, LayerSpec
from freewheel.models.lazy import materialise, on_meta_device
from freewheel.models.seeding import seeded
from freewheel.models.stage import StageModule, owner_of

#: Things that are one and the same in several layers: pairs of layer index and full name.
Group = tuple[tuple[int, str], ...]


class Form(Protocol):
    """A model that can be built in parts.

    Attributes:
        names: of the layers, in order.
        known: each name that may stand for a cut, with the index of the last layer before it.
        refused: names of parts after which it cannot be cut, with the reason.
        blocks: ends (exclusive layer indices) of top-level blocks.
        default_cuts: cuts to use where the user names none, for some numbers of stages.
        ties: parameters that are shared by several layers.
        shared_state: other tensors that are; they cannot be kept equal across a cut.
    """

    names: tuple[str, ...]
    known: Mapping[str, int]
    refused: Mapping[str, str]
    blocks: tuple[int, ...]
    default_cuts: Mapping[int, tuple[str, ...]]
    ties: tuple[Group, ...]
    shared_state: tuple[Group, ...]

    def build(self, start: int, stop: int) -> nn.Module:
        """Build layers ``start`` to ``stop - 1``, and nothing else, as one module."""
        ...


class LayeredForm:
    """A ``LayeredModel``: fresh modules at each build, from the seed."""

    def __init__(self, model: LayeredModel, seed: int) -> None:
        self._model, self._seed = model, seed
        self.names = model.names
        self.known: Mapping[str, int] = cut_names(self.names)
        self.refused: Mapping[str, str] = {}
        self.blocks = tuple(range(1, len(self.names) + 1))
        self.default_cuts = model.default_cuts
        self.ties: tuple[Group, ...] = tuple(
            tuple((model.layer_of(name), name) for name in group) for group in model.ties
        )
        self.shared_state: tuple[Group, ...] = ()

    def build(self, start: int, stop: int) -> nn.Module:
        """Build some layers; see ``Form.build``."""
        layers = [(self.names[index], self._layer(index)) for index in range(start, stop)]
        stage = StageModule(layers, first=start == 0)
        for group in self.ties:
            self._tie(stage, group, start, stop)
        return stage

    def _layer(self, index: int) -> nn.Module:
        spec = self._model.layers[index]
        with seeded(self._seed, index):
            module = spec.build()
        if not isinstance(module, nn.Module):
            raise ModelError(
                f"the builder of layer {spec.name!r} returned {type(module).__name__}; "
                "it must return an nn.Module"
            )
        return module

    def _tie(self, stage: nn.Module, group: Group, start: int, stop: int) -> None:
        here = [name for index, name in group if start <= index < stop]
        if not here:
            return
        shared = tied_parameter(stage, here[0])
        for name in here[1:]:
            check_shapes(here[0], shared, name, tied_parameter(stage, name))
            owner, attribute = owner_of(stage, name)
            setattr(owner, attribute, shared)
        index, source = group[0]
        if not start <= index < stop:
            # The owner's layer is built for its initial value and let go at once.
            alone = StageModule([(self.names[index], self._layer(index))], first=True)
            value = tied_parameter(alone, source)
            check_shapes(source, value, here[0], shared)
            with torch.no_grad():
                shared.copy_(value)


class ModulesForm:
    """An ``nn.Sequential`` or a list of modules: the user's own objects, or copies from meta."""

    def __init__(self, modules: Sequence[tuple[str, nn.Module]], seed: int) -> None:
        self._seed = seed
        self._layers: list[tuple[str, nn.Module]] = []
        blocks: list[int] = []
        for name, module in modules:
            self._layers += unfolded(name, module)
            blocks.append(len(self._layers))
        self.names = tuple(name for name, _ in self._layers)
        self.known: Mapping[str, int] = cut_names(self.names)
        self.refused: Mapping[str, str] = {}
        self.blocks = tuple(blocks)
        self.default_cuts: Mapping[int, tuple[str, ...]] = {}
        for name, module in self._layers:
            refuse_uninitialised(name, module)
        self.ties = self._shared(lambda module: module.named_parameters(remove_duplicate=False))
        self.shared_state = self._shared(
            lambda module: module.named_buffers(remove_duplicate=False)
        )

    def _shared(self, tensors_of: Callable[[nn.Module], Any]) -> tuple[Group, ...]:
        found: dict[int, list[tuple[int, str]]] = {}
        for index, (prefix, module) in enumerate(self._layers):
            for name, tensor in tensors_of(module):
                found.setdefault(id(tensor), []).append((index, f"{prefix}.{name}"))
        return tuple(tuple(group) for group in found.values() if len(group) > 1)

    def build(self, start: int, stop: int) -> nn.Module:
        """Hand over some layers; see ``Form.build``."""
        layers = self._layers
        if any(on_meta_device(module) for _, module in layers[start:stop]):
            whole = copy.deepcopy(StageModule(layers, first=True))
            wanted = {
                f"{prefix}.{name}"
                for prefix, module in layers[start:stop]
                for name in [
                    *dict(module.named_parameters(remove_duplicate=False)),
                    *dict(module.named_buffers(remove_duplicate=False)),
                ]
            }
            materialise(whole, wanted, self._seed)
            layers = [(name, whole.get_submodule(name)) for name in self.names]
        return StageModule(layers[start:stop], first=start == 0)


def unfolded(name: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Open nested ``nn.Sequential`` modules, so that there can be cuts inside them."""
    if not is_plain_sequential(module) or len(module._modules) == 0:
        return [(name, module)]
    # Not named_children(), which leaves out a module that stands there twice.
    return [
        layer
        for child_name, child in module._modules.items()
        if child is not None
        for layer in unfolded(f"{name}.{child_name}", child)
    ]


def is_plain_sequential(module: nn.Module) -> bool:
    """Whether calling the module is calling its children in order, and nothing else."""
    return (
        isinstance(module, nn.Sequential)
        and type(module).forward is nn.Sequential.forward
        and not (
            module._parameters
            or module._buffers
            or module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
        )
    )


def cut_names(names: Sequence[str]) -> dict[str, int]:
    """Map each layer name, and each dotted prefix of it, to the last layer that it covers.

    Example:
        >>> from freewheel.models.forms import cut_names
        >>> cut_names(["features.0", "features.1", "head"])
        {'features': 1, 'features.0': 0, 'features.1': 1, 'head': 2}
    """
    known: dict[str, int] = {}
    for index, name in enumerate(names):
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            known[".".join(parts[:end])] = index
    return known


def layered(builders: Sequence[Callable[[], nn.Module]]) -> LayeredModel:
    """Name the builders ``"0"``, ``"1"``, ... as ``nn.Sequential`` would name their modules."""
    return LayeredModel(tuple(LayerSpec(str(i), build) for i, build in enumerate(builders)))


def tied_parameter(module: nn.Module, name: str) -> nn.Parameter:
    """Return the parameter of that full name, or say why it cannot be tied."""
    try:
        owner, attribute = owner_of(module, name)
        value: Any = getattr(owner, attribute)
    except AttributeError as error:
        raise ModelError(
            f"the tie names {name!r}, but its layer has no such parameter; "
            "use a name that the layer's state_dict() lists, after the layer's own"
        ) from error
    if not isinstance(value, nn.Parameter):
        raise ModelError(
            f"the tie names {name!r}, which is a {type(value).__name__} and no parameter; "
            "only parameters can be tied"
        )
    return value


def check_shapes(name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """Refuse to tie two tensors of different shape or dtype."""
    if value.shape != other.shape or value.dtype != other.dtype:
        raise ModelError(
            f"{name!r} {tuple(value.shape)} {value.dtype} and {other_name!r} "
            f"{tuple(other.shape)} {other.dtype} are tied; "
            "tied parameters must have one shape and dtype"
        )


def refuse_uninitialised(name: str, module: nn.Module) -> None:
    """Refuse ``nn.LazyLinear`` and its like before their first call."""
    for own, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise ModelError(
                f"{name}.{own} has no shape yet (a torch.nn.Lazy... module); call the model once "
                "on an example before you hand it over, or state the sizes"
            )
