"""The zoo: sizes against arithmetic, shapes, default cuts, settings, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from freewheel.errors import ConfigError
from freewheel.models import partition
from freewheel.models.zoo import models


def linear(width_in: int, width_out: int) -> int:
    return (width_in + 1) * width_out


def conv(channels_in: int, channels_out: int, kernel: int) -> int:
    return channels_out * (channels_in * kernel**2 + 1)


BLOCK = 12 * 128**2 + 13 * 128  # attention 4 DD + 4 D, perceptron 8 DD + 5 D, norms 4 D

SIZES: list[tuple[str, dict[str, Any], int]] = [
    ("mlp", {}, linear(784, 512) + linear(512, 512) + linear(512, 10)),
    ("mlp", {"hidden": [], "input_shape": [8, 8]}, linear(64, 10)),
    (
        "lenet",
        {},
        conv(1, 16, 5) + conv(16, 32, 5) + linear(800, 120) + linear(120, 84) + linear(84, 10),
    ),
    (
        "lenet",
        {"channels": [6, 16, 32], "norm": "group", "hidden": [120]},
        conv(1, 6, 5)
        + conv(6, 16, 5)
        + conv(16, 32, 3)
        + 2 * 54
        + linear(800, 120)
        + linear(120, 10),
    ),
    (
        "lenet",
        {"input_shape": [8, 8]},
        conv(1, 16, 3) + conv(16, 32, 3) + linear(128, 120) + linear(120, 84) + linear(84, 10),
    ),
    (
        "resnet8",
        {"input_shape": [1, 28, 28]},
        # Convolutions before a norm have no bias; shortcuts have one.
        16 * 9
        + 16 * 16 * 18
        + 16 * 32 * 9
        + 32 * 32 * 9
        + 32 * 64 * 9
        + 64 * 64 * 9
        + 2 * (16 * 3 + 32 * 2 + 64 * 2)
        + conv(16, 32, 1)
        + conv(32, 64, 1)
        + linear(64, 10),
    ),
    ("tinygpt", {}, 256 * 128 + 128 * 128 + 4 * BLOCK + 2 * 128 + 128 * 256),
    ("tinygpt", {"tied": True}, 256 * 128 + 128 * 128 + 4 * BLOCK + 2 * 128),
    (
        "pair_cnn",
        {},
        conv(1, 8, 5) + conv(8, 16, 5) + linear(512, 128) + linear(128, 128) + linear(128, 10),
    ),
]


@pytest.mark.parametrize(("name", "given", "expected"), SIZES)
def test_number_of_parameters(name: str, given: dict[str, Any], expected: int) -> None:
    whole = partition(models.create(name, given), 1).build(0)
    assert sum(parameter.numel() for parameter in whole.parameters()) == expected


@pytest.mark.parametrize(
    ("name", "shape", "given"),
    [
        ("mlp", (3, 5), {}),
        ("lenet", (28, 28), {}),
        ("lenet", (8, 8), {}),
        ("lenet", (3, 13, 17), {"norm": "batch"}),
        ("lenet", (1, 16, 16), {"channels": [4]}),
        ("resnet8", (1, 8, 8), {}),
        ("resnet8", (3, 32, 32), {"norm": "group", "channels": [4, 6, 8, 8]}),
        ("resnet8", (9, 9), {"norm": "none"}),
        ("pair_cnn", (1, 28, 56), {}),
        ("pair_cnn", (8, 16), {}),
        ("pair_cnn", (3, 13, 40), {"hidden": [16]}),
    ],
)
def test_images_of_every_size_give_a_score_per_class(
    name: str, shape: tuple[int, ...], given: dict[str, Any]
) -> None:
    model = models.create(name, {"input_shape": shape, "num_classes": 7, **given})
    for stages in (1, len(model.names)):
        parts = partition(model, stages)
        value = torch.rand(2, *shape)
        for stage in range(stages):
            value = parts.build(stage)(value)
        assert value.shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "cuts"),
    [
        ("mlp", [("act1",), ("act1", "act2")]),
        ("lenet", [("pool2",), ("pool1", "pool2"), ("pool1", "pool2", "fc_act1")]),
        ("resnet8", [("block2",), ("block1", "block2"), ("stem", "block1", "block2")]),
        ("tinygpt", [("block1",), ("block0", "block1"), ("block0", "block1", "block2")]),
        ("pair_cnn", [("flatten",), ("flatten", "fc_act1"), ("flatten", "fc_act1", "fc_act2")]),
    ],
)
def test_default_cuts(name: str, cuts: list[tuple[str, ...]]) -> None:
    model = models.create(name)
    assert [partition(model, stages).cuts for stages in range(2, len(cuts) + 2)] == cuts


@pytest.mark.parametrize(
    ("name", "shape", "values"),
    [("mlp", (784,), 512), ("lenet", (28, 28), 800), ("pair_cnn", (28, 56), 512)],
)
def test_values_a_sample_at_the_first_cut(name: str, shape: tuple[int, ...], values: int) -> None:
    sent = partition(models.create(name), 2).build(0)(torch.rand(3, *shape))
    assert sent.numel() == 3 * values


def test_both_images_of_a_pair_see_the_same_weights() -> None:
    stage = partition(models.create("pair_cnn"), 2).build(0)
    left, right = torch.rand(2, 1, 28, 28), torch.rand(2, 1, 28, 28)
    one = stage(torch.cat([left, right], dim=3))
    other = stage(torch.cat([right, left], dim=3))
    torch.testing.assert_close(one, torch.cat(other.split(256, dim=1)[::-1], dim=1))


def test_the_gpt_looks_back_only() -> None:
    model = partition(models.create("tinygpt", {"input_shape": [16], "layers": 2}), 1).build(0)
    tokens = torch.randint(256, (2, 16))
    changed = tokens.clone()
    changed[:, 10] = (changed[:, 10] + 1) % 256
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 16, 256)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])
    assert model(tokens[:, :5]).shape == (2, 5, 256)


def test_the_tied_gpt_starts_from_one_matrix_on_both_stages() -> None:
    """Scenario 12."""
    parts = partition(models.create("tinygpt", {"tied": True, "layers": 2}), 2, seed=1)
    (((first, name), (last, other)),) = parts.ties
    assert torch.equal(
        parts.build(first).get_parameter(name), parts.build(last).get_parameter(other)
    )


def test_norms_and_dropout_are_what_was_asked_for() -> None:
    def kinds(name: str, **given: Any) -> set[type]:
        return {type(m) for m in partition(models.create(name, given), 1).build(0).modules()}

    assert nn.BatchNorm2d in kinds("resnet8")
    assert nn.BatchNorm2d not in kinds("resnet8", norm="group")
    assert nn.GroupNorm in kinds("resnet8", norm="group")
    assert nn.GELU in kinds("mlp", activation="gelu")


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("mlp", {"hidden": [0]}, "integers >= 1, got"),
        ("mlp", {"hidden": [1.5]}, "integers >= 1, got"),
        ("mlp", {"num_classes": 0}, "integers >= 1"),
        ("mlp", {"activation": "relo"}, "did you mean 'relu'"),
        ("mlp", {"hiden": [1]}, "did you mean 'hidden'"),
        ("lenet", {"input_shape": [64]}, "takes images .* model 'mlp'"),
        ("lenet", {"input_shape": [7, 9]}, "8 x 8 at least, got 7 x 9"),
        ("lenet", {"channels": []}, "channels must be one or more"),
        ("lenet", {"norm": "bach"}, "did you mean 'batch'"),
        ("resnet8", {"norm": "layer"}, "known: batch, group, none"),
        ("pair_cnn", {"input_shape": [28, 57]}, "cannot be halved"),
        ("pair_cnn", {"channels": [1, 2, 3]}, "must be two numbers"),
        ("tinygpt", {"input_shape": [1, 28, 28]}, "samples of tokens"),
        ("tinygpt", {"heads": 3}, "heads must divide width"),
        ("tinygpt", {"context": 64}, "context must be >= the length of a sample, 128, got 64"),
        ("tinygpt", {"dropout": 1.0}, "dropout must be >= 0 and < 1"),
        ("resnet9", {}, "did you mean 'resnet8'"),
    ],
)
def test_bad_settings_are_refused(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        models.create(name, given)
