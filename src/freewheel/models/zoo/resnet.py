"""ResNet-8, the residual network of the MLPerf Tiny benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from freewheel.models.layers import LayeredModel, LayerSpec
from freewheel.models.zoo.base import (
    AddChannel,
    check_norm,
    image_shape,
    models,
    norm_layer,
    positive,
)
from freewheel.models.zoo.cuts import preferred_cuts


class Stem(nn.Sequential):
    """Convolution, normalisation, ReLU."""

    def __init__(self, channels_in: int, channels_out: int, norm: str) -> None:
        super().__init__(
            nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=norm == "none"),
            norm_layer(norm, channels_out),
            nn.ReLU(),
        )


class ResidualBlock(nn.Module):
    """Two convolutions with a shortcut around them; 1 x 1 where the shape changes.

    Args:
        channels_in: of the input.
        channels_out: of the output.
        stride: of the first convolution and of the shortcut.
        norm: ``batch``, ``group`` or ``none``.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int, norm: str) -> None:
        super().__init__()
        bias = norm == "none"
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=bias)
        self.norm1 = norm_layer(norm, channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=bias)
        self.norm2 = norm_layer(norm, channels_out)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and channels_in == channels_out
            else nn.Conv2d(channels_in, channels_out, 1, stride)
        )

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return relu(f(x) + shortcut(x))."""
        inner = F.relu(self.norm1(self.conv1(x_BCHW)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x_BCHW))


class Pool(nn.Module):
    """Mean over height and width."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return (B, C)."""
        return x_BCHW.mean(dim=(2, 3))


@models.register("resnet8")
def resnet8(
    input_shape: Sequence[int] = (3, 32, 32),
    num_classes: int = 10,
    channels: Sequence[int] = (16, 32, 64),
    norm: str = "batch",
) -> LayeredModel:
    """A residual network of eight layers with weights: about 78,000 parameters.

    Layers: ``image``, ``stem``, ``block1``, ``block2``, ``block3``, ``pool``, ``head``. By default
    two stages are cut after ``block2`` (half the stem's values), three also after ``block1``, four
    after ``stem``, five after ``block3``.

    Args:
        input_shape: (channels, height, width) or (height, width), from 8 x 8.
        num_classes: width of the output.
        channels: of each residual block; the first block keeps the image's size, later ones halve
            it. Blocks beyond the third are allowed.
        norm: ``batch``, ``group`` or ``none``. Batch statistics are those of a micro-batch.

    Returns:
        A model of images (B, C, H, W), float, and outputs (B, num_classes).

    Raises:
        ConfigError: a setting out of range, or samples that are no images.

    References:
        K. He, X. Zhang, S. Ren and J. Sun, "Deep residual learning for image recognition", 2016.
        C. Banbury et al., "MLPerf Tiny benchmark", 2021.

    Example:
        >>> from freewheel.models import partition
        >>> from freewheel.models.zoo import resnet8
        >>> partition(resnet8(), stages=3).cuts
        ('block1', 'block2')
    """
    depth, _, _ = image_shape("resnet8", input_shape, smallest=8)
    channels = positive("channels", channels)
    positive("num_classes", (num_classes,))
    check_norm(norm)
    layers = [
        LayerSpec("image", AddChannel),
        LayerSpec("stem", partial(Stem, depth, channels[0], norm)),
    ]
    depth = channels[0]
    for number, out in enumerate(channels, start=1):
        stride = 1 if number == 1 else 2
        layers.append(LayerSpec(f"block{number}", partial(ResidualBlock, depth, out, stride, norm)))
        depth = out
    layers += [
        LayerSpec("pool", Pool),
        LayerSpec("head", partial(nn.Linear, depth, num_classes)),
    ]
    blocks = [f"block{number}" for number in range(len(channels), 0, -1)]
    preferred = [*blocks[1:], "stem", blocks[0]]
    names = [layer.name for layer in layers]
    return LayeredModel(tuple(layers), default_cuts=preferred_cuts(names, preferred))
