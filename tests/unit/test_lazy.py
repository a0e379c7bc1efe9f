"""Models on the meta device: only a stage's part gets memory, and its values depend on the seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from freewheel.errors import ModelError
from freewheel.models import on_meta, partition


def transformer() -> nn.Sequential:
    return nn.Sequential(
        nn.Embedding(20, 8),
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(5)),
        nn.GRU(8, 8, batch_first=True),
    )


def test_only_the_stage_that_is_built_gets_memory() -> None:
    # 2 x 10^6 x 10^6 float32 parameters are 8 TB: no machine could hold a whole one.
    model = on_meta(
        lambda: nn.Sequential(
            nn.Linear(4, 3), nn.Linear(10**6, 10**6), nn.Tanh(), nn.Linear(10**6, 10**6)
        )
    )
    first = partition(model, 2, ["0"]).build(0)
    assert first(torch.ones(2, 4)).shape == (2, 3)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_values_do_not_depend_on_the_cuts() -> None:
    whole = partition(on_meta(transformer), 1, seed=5).build(0).state_dict()
    for stages in (2, 3, 5):
        parts = partition(on_meta(transformer), stages, seed=5)
        state: dict[str, Tensor] = {}
        for stage in reversed(range(stages)):
            state |= parts.build(stage).state_dict()
        assert state.keys() == whole.keys() == transformer().state_dict().keys()
        for name, value in state.items():
            assert not value.is_meta
            assert torch.equal(value, whole[name]), name
    other = partition(on_meta(transformer), 1, seed=6).build(0).state_dict()
    assert not torch.equal(other["0.weight"], whole["0.weight"])


def test_values_are_spread_as_those_of_the_usual_constructor() -> None:
    """Means and deviations as the documented defaults have them, buffers and constants exact."""
    lazy = partition(on_meta(transformer), 2, seed=0)
    state = {**lazy.build(0).state_dict(), **lazy.build(1).state_dict()}
    # uniform(-1/sqrt(8), 1/sqrt(8)) has deviation 1/sqrt(24); 64 values, 5 standard errors.
    assert state["2.0.weight"].abs().max() <= 8**-0.5
    assert abs(state["2.0.weight"].std() - 24**-0.5) < 5 * 24**-0.5 / 64**0.5
    assert torch.equal(state["2.1.running_var"], torch.ones(5))
    assert state["2.1.num_batches_tracked"].dtype == torch.int64
    # nn.MultiheadAttention sets its child's bias to zero after the child was made.
    assert torch.equal(state["1.self_attn.out_proj.bias"], torch.zeros(8))


def test_a_tied_parameter_has_its_owners_value_on_every_stage() -> None:
    """Scenario 12."""

    def tied() -> nn.Sequential:
        model = nn.Sequential(nn.Embedding(9, 4), nn.Tanh(), nn.Linear(4, 9, bias=False))
        model[2].weight = model[0].weight
        return model

    parts = partition(on_meta(tied), 2, ["1"])
    assert parts.ties == (((0, "0.weight"), (1, "2.weight")),)
    first, last = parts.build(0), parts.build(1)
    assert torch.equal(first.get_parameter("0.weight"), last.get_parameter("2.weight"))
    whole = partition(on_meta(tied), 1).build(0)
    assert whole.get_parameter("0.weight") is whole.get_parameter("2.weight")
    assert torch.equal(whole.get_parameter("0.weight"), first.get_parameter("0.weight"))


def test_frozen_parameters_and_dtypes_are_kept() -> None:
    def factory() -> nn.Sequential:
        model = nn.Sequential(nn.Linear(2, 2, dtype=torch.float64), nn.Linear(2, 2))
        return model.requires_grad_(False)

    stage = partition(on_meta(factory), 2).build(0)
    weight = stage.get_parameter("0.weight")
    assert weight.dtype == torch.float64
    assert not weight.requires_grad


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def test_a_module_without_reset_parameters_is_named() -> None:
    parts = partition(on_meta(lambda: nn.Sequential(nn.Linear(3, 3), nn.Sequential(Scaled()))), 2)
    parts.build(0)
    with pytest.raises(ModelError, match=r"Scaled at '1.0' owns scale but has no reset_parameters"):
        parts.build(1)


def test_a_factory_that_reads_values_is_told_what_to_do() -> None:
    def factory() -> nn.Module:
        rates: list[Any] = torch.linspace(0, 1, 3).tolist()
        return nn.Dropout(rates[0])

    with pytest.raises(ModelError, match="reads values while it builds"):
        on_meta(factory)


def test_errors_of_the_factory_itself_pass_through() -> None:
    def factory() -> nn.Module:
        raise RuntimeError("no such layer")

    with pytest.raises(RuntimeError, match="no such layer"):
        on_meta(factory)


def test_builders_pass_through() -> None:
    layers = [lambda: nn.Linear(1, 1)]
    assert on_meta(lambda: layers) is layers


def test_one_stage_of_an_arbitrary_module() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.back = nn.Linear(2, 2)
            self.back.weight = self.fc.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.back(self.fc(x))

    built = partition(on_meta(Net), 1, seed=1).build(0)
    assert not any(tensor.is_meta for tensor in built.state_dict().values())
    assert built.back.weight is built.fc.weight
