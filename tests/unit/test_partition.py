"""Partitions of layered models, nn.Sequential and lists: names, values, ties, gradients, errors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from freewheel.errors import ConfigError, ModelError
from freewheel.models import LayeredModel, LayerSpec, partition


def leaves(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value
    return [] if value is None else [leaf for item in items for leaf in leaves(item)]


def received(value: Any) -> Any:
    """What the next stage gets: the same values, cut off from the graph that made them."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: received(item) for key, item in value.items()}
    return None if value is None else tuple(received(item) for item in value)


def train_stages(stages: Sequence[Callable[[Any], Any]], x: Any, loss_of: Callable) -> Any:
    """Forward through all stages, then backward with gradients handed over by hand."""
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
            if back.grad is not None
        ]
        if any(out.requires_grad for out, _ in pairs):
            torch.autograd.backward([out for out, _ in pairs], [grad for _, grad in pairs])
    return value


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x).relu()


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 8),
        nn.ReLU(inplace=True),
        nn.BatchNorm1d(8),
        Residual(8),
        nn.ReLU(inplace=True),
        nn.Dropout(0.3),
        nn.Linear(8, 3),
    )


@pytest.mark.parametrize("cuts", [[], [0], [3], [1, 2], [0, 3, 5], [0, 1, 2, 3, 4, 5]])
def test_stages_compute_what_the_whole_model_does(cuts: list[int]) -> None:
    """Scenario 1: batches of 8, 8, 5 and 2 (1 in evaluation); equal to the last bit."""
    torch.manual_seed(0)
    model = network()
    plain = copy.deepcopy(model)
    parts = partition(model, stages=len(cuts) + 1, cuts=cuts)
    stages = [parts.build(stage) for stage in range(parts.num_stages)]
    for step, size in enumerate((8, 8, 5, 2)):
        x = torch.randn(size, 6)
        torch.manual_seed(step)
        expected = plain(x)
        expected.square().sum().backward()
        torch.manual_seed(step)
        got = train_stages(stages, x, lambda out: out.square().sum())
        assert torch.equal(got, expected)
    state = {name: value for stage in stages for name, value in stage.state_dict().items()}
    assert list(state) == list(plain.state_dict())
    for name, value in plain.state_dict().items():
        assert torch.equal(state[name], value), name
        assert state[name].dtype == value.dtype
    grads = {name: p.grad for stage in stages for name, p in stage.named_parameters()}
    for name, parameter in plain.named_parameters():
        assert torch.equal(grads[name], parameter.grad), name
    x = torch.randn(1, 6)
    plain.eval()
    value: Any = x
    for stage in stages:
        value = stage.eval()(value)
    assert torch.equal(value, plain(x))


class Split(nn.Module):
    """Returns (float, int mask, None); scenario 8."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, None]:
        return x * 2, (x > 0).long(), None


class Gather(nn.Module):
    def forward(self, parts: tuple[Tensor, Tensor, None]) -> dict[str, Any]:
        value, mask, nothing = parts
        return {"value": value, "mask": mask, "nothing": nothing}


class Finish(nn.Module):
    def forward(self, parts: dict[str, Any]) -> Tensor:
        assert parts["nothing"] is None
        assert parts["mask"].dtype == torch.int64
        return (parts["value"] * parts["mask"]).sum(1)


def test_tuples_dicts_none_and_integers_pass_between_stages() -> None:
    """Scenario 8."""
    model = nn.Sequential(nn.Linear(4, 4), Split(), nn.Identity(), Gather(), Finish())
    plain = copy.deepcopy(model)
    stages = [partition(model, 4, [1, 2, 3]).build(stage) for stage in range(4)]
    x = torch.randn(5, 4)
    got = train_stages(stages, x, lambda out: out.sum())
    expected = plain(x)
    expected.sum().backward()
    assert torch.equal(got, expected)
    assert torch.equal(stages[0].get_parameter("0.weight").grad, plain[0].weight.grad)


@pytest.mark.parametrize("frozen", [0, 1])
def test_frozen_stages_stay_frozen(frozen: int) -> None:
    """Scenario 9."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    for parameter in model[2 * frozen].parameters():
        parameter.requires_grad_(False)
    stages = [partition(model, 2, ["1"]).build(stage) for stage in range(2)]
    train_stages(stages, torch.randn(3, 4), lambda out: out.sum())
    assert all(p.grad is None and not p.requires_grad for p in stages[frozen].parameters())
    assert all(p.grad is not None for p in stages[1 - frozen].parameters())


