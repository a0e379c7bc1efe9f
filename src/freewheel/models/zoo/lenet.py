"""LeNet, for small images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from freewheel.models.layers import LayeredModel, LayerSpec
from freewheel.models.zoo.base import (
    AddChannel,
    activation_builder,
    check_norm,
    image_shape,
    models,
    norm_layer,
    positive,
)
from freewheel.models.zoo.cuts import preferred_cuts


@models.register("lenet")
def lenet(
    input_shape: Sequence[int] = (1, 28, 28),
    num_classes: int = 10,
    channels: Sequence[int] = (16, 32),
    hidden: Sequence[int] = (120, 84),
    norm: str = "none",
    activation: str = "relu",
) -> LayeredModel:
    """Convolutions and pooling, then linear layers: 120,382 parameters by default on 28 x 28.

    The first convolution is 5 x 5 and padded, the second 5 x 5 and not, later ones 3 x 3 and
    padded; the first two are each followed by 2 x 2 max pooling. Images smaller than 16 x 16 have
    3 x 3 padded convolutions throughout, so that 8 x 8 digits are enough. ``channels = [6, 16, 32],
    norm = "group", hidden = [120]`` is the small network of many of our pilots.

    Layers: ``image``, ``conv1``, ``norm1``, ``act1``, ``pool1``, ``conv2``, ..., ``flatten``,
    ``fc1``, ``fc_act1``, ..., ``head``. By default two stages are cut after the last convolution's
    block (800 values a sample with 32 channels and 28 x 28 images), more after ``pool1`` and after
    the linear layers' activations.

    Args:
        input_shape: (channels, height, width) or (height, width), from 8 x 8.
        num_classes: width of the output.
        channels: outputs of each convolution.
        hidden: widths of the hidden linear layers.
        norm: ``none``, ``batch`` or ``group``, after each convolution.
        activation: ``relu``, ``gelu``, ``silu``, ``tanh`` or ``leaky_relu``.

    Returns:
        A model of images (B, C, H, W), float, and outputs (B, num_classes).

    Raises:
        ConfigError: a setting out of range, or samples that are no images.

    References:
        Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, "Gradient-based learning applied to document
        recognition", 1998.

    Example:
        >>> from freewheel.models import partition
        >>> from freewheel.models.zoo import lenet
        >>> partition(lenet(input_shape=(8, 8)), stages=2).cuts
        ('pool2',)
    """
    depth, height, width = image_shape("lenet", input_shape, smallest=8)
    channels = positive("channels", channels)
    positive("hidden and num_classes", (*hidden, num_classes))
    check_norm(norm)
    act = activation_builder(activation)
    small = min(height, width) < 16
    layers = [LayerSpec("image", AddChannel)]
    ends: list[str] = []
    for number, out in enumerate(channels, start=1):
        kernel, padding = (3, 1) if small or number > 2 else (5, 2 if number == 1 else 0)
        layers += [
            LayerSpec(f"conv{number}", partial(nn.Conv2d, depth, out, kernel, padding=padding)),
            *(
                []
                if norm == "none"
                else [LayerSpec(f"norm{number}", partial(norm_layer, norm, out))]
            ),
            LayerSpec(f"act{number}", act),
        ]
        shrink = kernel - 1 - 2 * padding
        height, width, depth = height - shrink, width - shrink, out
        if number <= 2:
            layers.append(LayerSpec(f"pool{number}", partial(nn.MaxPool2d, 2)))
            height, width = height // 2, width // 2
        ends.append(layers[-1].name)
    layers.append(LayerSpec("flatten", nn.Flatten))
    linear, activations = _linear(depth * height * width, hidden, num_classes, act)
    layers += linear
    preferred = [ends[-1], *ends[:-1], *activations]
    names = [layer.name for layer in layers]
    return LayeredModel(tuple(layers), default_cuts=preferred_cuts(names, preferred))


def _linear(
    width: int, hidden: Sequence[int], num_classes: int, act: Callable[[], nn.Module]
) -> tuple[list[LayerSpec], list[str]]:
    """Return the linear layers, and the names of the activations between them."""
    layers: list[LayerSpec] = []
    for number, out in enumerate(hidden, start=1):
        layers.append(LayerSpec(f"fc{number}", partial(nn.Linear, width, out)))
        layers.append(LayerSpec(f"fc_act{number}", act))
        width = out
    layers.append(LayerSpec("head", partial(nn.Linear, width, num_classes)))
    return layers, [f"fc_act{number}" for number in range(1, len(hidden) + 1)]
