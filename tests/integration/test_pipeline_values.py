"""What may cross a cut, and which parameters may be trained, frozen, tied or unused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from freewheel.errors import ModelError, NonFiniteError
from freewheel.runtime.pieces import Given
from in_threads import run_pipeline


def data(num_samples: int = 24) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(num_samples, 6, generator=generator)
    return x, torch.randint(0, 3, (num_samples,), generator=generator)


def train(model: Any, given_data: Any = None, steps: int = 10, **sections: Any) -> Any:
    parts = given_data or data()
    given = Given(
        model,
        lambda: (parts, parts),
        nn.CrossEntropyLoss(),
        lambda p: torch.optim.Adam(p, lr=1e-2),
    )
    sections = {"layout": {"stages": 2, "micro_batches": 2}, "data": {"batch_size": 8}, **sections}
    return run_pipeline(given, train={"steps": steps}, **sections)


class Fork(nn.Module):
    """Gives a tuple of a float tensor, an integer mask and None."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, None]:
        return self.linear(x), (x[:, :4] > 0).to(torch.int32), None


class Seen(nn.Module):
    """Gives a dict, and remembers what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.seen: list[Any] = []

    def forward(self, value: tuple[Tensor, Tensor, None]) -> dict[str, Tensor]:
        h, mask, nothing = value
        self.seen.append((type(value), h.requires_grad, mask.dtype, mask.requires_grad, nothing))
        return {"h": torch.tanh(self.linear(h * mask)), "half": h.to(torch.bfloat16)}


class Join(nn.Module):
    """Takes the dict; does not use all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, value: dict[str, Tensor]) -> Tensor:
        assert value["half"].dtype == torch.bfloat16
        assert value["half"].requires_grad == torch.is_grad_enabled()
        return self.linear(value["h"])


def test_scenario_8_tuples_dicts_masks_and_none_cross_cuts() -> None:
    def model() -> list[nn.Module]:
        torch.manual_seed(0)
        return [Fork(), Seen(), Join()]

    outcome = train(model, layout={"stages": 3, "micro_batches": 2})
    seen = outcome.roles[1].module.get_submodule("1").seen
    assert seen[0] == (tuple, True, torch.int32, False, None)
    assert outcome.losses[-1] < outcome.losses[0]
    fork, middle, join = model()
    x, _ = data()
    assert set(join(middle(fork(x))).__class__.__mro__) >= {Tensor}
    # gradients came back to the first stage through the tuple
    assert not torch.equal(outcome.state["0.linear.weight"], fork.linear.weight)


@pytest.mark.parametrize("frozen", [0, 1])
def test_scenario_9_a_frozen_stage_keeps_its_bytes(frozen: int) -> None:
    def model() -> list[nn.Module]:
        torch.manual_seed(0)
        layers = [nn.Linear(6, 5), nn.Linear(5, 3)]
        layers[frozen].requires_grad_(False)
        return layers

    outcome = train(model)
    before = {k: v for i, m in enumerate(model()) for k, v in m.state_dict(prefix=f"{i}.").items()}
    assert torch.equal(outcome.state[f"{frozen}.weight"], before[f"{frozen}.weight"])
    assert not torch.equal(outcome.state[f"{1 - frozen}.weight"], before[f"{1 - frozen}.weight"])
    backward = sum(t["bytes_to"].get("stage 0", 0) for t in outcome.totals)
    assert (backward == 0) == (frozen == 0), "nothing goes back to a frozen first stage"


def test_a_model_that_is_frozen_whole_trains_nothing_and_ends() -> None:
    def model() -> list[nn.Module]:
        return [nn.Linear(6, 5).requires_grad_(False), nn.Linear(5, 3).requires_grad_(False)]

    assert len(train(model, steps=2).losses) == 2


