"""Arbitrary modules cut through torch.export, against the module itself in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from freewheel.errors import ConfigError, ModelError
from freewheel.models import on_meta, partition
from freewheel.models.checkpointing import checkpointed
from freewheel.models.exported import ExportedForm
from freewheel.models.partition import Partition

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def leaves(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if not isinstance(value, (tuple, list, dict)):
        return []
    items = value.values() if isinstance(value, dict) else value
    return [leaf for item in items for leaf in leaves(item)]


def received(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return tuple(received(item) for item in value) if isinstance(value, tuple) else value


def train_stages(stages: Sequence[Callable[[Any], Any]], x: Any, loss_of: Callable) -> Any:
    passed: list[tuple[Any, Any]] = []
    value = x
    for stage in stages:
        arrived = received(value) if passed else value
        value = stage(arrived)
        passed.append((arrived, value))
    loss_of(value).backward()
    for (_, sent), (arrived, _) in zip(reversed(passed[:-1]), reversed(passed[1:]), strict=True):
        pairs = [
            (out, back.grad)
            for out, back in zip(leaves(sent), leaves(arrived), strict=True)
            if back.grad is not None and out.requires_grad
        ]
        if pairs:
            torch.autograd.backward([out for out, _ in pairs], [grad for _, grad in pairs])
    return value


def total(value: Any) -> Tensor:
    return sum(leaf.double().square().sum() for leaf in leaves(value) if leaf.is_floating_point())


def check_every_cut(
    model: nn.Module,
    form: ExportedForm,
    batches: list[Any],
    numbers: Sequence[int],
    wrap: Callable[[nn.Module], Callable[[Any], Any]] = lambda stage: stage,
) -> None:
    """Train the stages of every partition and compare with a plain copy, to the last bit."""
    start = copy.deepcopy(model.state_dict())
    plain = copy.deepcopy(model)
    count = len(form.names)
    for ends in all_ends(count, numbers):
        for module in (model, plain):
            module.load_state_dict(start)
            module.train()
        parts = Partition(form, ends)
        stages = [parts.build(stage).train() for stage in range(parts.num_stages)]
        calls = [wrap(stage) for stage in stages]
        for step, x in enumerate(batches):
            torch.manual_seed(step)
            expected = plain(*x) if isinstance(x, tuple) else plain(x)
            total(expected).backward()
            torch.manual_seed(step)
            got = train_stages(calls, x, total)
            assert type(got) is type(expected)
            for ours, theirs in zip(leaves(got), leaves(expected), strict=True):
                assert torch.equal(ours, theirs), (ends, step)
            for (name, ours), theirs in zip(
                model.named_parameters(), plain.parameters(), strict=True
            ):
                assert (ours.grad is None) == (theirs.grad is None), (ends, name)
                if ours.grad is not None:
                    assert torch.equal(ours.grad, theirs.grad), (ends, name)
            model.zero_grad()
            plain.zero_grad()
        state = {name: value for stage in stages for name, value in stage.state_dict().items()}
        assert state.keys() == plain.state_dict().keys()
        for name, value in plain.state_dict().items():
            assert torch.equal(state[name], value), (ends, name)
        plain.eval()
        value: Any = batches[-1]
        for stage in stages:
            value = stage.eval()(value)
        expected = plain(*batches[-1]) if isinstance(batches[-1], tuple) else plain(batches[-1])
        for ours, theirs in zip(leaves(value), leaves(expected), strict=True):
            assert torch.equal(ours, theirs), (ends, "evaluation")


def all_ends(count: int, numbers: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for stages in numbers:
        for cut in combinations(range(1, count), stages - 1):
            yield (*cut, count)


class Block(nn.Module):
    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.down = nn.Conv2d(width_in, width, 1) if width != width_in else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class ResNet(nn.Module):
    """Skips, in-place operations, running statistics, an unused parameter, a dynamic view."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 3, 3)
        self.layer1 = nn.Sequential(Block(3, 3))
        self.layer2 = Block(3, 4)
        self.drop = nn.Dropout(0.4)
        self.fc = nn.Linear(4, 2)
        self.unused = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> dict[str, Any]:
        skip = self.stem(x)
        deep = self.drop(self.layer2(self.layer1(skip)))
        features = deep.mean((2, 3)).view(x.shape[0], -1)
        logits = self.fc(features) + skip.mean((1, 2, 3)).unsqueeze(1)
        return {"logits": logits, "none": None, "rows": torch.arange(x.shape[0])}


