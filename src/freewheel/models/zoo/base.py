"""The registry of models by name, and what the entries have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from freewheel.errors import ConfigError, nearest
from freewheel.models.layers import LayeredModel
from freewheel.registry import Registry

#: Functions of ``(input_shape, num_classes, **settings)`` that return a ``LayeredModel``.
models: Registry[LayeredModel] = Registry(kind="model", group="freewheel.models")

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "leaky_relu": nn.LeakyReLU,
}


def activation_builder(name: str) -> Callable[[], nn.Module]:
    """Return what builds the activation of that name.

    Raises:
        ConfigError: there is none of that name.

    Example:
        >>> from freewheel.models.zoo.base import activation_builder
        >>> activation_builder("relu")()
        ReLU()
    """
    if name not in _ACTIVATIONS:
        raise ConfigError(f"unknown activation {name!r}{nearest(name, _ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def norm_layer(name: str, channels: int) -> nn.Module:
    """Make the normalisation of that name for images: ``batch``, ``group`` or ``none``.

    Group normalisation has 8 groups where they divide the channels, else the largest number below
    8 that does. It keeps no running statistics, so it is the same under every protocol.

    Example:
        >>> from freewheel.models.zoo.base import norm_layer
        >>> norm_layer("group", 6).num_groups, norm_layer("group", 16).num_groups
        (6, 8)
    """
    check_norm(name)
    if name == "batch":
        return nn.BatchNorm2d(channels)
    if name == "group":
        groups = next(count for count in range(8, 0, -1) if channels % count == 0)
        return nn.GroupNorm(groups, channels)
    return nn.Identity()


def check_norm(name: str) -> None:
    """Refuse an unknown normalisation before any layer is built."""
    known = ("batch", "group", "none")
    if name not in known:
        raise ConfigError(f"unknown norm {name!r}{nearest(name, known)}")


def positive(setting: str, values: Sequence[int]) -> tuple[int, ...]:
    """Return the values as a tuple; refuse an empty list and anything that is no count."""
    if not values or any(
        isinstance(value, bool) or not isinstance(value, int) or value < 1 for value in values
    ):
        raise ConfigError(f"{setting} must be one or more integers >= 1, got {list(values)!r}")
    return tuple(values)


def image_shape(name: str, input_shape: Sequence[int], smallest: int) -> tuple[int, int, int]:
    """Return (channels, height, width) of one image, where (height, width) means one channel.

    Raises:
        ConfigError: another number of dimensions, or an image smaller than the model can take.

    Example:
        >>> from freewheel.models.zoo.base import image_shape
        >>> image_shape("lenet", (8, 8), smallest=8)
        (1, 8, 8)
    """
    shape = positive("input_shape", tuple(input_shape))
    if len(shape) == 2:
        shape = (1, *shape)
    if len(shape) != 3:
        raise ConfigError(
            f"model {name!r} takes images (channels, height, width), got samples of shape {shape}; "
            "choose data of images, or model 'mlp', which takes any shape"
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise ConfigError(
            f"model {name!r} needs images of {smallest} x {smallest} at least, got "
            f"{height} x {width}; use model 'mlp'"
        )
    return channels, height, width


class AddChannel(nn.Module):
    """Give images (B, H, W) a channel; leave (B, C, H, W) as they are."""

    def forward(self, images: Tensor) -> Tensor:
        """Return images (B, C, H, W)."""
        return images.unsqueeze(1) if images.dim() == 3 else images
