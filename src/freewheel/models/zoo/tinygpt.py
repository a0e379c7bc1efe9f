"""A small decoder-only transformer for bytes.

Shapes: B batch, T context positions, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import sqrt
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from freewheel.errors import ConfigError
from freewheel.models.layers import LayeredModel, LayerSpec
from freewheel.models.zoo.base import models, positive
from freewheel.models.zoo.cuts import equal_cuts


class Embedding(nn.Module):
    """Token plus position embeddings.

    Args:
        vocabulary: V.
        context: the largest T.
        width: D.
    """

    def __init__(self, vocabulary: int, context: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return embeddings (B, T, D) of tokens (B, T), int64."""
        positions = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        embedded: Tensor = self.token(tokens_BT) + self.position(positions)
        return embedded


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each after layer normalisation.

    Args:
        width: D.
        heads: number of attention heads; divides D.
        dropout: probability, on both residual branches.
        std: of the initial values of the two projections back to the residual stream.
    """

    def __init__(self, width: int, heads: int, dropout: float, std: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        for linear in (self.qkv, self.project, self.expand, self.contract):
            inner = linear in (self.qkv, self.expand)
            nn.init.normal_(linear.weight, std=0.02 if inner else std)
            nn.init.zeros_(linear.bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the next residual stream (B, T, D)."""
        x_BTD = x_BTD + self.dropout(self.project(self._attend(self.norm1(x_BTD))))
        inner = F.gelu(self.expand(self.norm2(x_BTD)))
        return x_BTD + cast(Tensor, self.dropout(self.contract(inner)))

    def _attend(self, x_BTD: Tensor) -> Tensor:
        batch, length, width = x_BTD.shape
        split = self.qkv(x_BTD).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, width)


class Head(nn.Linear):
    """Logits over the vocabulary, without a bias."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__(width, vocabulary, bias=False)
        nn.init.normal_(self.weight, std=0.02)


@models.register("tinygpt")
def tinygpt(
    input_shape: Sequence[int] = (128,),
    num_classes: int = 256,
    layers: int = 4,
    width: int = 128,
    heads: int = 4,
    context: int | None = None,
    dropout: float = 0.0,
    tied: bool = False,
) -> LayeredModel:
    """A byte-level GPT: 4 blocks of width 128 and 875,264 parameters by default.

    Layers: ``embed``, ``block0``, ``block1``, ..., ``norm``, ``head``. By default the blocks are
    shared out evenly, ``embed`` with the first and ``norm`` and ``head`` with the last; T x D
    values a sample cross each cut.

    Args:
        input_shape: (T,), the length of a sample.
        num_classes: V, the size of the vocabulary.
        layers: number of blocks.
        width: D.
        heads: attention heads; must divide the width.
        context: the longest sample; T when None.
        dropout: probability on the residual branches.
        tied: whether ``head.weight`` is ``embed.token.weight``.

    Returns:
        A model of tokens (B, T), int64, and logits (B, T, V).

    Raises:
        ConfigError: a setting out of range.

    References:
        A. Radford et al., "Language models are unsupervised multitask learners", 2019.

    Example:
        >>> from freewheel.models import partition
        >>> from freewheel.models.zoo import tinygpt
        >>> parts = partition(tinygpt(tied=True), stages=2)
        >>> parts.cuts, parts.ties
        (('block1',), (((0, 'embed.token.weight'), (1, 'head.weight')),))
    """
    shape = positive("input_shape", input_shape)
    if len(shape) != 1:
        raise ConfigError(
            f"model 'tinygpt' takes samples of tokens (length,), got samples of shape {shape}"
        )
    context = shape[0] if context is None else context
    positive(
        "num_classes, layers, width, heads and context",
        (num_classes, layers, width, heads, context),
    )
    if width % heads:
        raise ConfigError(f"heads must divide width, got width {width} and heads {heads}")
    if context < shape[0]:
        raise ConfigError(f"context must be >= the length of a sample, {shape[0]}, got {context}")
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout must be >= 0 and < 1, got {dropout}")
    std = 0.02 / sqrt(2 * layers)
    blocks = [f"block{number}" for number in range(layers)]
    specs = (
        LayerSpec("embed", partial(Embedding, num_classes, context, width)),
        *(LayerSpec(name, partial(Block, width, heads, dropout, std)) for name in blocks),
        LayerSpec("norm", partial(nn.LayerNorm, width)),
        LayerSpec("head", partial(Head, width, num_classes)),
    )
    ties = (("embed.token.weight", "head.weight"),) if tied else ()
    return LayeredModel(specs, ties, equal_cuts(blocks))