@pytest.fixture(scope="module")
def resnet() -> tuple[ResNet, ExportedForm]:
    torch.manual_seed(0)
    model = ResNet()
    return model, ExportedForm(model, torch.randn(4, 2, 6, 6), seed=0)


def images(*sizes: int) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 2, 6, 6, generator=generator) for size in sizes]


def test_a_residual_network_cut_anywhere(resnet: tuple[ResNet, ExportedForm]) -> None:
    """Scenarios 1, 8, 9: batches of 4, 3 and 1; dict, None and integers; unused parameters."""
    model, form = resnet
    assert form.names[0] == "stem"
    assert form.names[-1] == "fc"
    check_every_cut(model, form, images(4, 3, 1), numbers=(1, 2, len(form.names)))


def test_with_activation_checkpointing(resnet: tuple[ResNet, ExportedForm]) -> None:
    model, form = resnet
    middle = form.known["layer1"] + 1
    form_ends = (middle, len(form.names))
    assert Partition(form, form_ends).cuts == ("layer1",)
    check_every_cut(model, form, images(4, 1), numbers=(1,), wrap=checkpointed)


def test_under_bf16_autocast(resnet: tuple[ResNet, ExportedForm]) -> None:
    model, form = resnet
    (x,) = images(4)
    stages = [Partition(form, (3, len(form.names))).build(stage) for stage in range(2)]
    plain = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(0)
        expected = plain(x)["logits"]
        torch.manual_seed(0)
        got = stages[1](stages[0](x))["logits"]
    assert expected.dtype == got.dtype
    assert torch.equal(got, expected)


def test_a_stage_can_be_copied_and_loaded(resnet: tuple[ResNet, ExportedForm]) -> None:
    _, form = resnet
    stage = Partition(form, (len(form.names),)).build(0).eval()
    other = copy.deepcopy(stage)
    (x,) = images(2)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not torch.equal(other(x)["logits"], stage(x)["logits"])
    other.load_state_dict(stage.state_dict())
    assert torch.equal(other(x)["logits"], stage(x)["logits"])
    doubled = copy.deepcopy(stage).double()
    torch.testing.assert_close(
        doubled(x.double())["logits"].float(), stage(x)["logits"], rtol=1e-4, atol=1e-5
    )


def test_cut_points_are_submodules_and_wrong_ones_are_refused() -> None:
    torch.manual_seed(0)
    model = ResNet()
    model.layer2.eval()
    parts = partition(model, 2, ["layer1.0.norm1"], torch.randn(1, 2, 6, 6))
    assert parts.cuts == ("layer1.0.norm1",)
    assert "layer1.0.conv2" in parts.stage_layers(1)
    assert [model.training, model.layer2.training] == [True, False]
    names = [name for stage in range(2) for name, _ in parts.build(stage).named_parameters()]
    assert sorted(names) == sorted(dict(model.named_parameters()))
    with pytest.raises(ConfigError, match="did you mean 'layer2'"):
        partition(model, 2, ["layr2"], torch.randn(4, 2, 6, 6))
    with pytest.raises(ConfigError, match=r"cannot be cut after 'layer2.relu': it is called sever"):
        partition(model, 2, ["layer2.relu"], torch.randn(4, 2, 6, 6))
    with pytest.raises(ModelError, match="give every batch in the form of the example"):
        parts.build(0)((torch.randn(1, 2, 6, 6), None))


