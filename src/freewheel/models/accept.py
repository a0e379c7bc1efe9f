"""Find out in which form a model is given."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from torch import nn

from freewheel.errors import ModelError
from freewheel.models.exported import ExportedForm
from freewheel.models.forms import (
    Form,
    Group,
    LayeredForm,
    ModulesForm,
    is_plain_sequential,
    layered,
)
from freewheel.models.layers import LayeredModel
from freewheel.models.lazy import materialise, on_meta_device


class WholeForm:
    """A module that is not cut: one layer, itself."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        self._model, self._seed = model, seed
        self.names: tuple[str, ...] = (type(model).__name__,)
        self.known: Mapping[str, int] = {}
        self.refused: Mapping[str, str] = {}
        self.blocks: tuple[int, ...] = (1,)
        self.default_cuts: Mapping[int, tuple[str, ...]] = {}
        self.ties: tuple[Group, ...] = ()
        self.shared_state: tuple[Group, ...] = ()

    def build(self, start: int, stop: int) -> nn.Module:
        """Hand over the module; see ``Form.build``."""
        del start, stop
        if not on_meta_device(self._model):
            return self._model
        model = copy.deepcopy(self._model)
        tensors = chain(model.named_parameters(), model.named_buffers())
        materialise(model, {name for name, _ in tensors}, self._seed)
        return model


def form_of(model: Any, *, cut: bool, example: Any, seed: int) -> Form:
    """Return the model behind the one interface that partitioning needs.

    Args:
        model: in any of the forms that ``partition`` takes.
        cut: whether there will be more than one stage.
        example: an input batch, for a module that must be traced; else unused.
        seed: for the initial values of layers that have none yet.

    Raises:
        ModelError: the model is of no such form, or must be traced and there is no example.

    Example:
        >>> from torch import nn
        >>> from freewheel.models.accept import form_of
        >>> form_of([nn.Linear, nn.ReLU], cut=True, example=None, seed=0).names
        ('0', '1')
    """
    if isinstance(model, LayeredModel):
        return LayeredForm(model, seed)
    if isinstance(model, nn.Module) and (
        isinstance(model, nn.ModuleList) or is_plain_sequential(model)
    ):
        if len(model._modules) == 0:
            raise ModelError(f"the {type(model).__name__} is empty; give it at least one module")
        return ModulesForm(
            [(name, child) for name, child in model._modules.items() if child is not None], seed
        )
    if isinstance(model, nn.Module):
        if not cut:
            return WholeForm(model, seed)
        if example is None:
            raise ModelError(
                f"{type(model).__name__} must be traced to be cut; give an example input batch, or "
                "give the model as an nn.Sequential, a list of stages or a LayeredModel"
            )
        return ExportedForm(model, example, seed)
    if isinstance(model, (list, tuple)):
        return _list_form(model, seed)
    raise ModelError(
        f"cannot train a {type(model).__name__}; give an nn.Module, an nn.Sequential, a list of "
        "modules or of zero-argument builders, or a LayeredModel"
    )


def _list_form(model: Sequence[Any], seed: int) -> Form:
    if not model:
        raise ModelError("the list of layers is empty; give at least one module")
    if all(isinstance(layer, nn.Module) for layer in model):
        return ModulesForm([(str(index), layer) for index, layer in enumerate(model)], seed)
    for index, layer in enumerate(model):
        if isinstance(layer, nn.Module) or not callable(layer):
            raise ModelError(
                f"layer {index} of the list is a {type(layer).__name__}; a list holds either "
                "modules only or zero-argument builders only"
            )
    return LayeredForm(layered(model), seed)