def counting(built: list[str]) -> LayeredModel:
    def layer(name: str, make: Callable[[], nn.Module]) -> LayerSpec:
        def build() -> nn.Module:
            built.append(name)
            return make()

        return LayerSpec(name, build)

    return LayeredModel(
        (
            layer("embed", lambda: nn.Embedding(11, 4)),
            layer("mix.a", lambda: nn.Linear(4, 4)),
            layer("mix.b", lambda: nn.Linear(4, 4)),
            layer("head", lambda: nn.Linear(4, 11, bias=False)),
        ),
        ties=(("embed.weight", "head.weight"),),
    )


def test_a_stage_builds_its_own_layers_only() -> None:
    built: list[str] = []
    parts = partition(counting(built), 4)
    assert built == []
    parts.build(1)
    assert built == ["mix.a"]
    built.clear()
    # The tied head needs its owner's initial value, and nothing between.
    parts.build(3)
    assert built == ["head", "embed"]


def test_initial_values_do_not_depend_on_the_number_of_stages_or_the_builder() -> None:
    model = counting([])
    whole = partition(model, 1, seed=3).build(0).state_dict()
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    for stages in (2, 3, 4):
        parts = partition(model, stages, seed=3)
        for stage in reversed(range(stages)):
            for name, value in parts.build(stage).state_dict().items():
                assert torch.equal(value, whole[name]), name
    assert torch.equal(torch.random.get_rng_state(), before)
    other = partition(model, 1, seed=4).build(0).state_dict()
    assert not torch.equal(other["mix.a.weight"], whole["mix.a.weight"])
    assert not torch.equal(whole["mix.a.weight"], whole["mix.b.weight"])


def test_ties_are_one_parameter_in_a_stage_and_listed_across_stages() -> None:
    """Scenario 12."""
    one = partition(counting([]), 1)
    assert one.ties == ()
    whole = one.build(0)
    assert whole.get_parameter("embed.weight") is whole.get_parameter("head.weight")
    two = partition(counting([]), 2)
    assert two.ties == (((0, "embed.weight"), (1, "head.weight")),)
    first, last = two.build(0), two.build(1)
    assert torch.equal(first.get_parameter("embed.weight"), last.get_parameter("head.weight"))


def test_ties_of_modules_are_found_by_identity() -> None:
    embed, head = nn.Embedding(11, 4), nn.Linear(4, 11, bias=False)
    head.weight = embed.weight
    shared = nn.Linear(4, 4)
    model = nn.Sequential(embed, shared, nn.ReLU(), shared, head)
    assert partition(model, 1).ties == ()
    assert partition(model, 2, [0]).ties == (((0, "0.weight"), (1, "4.weight")),)
    assert partition(model, 3, [1, 2]).ties == (
        ((0, "0.weight"), (2, "4.weight")),
        ((0, "1.weight"), (2, "3.weight")),
        ((0, "1.bias"), (2, "3.bias")),
    )
    x = torch.tensor([1, 2])
    assert torch.equal(partition(model, 1).build(0)(x), model(x))


def test_a_shared_buffer_across_a_cut_is_refused_by_name() -> None:
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(norm, nn.Linear(4, 4), norm)
    with pytest.raises(ModelError, match=r"buffer '0.running_mean' of stage 0 and '2.running_mean"):
        partition(model, 2)
    assert partition(model, 1).num_stages == 1


def test_nested_sequentials_are_opened_and_keep_their_names() -> None:
    model = nn.Sequential()
    model.add_module("features", nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU())))
    model.add_module("head", nn.Linear(4, 2))
    parts = partition(model, 2)
    assert parts.layer_names == ("features.0", "features.1.0", "head")
    assert parts.cuts == ("features.1.0",)
    assert partition(model, 2, ["features"]).cuts == parts.cuts
    assert partition(model, 2, ["features.0"]).stage_layers(1) == ("features.1.0", "head")
    names = [name for stage in range(2) for name in parts.build(stage).state_dict()]
    assert names == list(model.state_dict())


def test_a_list_of_as_many_modules_as_stages_is_one_each() -> None:
    stages = [nn.Sequential(*(nn.Linear(2, 2) for _ in range(count))) for count in (5, 1)]
    parts = partition(stages, 2)
    assert [len(parts.stage_layers(stage)) for stage in range(2)] == [5, 1]
    assert partition(nn.ModuleList(stages), 2).cuts == parts.cuts


