"""A model as a list of layers that are built only where they are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from freewheel.errors import ModelError, nearest


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer: its name, and how to build it.

    Args:
        name: prefix of its parameters' names in the whole model's ``state_dict``; may hold dots.
        build: makes the module, with its initial values, when it is called. Random numbers come
            from PyTorch's global CPU generator, which is seeded before each call.

    Example:
        >>> from torch import nn
        >>> from freewheel.models.layers import LayerSpec
        >>> LayerSpec("head", lambda: nn.Linear(4, 2)).build()
        Linear(in_features=4, out_features=2, bias=True)
    """

    name: str
    build: Callable[[], nn.Module]


@dataclass(frozen=True, slots=True)
class LayeredModel:
    """A model as a chain of layers, each called with the single value that the last one returned.

    A process that holds stage 1 builds the layers of stage 1 only. Layer ``i`` is built with the
    generator seeded by (seed, i): the initial values do not depend on the number of stages.

    Args:
        layers: at least one.
        ties: groups of parameters that are one and the same, by full name; the initial value is
            that of the first of each group.
        default_cuts: for a number of stages, the cuts to use where the user names none.

    Raises:
        ModelError: no layers, a name that is used twice or cannot be one, or a tie that names no
            layer, has fewer than two members or shares one with another tie.

    Example:
        >>> from torch import nn
        >>> from freewheel.models.layers import LayerSpec, LayeredModel
        >>> model = LayeredModel(
        ...     layers=(
        ...         LayerSpec("embed", lambda: nn.Embedding(16, 8)),
        ...         LayerSpec("head", lambda: nn.Linear(8, 16, bias=False)),
        ...     ),
        ...     ties=(("embed.weight", "head.weight"),),
        ... )
        >>> model.names
        ('embed', 'head')
    """

    layers: tuple[LayerSpec, ...]
    ties: tuple[tuple[str, ...], ...] = ()
    default_cuts: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.layers:
            raise ModelError("the model has no layers; give at least one LayerSpec")
        seen: set[str] = set()
        for name in self.names:
            if not name or not all(name.split(".")):
                raise ModelError(f"{name!r} is not a layer name; use words joined by single dots")
            if name in seen:
                raise ModelError(f"two layers are named {name!r}; give each its own name")
            seen.add(name)
        for name in self.names:
            parts = name.split(".")
            for end in range(1, len(parts)):
                if ".".join(parts[:end]) in seen:
                    raise ModelError(
                        f"layer {'.'.join(parts[:end])!r} and layer {name!r} overlap: "
                        "one name must not be the beginning of another; rename one"
                    )
        tied: set[str] = set()
        for group in self.ties:
            if len(set(group)) < 2:
                raise ModelError(f"the tie {group!r} needs two or more different parameters")
            for name in group:
                self.layer_of(name)
                if name in tied:
                    raise ModelError(f"{name!r} stands in two ties; join them into one group")
                tied.add(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers, in order."""
        return tuple(layer.name for layer in self.layers)

    def layer_of(self, parameter: str) -> int:
        """Return the index of the layer that a full parameter name belongs to.

        Raises:
            ModelError: no layer's name is a prefix of it.
        """
        for index, name in enumerate(self.names):
            if parameter.startswith(f"{name}."):
                return index
        raise ModelError(
            f"the tie names {parameter!r}, which belongs to no layer"
            f"{nearest(parameter.split('.')[0], self.names)}"
        )
