"""The module that one process trains: consecutive layers under the whole model's own names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from freewheel.models.tree import map_tensors


def attach(root: nn.Module, path: str, module: nn.Module) -> None:
    """Register ``module`` under the dotted ``path``, with plain modules as containers between.

    Args:
        root: where the path starts.
        path: e.g. ``"features.3"``.
        module: what ``root.get_submodule(path)`` shall return.

    Example:
        >>> from torch import nn
        >>> from freewheel.models.stage import attach
        >>> root = nn.Module()
        >>> attach(root, "features.3", nn.Linear(1, 1))
        >>> list(root.state_dict())
        ['features.3.weight', 'features.3.bias']
    """
    *parents, last = path.split(".")
    container(root, parents).add_module(last, module)


def container(root: nn.Module, path: Iterable[str]) -> nn.Module:
    """Return the submodule at ``path``, making plain modules for the parts that are missing."""
    for part in path:
        child = root._modules.get(part)
        if child is None:
            child = nn.Module()
            root.add_module(part, child)
        root = child
    return root


def owner_of(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Split ``"a.b.weight"`` into the submodule ``a.b`` of ``root`` and ``"weight"``."""
    path, _, attribute = name.rpartition(".")
    return root.get_submodule(path), attribute


class StageModule(nn.Module):
    """Consecutive layers of a model, called one after the other as ``nn.Sequential`` does.

    ``state_dict`` names are those of the whole model, so a checkpoint does not depend on the cuts.

    Args:
        layers: pairs of dotted name and module, in order.
        first: whether the model's input, and not another stage's output, comes in.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from freewheel.models.stage import StageModule
        >>> stage = StageModule([("3", nn.Linear(4, 2)), ("4", nn.Tanh())], first=False)
        >>> list(stage.state_dict()), stage(torch.ones(5, 4)).shape
        (['3.weight', '3.bias'], torch.Size([5, 2]))
    """

    def __init__(self, layers: Sequence[tuple[str, nn.Module]], *, first: bool) -> None:
        super().__init__()
        for name, layer in layers:
            attach(self, name, layer)
        self.layer_names = tuple(name for name, _ in layers)
        # A received activation is a leaf that needs a gradient: autograd forbids writing to it.
        self._copies_input = not first and any(
            getattr(module, "inplace", False) for module in layers[0][1].modules()
        )

    def forward(self, value: Any) -> Any:
        """Pass ``value`` through the layers."""
        if self._copies_input:
            value = map_tensors(Tensor.clone, value)
        for name in self.layer_names:
            value = self.get_submodule(name)(value)
        return value