def test_a_list_of_builders_is_lazy() -> None:
    built: list[int] = []

    def builder(index: int) -> Callable[[], nn.Module]:
        def build() -> nn.Module:
            built.append(index)
            return nn.Linear(2, 2)

        return build

    parts = partition([builder(0), builder(1), builder(2)], 3)
    assert list(parts.build(1).state_dict()) == ["1.weight", "1.bias"]
    assert built == [1]


def test_whole_and_even() -> None:
    model = network()
    assert [len(partition(model, 3, "even").stage_layers(stage)) for stage in range(3)] == [3, 2, 2]
    assert list(partition(model, 3).whole().state_dict()) == list(model.state_dict())


def test_a_module_with_hooks_or_its_own_forward_is_not_opened() -> None:
    class Doubling(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    hooked = nn.Sequential(nn.Linear(2, 2))
    hooked.register_forward_hook(lambda *_: torch.zeros(1))
    model = nn.Sequential(Doubling(nn.Linear(2, 2)), hooked)
    assert partition(model, 2).layer_names == ("0", "1")


@pytest.mark.parametrize(
    ("stages", "cuts", "message"),
    [
        (0, None, "stages must be >= 1, got 0"),
        (8, None, "8 stages but the model has 7 layers"),
        (2, ["fc9"], "unknown cut point 'fc9'"),
        (2, [7], "numbered 0 to 6"),
        (2, [-1], "numbered 0 to 6"),
        (2, [True], "name or index, got True"),
        (2, [1.5], "name or index, got 1.5"),
        (2, "3", r"write cuts = \['3'\]"),
        (2, [], "2 stages need 1 cuts"),
        (2, [1, 2], "2 stages need 1 cuts"),
        (3, [3, 1], "list cuts in the order in which the layers run"),
        (3, [3, 3], "two cuts after '3' leave an empty stage"),
        (2, [6], "leaves the last stage empty"),
        (2, "balanced", "measured on an example batch"),
    ],
)
def test_bad_cuts_are_refused(stages: int, cuts: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        partition(network(), stages, cuts)


def test_an_unknown_cut_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'embed'"):
        partition(counting([]), 2, ["embedd"])


def linear(name: str) -> LayerSpec:
    return LayerSpec(name, lambda: nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("layers", "ties", "message"),
    [
        ((), (), "no layers"),
        (("a", "a"), (), "two layers are named 'a'"),
        (("a.",), (), "is not a layer name"),
        (("a", "a.b"), (), "overlap"),
        (("a", "b"), (("a.weight",),), "two or more"),
        (("a", "b"), (("a.weight", "c.weight"),), "belongs to no layer"),
        (("a", "b"), (("a.weight", "b.weight"), ("a.weight", "b.bias")), "stands in two ties"),
    ],
)
def test_bad_layered_models_are_refused(layers: Any, ties: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        LayeredModel(tuple(linear(name) for name in layers), ties)


@pytest.mark.parametrize(
    ("tie", "message"),
    [
        (("a.weight", "b.scale"), "no such parameter"),
        (("a.weight", "b.bias"), "one shape and dtype"),
        (("c.running_mean", "d.running_mean"), "no parameter"),
    ],
)
def test_ties_that_cannot_be_are_refused_by_name(tie: tuple[str, str], message: str) -> None:
    norms = [LayerSpec(name, lambda: nn.BatchNorm1d(2)) for name in "cd"]
    model = LayeredModel((linear("a"), linear("b"), *norms), (tie,))
    with pytest.raises(ModelError, match=message):
        partition(model, 1).build(0)
    parts = partition(model, 4)
    stages = {int("abcd".index(name[0])) for name in tie}
    with pytest.raises(ModelError, match=message):
        [parts.build(stage) for stage in sorted(stages)]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ([], "list of layers is empty"),
        (nn.Sequential(), "is empty"),
        ([nn.ReLU(), nn.ReLU], "layer 0 of the list is a ReLU"),
        ([3], "layer 0 of the list is a int"),
        ("mlp", "cannot train a str"),
        (nn.Sequential(nn.LazyLinear(3), nn.ReLU()), "0.weight has no shape yet"),
        (nn.Bilinear(1, 1, 1), "give an example input batch"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_what_is_no_model_is_refused(model: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        partition(model, 2)


def test_a_builder_that_returns_no_module_is_refused() -> None:
    with pytest.raises(ModelError, match="builder of layer '0' returned dict"):
        partition([dict], 1).build(0)


def test_one_stage_of_an_arbitrary_module_is_the_module() -> None:
    model = Residual(4)
    parts = partition(model, 1)
    assert parts.build(0) is model
    assert parts.whole() is model
    with pytest.raises(ConfigError, match="stage must be 0 to 0, got 1"):
        parts.build(1)
