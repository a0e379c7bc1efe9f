"""How parameters are cut over servers, and that an optimizer on the parts is the optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from freewheel.errors import ConfigError, ModelError
from freewheel.runtime.servers.packing import Packing
from freewheel.runtime.servers.part_optimizer import ELEMENTWISE, TENSORWISE, split_for
from freewheel.runtime.servers.parts import GRAIN, size_of, split_flat, split_tensors
from freewheel.runtime.servers.served_part import Buffers, ServedPart, combined

SIZES = st.lists(st.integers(1, 700), min_size=1, max_size=4)


@given(SIZES, st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_flat_parts_hold_every_element_once_and_are_balanced(
    sizes: list[int], servers: int
) -> None:
    total = sum(sizes)
    if servers > total:
        with pytest.raises(ConfigError, match=r"every server needs at least one"):
            split_flat(sizes, servers)
        return
    parts = split_flat(sizes, servers)
    seen = [(s.parameter, e) for part in parts for s in part for e in range(s.start, s.stop)]
    assert seen == [(index, e) for index, size in enumerate(sizes) for e in range(size)]
    assert all(part for part in parts)
    for part in parts:
        # each cut lies at most half a grain from where it should be
        assert abs(size_of(part) - total / servers) <= GRAIN + 1
        for piece in part:
            if total >= 2 * GRAIN * servers:
                assert piece.start % GRAIN == 0


def test_whole_tensors_go_to_whoever_has_least() -> None:
    # 90 | 60 | 50 -> the 40 joins the 50 -> 90, 60, 90 -> the 10 joins the 60
    parts = split_tensors([10, 90, 40, 60, 50], 3)
    assert [[s.parameter for s in part] for part in parts] == [[1], [0, 3], [2, 4]]
    with pytest.raises(ConfigError, match="only 2 parameter tensors"):
        split_tensors([10, 10], 3)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(37, 29), nn.Tanh(), nn.Linear(29, 11))


def optimizers() -> list[tuple[str, dict[str, Any]]]:
    return [
        ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2, "nesterov": True}),
        ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
        *((name, {"lr": 0.01}) for name in sorted((ELEMENTWISE | TENSORWISE) - {"SGD", "AdamW"})),
    ]


@pytest.mark.parametrize(("name", "options"), optimizers(), ids=lambda value: str(value)[:12])
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_parts_together_do_what_the_optimizer_does_bit_for_bit(
    name: str, options: dict[str, Any], servers: int
) -> None:
    plain, cut = model(), model()
    if name == "Muon":  # it takes matrices only
        for module in (plain, cut):
            module[0].bias, module[2].bias = None, None
    if servers > len(list(cut.parameters())):
        return
    kind = getattr(torch.optim, name)
    reference = kind(plain.parameters(), **options)
    parameters = list(cut.parameters())
    parts, whole = split_for(kind(parameters, **options), parameters, servers)
    served = [ServedPart(parameters, part, kind(parameters, **options), whole) for part in parts]
    packing = Packing(parameters, parts)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        gradients = [torch.randn(p.shape, generator=generator) for p in plain.parameters()]
        for parameter, gradient in zip(plain.parameters(), gradients, strict=True):
            parameter.grad = gradient.clone()
        reference.step()
        for part, vector in zip(served, packing.pack(gradients), strict=True):
            part.set_gradient(vector)
            part.step()
    for server, part in enumerate(served):
        packing.unpack(server, part.snapshot())
    for ours, theirs in zip(cut.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_parameter_without_a_gradient_is_left_alone() -> None:
    """Scenario 9: weight decay and momentum do not move what nobody used."""
    module = model()
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.5)
    parts, whole = split_for(optimizer, parameters, 1)
    part = ServedPart(parameters, parts[0], optimizer, whole)
    before = part.snapshot().clone()
    part.set_gradient(torch.ones(part.size), absent=frozenset({1}))
    part.step()
    after = torch.split(part.snapshot(), [p.numel() for p in parameters])
    for index, value in enumerate(torch.split(before, [p.numel() for p in parameters])):
        assert torch.equal(value, after[index]) == (index == 1)


def test_parameter_groups_stay_with_their_pieces() -> None:
    module = model()
    parameters = list(module.parameters())
    biases = [p for p in parameters if p.dim() == 1]
    matrices = [p for p in parameters if p.dim() == 2]
    optimizer = torch.optim.SGD(
        [{"params": matrices, "lr": 1.0}, {"params": biases, "lr": 10.0}], lr=0.0
    )
    parts, whole = split_for(optimizer, parameters, 1)
    part = ServedPart(parameters, parts[0], optimizer, whole)
    before = part.snapshot().clone()
    part.set_gradient(torch.ones(part.size))
    part.step()
    moved = torch.split(before - part.snapshot(), [p.numel() for p in parameters])
    for parameter, change in zip(parameters, moved, strict=True):
        expected = 10.0 if parameter.dim() == 1 else 1.0
        assert torch.allclose(change, torch.full_like(change, expected), atol=1e-5)


@pytest.mark.parametrize(
    ("make", "servers", "message"),
    [
        (lambda p: torch.optim.LBFGS(p), 1, "optimizer LBFGS cannot run on a parameter server"),
        (lambda p: torch.optim.SparseAdam(p), 1, "optimizer SparseAdam cannot"),
        (lambda p: Mine(p, {}), 2, "optimizer Mine is not one of torch.optim"),
        (lambda p: torch.optim.Adafactor(p), 5, "layout.servers = 5.* only 4 parameter tensors"),
        (lambda p: torch.optim.SGD(p), 10**6, r"layout.servers = 1000000.* only 1432 parameters"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(make: Any, servers: int, message: str) -> None:
    parameters = list(model().parameters())
    with pytest.raises(ConfigError, match=message):
        split_for(make(parameters), parameters, servers)


class Mine(torch.optim.Optimizer):
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(parameter.grad)


def test_an_optimizer_of_the_users_own_runs_on_one_server() -> None:
    parameters = list(model().parameters())
    optimizer = Mine(parameters, {})
    parts, whole = split_for(optimizer, parameters, 1)
    part = ServedPart(parameters, parts[0], optimizer, whole)
    before = part.snapshot().clone()
    part.set_gradient(torch.ones(part.size))
    part.step()
    assert torch.equal(part.snapshot(), before - 1)


def test_two_dtypes_and_nothing_to_train_are_refused() -> None:
    two = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, dtype=torch.float64))]
    with pytest.raises(ModelError, match="one dtype, got float32, float64"):
        Packing(two, split_flat([2, 2], 1))
    with pytest.raises(ModelError, match="no trainable parameters"):
        split_for(None, [], 1)


def test_parameters_in_another_memory_order_travel_by_their_elements() -> None:
    weight = nn.Parameter(torch.arange(24.0).view(2, 3, 2, 2).to(memory_format=torch.channels_last))
    packing = Packing([weight], split_flat([24], 2))
    first, second = packing.pack_parameters()
    assert torch.equal(torch.cat([first, second]), torch.arange(24.0))
    packing.unpack(1, second + 100)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    expected = torch.cat([torch.arange(12.0), torch.arange(112.0, 124.0)])
    assert torch.equal(weight.detach().reshape(-1), expected)


def test_folds_by_hand() -> None:
    parameters = [nn.Parameter(torch.tensor([1.0, 2.0]))]
    part = ServedPart(parameters, split_flat([2], 1)[0], None, False)
    part.move([torch.tensor([1.0, 1.0]), torch.tensor([3.0, 5.0])], [0.5, 0.5], "delta")
    assert part.snapshot().tolist() == [1.0 + 0.5 + 1.5, 2.0 + 0.5 + 2.5]
    # 0.75 own + 0.25 theirs
    part.move([torch.tensor([7.0, 9.0])], [0.25], "parameters")
    assert part.snapshot().tolist() == [0.75 * 3 + 0.25 * 7, 0.75 * 5 + 0.25 * 9]
    part.move([torch.tensor([7.0, 9.0]), torch.tensor([1.0, 1.0])], [0.5, 0.5], "parameters")
    assert part.snapshot().tolist() == [4.0, 5.0]


def test_weight_zero_keeps_nan_out() -> None:
    vectors = [torch.tensor([float("nan")]), torch.tensor([2.0])]
    assert combined(vectors, [0.0, 0.5]).tolist() == [1.0]


def test_memory_is_used_again_only_once_nobody_holds_it() -> None:
    buffers = Buffers(4, torch.float32)
    first = buffers.take()
    address, view = first.data_ptr(), first[1:]
    del first
    second = buffers.take()
    assert second.data_ptr() != address, "a view of the first still lives"
    del view
    assert buffers.take().data_ptr() == address
    as_bytes = second.view(torch.uint8).numpy().data.cast("B")
    address = second.data_ptr()
    del second
    held = [buffers.take() for _ in range(3)]
    assert address not in [tensor.data_ptr() for tensor in held], "bytes of it are on their way"
    assert as_bytes.nbytes == 16