def test_scenario_10_channels_last_and_transposed_activations_arrive_equal() -> None:
    class Image(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3, padding=1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.conv(x.view(-1, 1, 2, 3)).to(memory_format=torch.channels_last)
            return h, h.transpose(2, 3)

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(24, 3)

        def forward(self, value: tuple[Tensor, Tensor]) -> Tensor:
            h, transposed = value
            return self.linear(h.flatten(1) + transposed.transpose(2, 3).flatten(1))

    def model() -> list[nn.Module]:
        torch.manual_seed(0)
        return [Image(), Head()]

    two = train(model)
    one = train(model, layout={"stages": 1, "micro_batches": 2})
    for name, value in one.state.items():
        assert torch.allclose(two.state[name], value, rtol=1e-6, atol=1e-7), name


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(7, 4) * 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.weight[tokens].mean(1)


class TiedHead(nn.Module):
    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        self.weight = embedding.weight

    def forward(self, h: Tensor) -> Tensor:
        return h @ self.weight.T


def tied_model() -> list[nn.Module]:
    torch.manual_seed(0)
    embedding = Embedding()
    return [embedding, nn.Linear(4, 4), TiedHead(embedding)]


def test_scenario_12_tied_parameters_stay_equal_and_right() -> None:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, 7, (24, 5), generator=generator)
    parts = tokens, torch.randint(0, 7, (24,), generator=generator)
    how: dict[str, Any] = {"layout": {"stages": 3, "micro_batches": 2}, "steps": 10}
    three = train(tied_model, parts, **how)
    assert torch.equal(three.state["0.weight"], three.state["2.weight"])
    one = train(tied_model, parts, steps=10, layout={"stages": 1, "micro_batches": 2})
    assert torch.allclose(three.state["0.weight"], one.state["0.weight"], rtol=1e-5, atol=1e-7)
    assert torch.allclose(three.state["1.weight"], one.state["1.weight"], rtol=1e-5, atol=1e-7)


def test_a_nan_in_a_batch_is_named_with_its_sample() -> None:
    x, y = data()
    x[13, 2] = float("nan")
    with pytest.raises(NonFiniteError, match="sample 13"):
        train(lambda: [nn.Linear(6, 5), nn.Linear(5, 3)], (x, y))


def test_a_loss_that_becomes_infinite_ends_the_run() -> None:
    x, y = data()
    given = Given(
        lambda: [nn.Linear(6, 1), nn.Linear(1, 1)],
        lambda: ((x, y.float()), (x, y.float())),
        lambda output, _: output.mean() / 0.0,
        lambda p: torch.optim.SGD(p, lr=0.1),
    )
    with pytest.raises(NonFiniteError, match="training loss"):
        run_pipeline(given, train={"steps": 3}, layout={"stages": 2}, eval={"metrics": []})


def test_a_loss_per_sample_is_refused() -> None:
    given = Given(
        lambda: [nn.Linear(6, 5), nn.Linear(5, 3)],
        lambda: (data(), data()),
        nn.CrossEntropyLoss(reduction="none"),
        lambda p: torch.optim.SGD(p, lr=0.1),
    )
    with pytest.raises(ModelError, match="one number"):
        run_pipeline(given, train={"steps": 1}, layout={"stages": 2})


def test_bf16_autocast_sends_half_the_bytes_and_learns() -> None:
    def model() -> list[nn.Module]:
        torch.manual_seed(0)
        return [nn.Linear(6, 64), nn.Linear(64, 3)]

    parts = data(64)
    how: dict[str, Any] = {
        "given_data": parts,
        "steps": 30,
        "layout": {"stages": 2, "micro_batches": 1},
        "data": {"batch_size": 64},
    }
    full = train(model, **how)
    given = Given(
        model, lambda: (parts, parts), nn.CrossEntropyLoss(), lambda p: torch.optim.Adam(p, lr=1e-2)
    )
    half = run_pipeline(
        given,
        train={"steps": 30, "autocast": "bf16"},
        layout=how["layout"],
        data=how["data"],
    )
    sent = {
        name: sum(t["bytes_to"].get("stage 1", 0) for t in outcome.totals)
        for name, outcome in (("full", full), ("half", half))
    }
    payload = 30 * 64 * 64 * 4
    assert payload <= sent["full"] <= payload * 1.02
    assert payload / 2 <= sent["half"] <= payload / 2 * 1.04
    assert half.losses[-1] < half.losses[0]