class Language(nn.Module):
    """Tied weights, a block called twice, no_grad inside, two inputs, a constant in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.first = nn.Linear(6, 6)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.norm = nn.LayerNorm(6)
        self.second = nn.Linear(6, 6)
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((6,), 0.5), persistent=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(tokens) * self.scale
        x = self.block(self.block(self.first(x)))
        with torch.no_grad():
            level = x.abs().mean(-1, keepdim=True)
        x = self.norm(x + level + torch.tensor([0.25]))
        x = self.second(x * self.scale) * mask.unsqueeze(-1)
        batch, length = tokens.shape
        return self.head(x).view(batch * length, -1), mask.sum()


@pytest.fixture(scope="module")
def language() -> tuple[Language, ExportedForm]:
    torch.manual_seed(0)
    model = Language()
    return model, ExportedForm(model, sentences(4)[0], seed=0)


def sentences(*sizes: int) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randint(9, (size, 3), generator=generator),
            torch.rand(size, 3, generator=generator).round(),
        )
        for size in sizes
    ]


def test_a_language_model_cut_anywhere(language: tuple[Language, ExportedForm]) -> None:
    """Scenarios 1 and 12: one process holds both ends of the tie, so gradients add up."""
    model, form = language
    assert form.names == ("embed", "first", "norm", "second", "head")
    check_every_cut(model, form, sentences(4, 1, 5), numbers=(1, 2, 3, 5))


def test_the_tie_is_listed_and_the_constant_is_not(
    language: tuple[Language, ExportedForm],
) -> None:
    _, form = language
    assert Partition(form, (2, 5)).ties == (((0, "embed.weight"), (1, "embed.weight")),)
    assert Partition(form, (5,)).ties == ()
    with pytest.raises(ModelError, match="cannot trace Language in training mode"):
        partition(Language(), 2, ["first"], (torch.zeros(2, 3), torch.zeros(2, 3)))


def test_even_and_balanced_cuts_of_a_traced_module(
    language: tuple[Language, ExportedForm],
) -> None:
    model, form = language
    assert partition(model, 2, "even", sentences(4)[0]).cuts == ("norm",)
    parts = partition(model, 5, "balanced", sentences(4)[0])
    assert parts.cuts == form.names[:-1]


def test_lazily_built_stages_have_values_that_do_not_depend_on_the_cut() -> None:
    """Also scenario 12: the tie's one value is on both stages."""
    example = sentences(2)[0]

    def untied() -> Language:
        model = Language()
        # A buffer without reset_parameters cannot be filled lazily.
        del model.scale
        model.scale = 0.5
        return model

    states = []
    for cuts in ([], ["first"], ["norm"]):
        parts = partition(on_meta(untied), len(cuts) + 1, cuts, example, seed=2)
        stages = [parts.build(stage) for stage in range(parts.num_stages)]
        if cuts:
            assert torch.equal(
                stages[0].get_parameter("embed.weight"), stages[1].get_parameter("embed.weight")
            )
            value: Any = example
            for stage in stages:
                value = stage(value)
            assert value[0].shape == (6, 9)
        states.append({k: v for stage in stages for k, v in stage.state_dict().items()})
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        for name, value in state.items():
            assert torch.equal(value, states[0][name]), name


class Auxiliary(nn.Module):
    """A head that runs in training mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.aux = nn.Linear(3, 2)
        self.b = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.a(x).relu()
        extra = self.aux(hidden) if self.training else torch.zeros(x.shape[0], 2)
        return self.b(hidden), extra


def test_modules_that_run_in_training_mode_only() -> None:
    torch.manual_seed(0)
    model = Auxiliary()
    form = ExportedForm(model, torch.randn(3, 3), seed=0)
    check_every_cut(model, form, [torch.randn(3, 3), torch.randn(1, 3)], numbers=(1, 2, 3))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.b(x) if x.sum().item() > 0 else x


class TwiceNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.norm(self.a(self.norm(x))))


class TwoViews(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x) * 2
        view = y.view(-1, 2, 2)
        z = self.c(self.b(x))
        y.mul_(3)
        return z + view.flatten(1) + y


def test_models_that_cannot_be_cut_are_refused_with_the_reason() -> None:
    with pytest.raises(ModelError, match="cannot trace Branching in training mode"):
        partition(Branching(), 2, ["a"], torch.randn(2, 2))
    with pytest.raises(ModelError, match=r"buffer 'norm.running_mean' of stage 0"):
        partition(TwiceNormed(), 2, ["a"], torch.randn(2, 2))


def test_a_write_through_two_views_across_a_cut_is_refused() -> None:
    model = TwoViews()
    form = ExportedForm(model, torch.randn(2, 4), seed=0)
    check_every_cut(model, form, [torch.randn(2, 4)], numbers=(1,))
    parts = Partition(form, (2, 3))
    with pytest.raises(ModelError, match=r"mul_ writes in place .* two views \(mul and view\)"):
        parts.build(1)


def test_the_example_must_hold_a_batch() -> None:
    with pytest.raises(ModelError, match="no tensor with a batch dimension"):
        partition(TwoViews(), 2, ["a"], 3)


class Huge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Linear(2, 3)
        self.huge = nn.Linear(10**6, 10**6)

    def forward(self, x: Tensor) -> Tensor:
        return self.huge(self.small(x).repeat(1, 10**6 // 3 + 1)[:, : 10**6])


def test_a_traced_model_that_fits_nowhere_gives_the_stage_that_does() -> None:
    """10^12 float32 parameters, 4 TB, are traced and cut without memory."""
    parts = partition(on_meta(Huge), 2, ["small"], torch.randn(2, 2))
    first = parts.build(0)
    assert list(first.state_dict()) == ["small.weight", "small.bias"]
    assert first(torch.randn(1, 2)).shape == (1, 3)
