"""A multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import prod

from torch import nn

from freewheel.models.layers import LayeredModel, LayerSpec
from freewheel.models.zoo.base import activation_builder, models, positive
from freewheel.models.zoo.cuts import equal_cuts


@models.register("mlp")
def mlp(
    input_shape: Sequence[int] = (1, 28, 28),
    num_classes: int = 10,
    hidden: Sequence[int] = (512, 512),
    activation: str = "relu",
) -> LayeredModel:
    """Linear layers with an activation between: 784-512-512-10 by default, 669,706 parameters.

    Layers: ``flatten``, then ``fc1``, ``act1``, ``fc2``, ``act2``, ... and ``head``. By default it
    is cut after activations; two stages are 784-512 | 512-512-10, and 512 values a sample cross.

    Args:
        input_shape: shape of one sample, of one or more dimensions.
        num_classes: width of the output.
        hidden: widths of the hidden layers; may be empty.
        activation: ``relu``, ``gelu``, ``silu``, ``tanh`` or ``leaky_relu``.

    Returns:
        A model of inputs (B, ...input_shape), float, and outputs (B, num_classes).

    Raises:
        ConfigError: a width below 1 or an unknown activation.

    Example:
        >>> from freewheel.models.zoo import mlp
        >>> mlp(hidden=(64,)).names
        ('flatten', 'fc1', 'act1', 'head')
    """
    widths = (prod(positive("input_shape", input_shape)), *hidden)
    positive("hidden and num_classes", (*hidden, num_classes))
    act = activation_builder(activation)
    layers = [LayerSpec("flatten", nn.Flatten)]
    for number, (width_in, width_out) in enumerate(pairwise(widths), start=1):
        layers.append(LayerSpec(f"fc{number}", partial(nn.Linear, width_in, width_out)))
        layers.append(LayerSpec(f"act{number}", act))
    layers.append(LayerSpec("head", partial(nn.Linear, widths[-1], num_classes)))
    ends = [*(f"act{number}" for number in range(1, len(widths))), "head"]
    return LayeredModel(tuple(layers), default_cuts=equal_cuts(ends))
