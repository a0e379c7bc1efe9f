"""Activation checkpointing: the same values, buffers updated once, and activations let go."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import Tensor, nn

from freewheel.models import checkpointed, partition


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 8),
        nn.BatchNorm1d(8),
        nn.Dropout(0.3),
        nn.Linear(8, 8),
        nn.BatchNorm1d(8, momentum=None),
        nn.ReLU(inplace=True),
        nn.Linear(8, 3),
    )


@pytest.mark.parametrize("num_batches", [1, 3])
def test_gradients_buffers_and_dropout_are_those_of_plain_training(num_batches: int) -> None:
    """Several forward passes before the first backward pass, as in GPipe."""
    torch.manual_seed(0)
    model = network()
    plain = copy.deepcopy(model)
    batches = [torch.randn(size, 6) for size in (8, 5, 2)[:num_batches]]
    stage = checkpointed(partition(model, 1).build(0))
    torch.manual_seed(1)
    expected = [plain(x) for x in batches]
    torch.manual_seed(1)
    got = [stage(x) for x in batches]
    for ours, theirs in zip(got, expected, strict=True):
        assert torch.equal(ours, theirs)
        ours.square().sum().backward()
        theirs.square().sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert model[1].num_batches_tracked.item() == num_batches


def test_activations_are_let_go_after_the_forward_pass() -> None:
    stage = partition(network(), 1).build(0)
    seen: list[weakref.ref[Tensor]] = []
    hook = lambda module, args, out: seen.append(weakref.ref(out))  # noqa: E731 - used once, beside its registration
    stage.get_submodule("3").register_forward_hook(hook)
    kept = stage(torch.randn(4, 6))
    assert seen[0]() is not None
    dropped = checkpointed(stage)(torch.randn(4, 6))
    assert seen[1]() is None
    (kept.sum() + dropped.sum()).backward()
    assert len(seen) == 3


def test_evaluation_is_a_plain_call() -> None:
    stage = partition(network(), 1).build(0).eval()
    x = torch.randn(1, 6)
    assert torch.equal(checkpointed(stage)(x), stage(x))
    with torch.no_grad():
        assert not checkpointed(stage.train())(torch.randn(4, 6)).requires_grad
