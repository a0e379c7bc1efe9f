"""A network for two images side by side, whose label depends on both."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from freewheel.errors import ConfigError
from freewheel.models.layers import LayeredModel, LayerSpec
from freewheel.models.zoo.base import image_shape, models, positive
from freewheel.models.zoo.cuts import preferred_cuts


class Halves(nn.Module):
    """Split images (B, C, H, 2W), or (B, H, 2W), at the middle into (B, 2, C, H, W)."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the left and the right half of each image along dimension 1."""
        images = images.unsqueeze(1) if images.dim() == 3 else images
        batch, depth, height, both = images.shape
        return images.reshape(batch, depth, height, 2, both // 2).movedim(3, 1)


class PairConv(nn.Conv2d):
    """One convolution applied to both images of each pair."""

    def forward(self, pairs: Tensor) -> Tensor:
        """Map (B, 2, C, H, W) to (B, 2, C', H', W')."""
        mapped = super().forward(pairs.flatten(0, 1))
        return mapped.reshape(-1, 2, *mapped.shape[1:])


@models.register("pair_cnn")
def pair_cnn(
    input_shape: Sequence[int] = (1, 28, 56),
    num_classes: int = 10,
    channels: Sequence[int] = (8, 16),
    hidden: Sequence[int] = (128, 128),
) -> LayeredModel:
    """The same two strided convolutions on each of two images, then linear layers 128-128-10.

    No image alone tells the label, so a first stage that learns without the second has little to
    go by: a task on which saved communication costs something.

    Layers: ``halves``, ``conv1``, ``act1``, ``conv2``, ``act2``, ``flatten``, ``fc1``, ``fc_act1``,
    ..., ``head``. By default two stages are cut after ``flatten``: 2 x 16 x 4 x 4 = 512 values a
    sample cross. More stages are cut after the activations of the linear layers, then ``act1``.

    Args:
        input_shape: (channels, height, 2 x width) or (height, 2 x width), from 8 x 16.
        num_classes: width of the output.
        channels: outputs of the two convolutions, each 5 x 5 with stride 2 (3 x 3, padded, where a
            side is shorter than 13).
        hidden: widths of the hidden linear layers.

    Returns:
        A model of images (B, C, H, 2W), float, and outputs (B, num_classes).

    Raises:
        ConfigError: a setting out of range, or samples that are no pairs of images.

    Example:
        >>> import torch
        >>> from freewheel.models import partition
        >>> from freewheel.models.zoo import pair_cnn
        >>> parts = partition(pair_cnn(), stages=2)
        >>> parts.build(0)(torch.zeros(3, 1, 28, 56)).shape
        torch.Size([3, 512])
    """
    depth, height, both = image_shape("pair_cnn", input_shape, smallest=8)
    channels = positive("channels", channels)
    positive("hidden and num_classes", (*hidden, num_classes))
    if len(channels) != 2:
        raise ConfigError(f"channels must be two numbers, got {list(channels)}")
    if both % 2 or both < 16:
        raise ConfigError(
            f"model 'pair_cnn' takes two images side by side, each 8 x 8 at least; a width of "
            f"{both} cannot be halved into such"
        )
    width = both // 2
    kernel, padding = (5, 0) if min(height, width) >= 13 else (3, 1)
    layers = [LayerSpec("halves", Halves)]
    for number, out in enumerate(channels, start=1):
        conv = partial(PairConv, depth, out, kernel, stride=2, padding=padding)
        layers += [LayerSpec(f"conv{number}", conv), LayerSpec(f"act{number}", nn.ReLU)]
        height, width = ((side + 2 * padding - kernel) // 2 + 1 for side in (height, width))
        depth = out
    layers.append(LayerSpec("flatten", nn.Flatten))
    features = 2 * depth * height * width
    for number, out in enumerate(hidden, start=1):
        layers += [
            LayerSpec(f"fc{number}", partial(nn.Linear, features, out)),
            LayerSpec(f"fc_act{number}", nn.ReLU),
        ]
        features = out
    layers.append(LayerSpec("head", partial(nn.Linear, features, num_classes)))
    preferred = ["flatten", *(f"fc_act{number}" for number in range(1, len(hidden) + 1)), "act1"]
    names = [layer.name for layer in layers]
    return LayeredModel(tuple(layers), default_cuts=preferred_cuts(names, preferred))
