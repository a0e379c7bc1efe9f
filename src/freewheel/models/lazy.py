"""Build a model's shape without its memory, then give memory and values to one stage's part."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn

from freewheel.errors import ModelError
from freewheel.models.seeding import seeded
from freewheel.models.stage import owner_of

M = TypeVar("M")


def on_meta(factory: Callable[[], M]) -> M:
    """Call a user's factory so that the modules it makes have shapes and dtypes but no memory.

    A factory that returns a ``LayeredModel`` or a list of builders is lazy by itself; what it
    returns is passed through.

    Args:
        factory: makes the model.

    Returns:
        What it made. ``partition`` gives memory and initial values to a stage when it is built.

    Raises:
        ModelError: the factory reads values while it builds, which have no memory here.

    Example:
        >>> from torch import nn
        >>> from freewheel.models.lazy import on_meta
        >>> on_meta(lambda: nn.Linear(10**6, 10**6)).weight.device
        device(type='meta')
    """
    try:
        with torch.device("meta"):
            return factory()
    except (NotImplementedError, RuntimeError) as error:
        if "meta" not in str(error).lower():
            raise
        raise ModelError(
            f"init = 'lazy' builds the model without memory, but its factory reads values while it "
            f"builds ({str(error).splitlines()[0]}); move that into reset_parameters or forward, "
            "return a list of zero-argument builders, or drop init = 'lazy'"
        ) from error


def on_meta_device(module: nn.Module) -> bool:
    """Whether some parameter or buffer of the module has no memory yet."""
    return any(tensor.is_meta for tensor in chain(module.parameters(), module.buffers()))


def materialise(model: nn.Module, wanted: Collection[str], seed: int) -> None:
    """Give memory and initial values to some tensors of a model on the meta device, in place.

    Each module that owns one of them gets memory for its own tensors and has its
    ``reset_parameters()`` called, with the generator seeded by (seed, position of the module in the
    whole model): values depend neither on the cuts nor on who builds them. A parameter that is
    shared has the value that its first owner gives it.

    Args:
        model: the whole model; stays on meta but for what is wanted.
        wanted: full names of parameters and buffers.
        seed: the run's seed.

    Raises:
        ModelError: a module owns tensors but has no ``reset_parameters``.

    Example:
        >>> from torch import nn
        >>> from freewheel.models.lazy import materialise, on_meta
        >>> model = on_meta(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
        >>> materialise(model, {"1.weight", "1.bias"}, seed=0)
        >>> model[0].weight.device.type, model[1].weight.device.type
        ('meta', 'cpu')
    """
    first_names = _first_names(model)
    wanted = {*wanted, *(first_names[name] for name in wanted)}
    order = {id(module): index for index, module in enumerate(model.modules())}
    # Children first: nn.MultiheadAttention, for one, corrects its child's bias after the child.
    for path, module in reversed(list(model.named_modules())):
        own = [f"{path}.{name}" if path else name for name in _own_tensors(module)]
        if not wanted.isdisjoint(own):
            _fill(path, module, seed, order[id(module)])
    for name, first in first_names.items():
        if first in wanted and name != first:
            owner, attribute = owner_of(model, name)
            source, source_attribute = owner_of(model, first)
            shared = getattr(source, source_attribute)
            if isinstance(shared, nn.Parameter):
                owner._parameters[attribute] = shared
            else:
                owner._buffers[attribute] = shared


def _fill(path: str, module: nn.Module, seed: int, index: int) -> None:
    """Give memory and values to a module's own tensors."""
    if not any(tensor.is_meta for tensor in _own_tensors(module).values()):
        return
    # PyTorch's own nn.MultiheadAttention has it with an underscore.
    for method in ("reset_parameters", "_reset_parameters"):
        reset = getattr(module, method, None)
        if callable(reset):
            break
    else:
        raise ModelError(
            f"{type(module).__name__} at {path!r} owns {', '.join(_own_tensors(module))} but has "
            "no reset_parameters() to give them initial values; with init = 'lazy' each module "
            "that owns tensors needs one: add it, or drop init = 'lazy'"
        )
    module.to_empty(device="cpu", recurse=False)
    with seeded(seed, index), torch.no_grad():
        reset()


def _own_tensors(module: nn.Module) -> dict[str, Tensor]:
    own: Iterable[tuple[str, Tensor | None]] = chain(
        module._parameters.items(), module._buffers.items()
    )
    return {name: tensor for name, tensor in own if tensor is not None}


def _first_names(model: nn.Module) -> dict[str, str]:
    """Map each full name to the first name of the same tensor."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, tensor in chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    ):
        names[name] = first.setdefault(id(tensor), name)
    return names
