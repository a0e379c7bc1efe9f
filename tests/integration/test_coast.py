"""Coasting: real steps, jumps by prediction, and the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from freewheel.codecs import codecs
from freewheel.config import parse_config
from freewheel.errors import ConfigError, NonFiniteError
from freewheel.observe.report import open_run, write_report
from freewheel.observe.report.remembered import history_figures
from freewheel.predictors import predictors
from freewheel.runtime.pieces import Given, Pieces
from freewheel.runtime.virtual.pipeline import simulate_pipeline
from freewheel.streams.sampler import Sampler
from in_threads import Outcome, run_pipeline

BATCH, SAMPLES = 8, 64


def make_model() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 3)]


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES, 6, generator=generator)
    return x, x[:, :3].argmax(1)


def train(
    protocol: dict[str, Any],
    steps: int = 24,
    stages: int = 2,
    lr: float = 0.02,
    model: Any = make_model,
    run_dir: Path = Path("unused"),
    resume_from: Path | None = None,
    **sections: Any,
) -> Outcome:
    given = Given(
        model,
        lambda: (make_data(), make_data()),
        nn.CrossEntropyLoss(),
        lambda p: torch.optim.SGD(p, lr=lr, momentum=0.5) if p else None,
    )
    return run_pipeline(
        given,
        run_dir=run_dir,
        resume_from=resume_from,
        layout={"stages": stages, "micro_batches": 2},
        data={"batch_size": BATCH},
        train={"steps": steps},
        protocol=protocol,
        **sections,
    )


def events(outcome: Outcome, name: str) -> list[dict[str, Any]]:
    told = [dict(m.meta) for m in outcome.told if m.kind == "event"]
    return [event for event in told if event["event"] == name]


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_horizon_of_zero_is_vanilla_bit_for_bit(stages: int) -> None:
    coast = train({"name": "coast", "real": 3, "horizon": 0}, stages=stages)
    vanilla = train({"name": "vanilla"}, stages=stages)
    assert coast.losses == vanilla.losses
    for name, value in vanilla.state.items():
        assert torch.equal(coast.state[name], value), name
    sent = [sorted(str(t["bytes_to"]) for t in run.totals) for run in (coast, vanilla)]
    assert sent[0] == sent[1]


def test_static_coasting_equals_waiting() -> None:
    # 4 real steps, then 4 batches go by: plain training that skips them does the same
    coast = train({"name": "coast", "real": 4, "horizon": 4}, predictor={"name": "static"})
    torch.manual_seed(0)
    model, (x, y) = nn.Sequential(*make_model()), make_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    sampler, losses = Sampler(SAMPLES, BATCH, seed=0), []
    for step in range(24):
        batch = sampler.next().indices
        if step % 8 >= 4 and step != 23:  # the last step of a run is a real one
            continue
        optimizer.zero_grad()
        total = 0.0
        for part in torch.chunk(batch, 2):
            loss = nn.functional.cross_entropy(model(x[part]), y[part])
            (loss * (len(part) / len(batch))).backward()
            total += float(loss.detach()) * len(part) / len(batch)
        optimizer.step()
        losses.append(total)
    assert coast.losses == pytest.approx(losses, rel=1e-5)
    for name, value in model.state_dict().items():
        assert torch.allclose(coast.state[name].double(), value.double(), rtol=1e-5, atol=1e-6)


def test_a_jump_is_the_prediction_of_each_stage() -> None:
    """One jump of 5 after 3 real steps by the last difference: w3 + 5 (w3 - w2)."""
    four = train({"name": "vanilla"}, steps=3).state
    three = train({"name": "vanilla"}, steps=2).state
    seen: list[dict[str, Tensor]] = []

    class Spy(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen.append({k: v.clone() for k, v in self.inner.state_dict().items()})
            return self.inner(x)

    def spied() -> list[nn.Module]:
        first, *rest = make_model()
        return [Spy(first), *rest]

    train(
        {"name": "coast", "real": 3, "horizon": 5},
        steps=9,
        model=spied,
        predictor={"name": "velocity", "estimate": "last"},
    )
    jumped = seen[2 * 3]["weight"]  # the first micro-batch after three steps of two
    expected = four["0.weight"] + 5 * (four["0.weight"] - three["0.weight"])
    assert torch.allclose(jumped, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", sorted(predictors.names()))
def test_every_predictor_coasts_and_bytes_fall_as_they_should(name: str) -> None:
    coast = train(
        {
            "name": "coast",
            "real": 4,
            "horizon": 4,
            "guard": {"name": "loss_guard", "min_losses": 2},
        },
        steps=24,
        predictor={"name": name},
    )
    vanilla = train({"name": "vanilla"}, steps=24)
    real = len(coast.losses)
    spent = sum(t["bytes_to"].get("stage 1", 0) for t in coast.totals)
    whole = sum(t["bytes_to"].get("stage 1", 0) for t in vanilla.totals)
    assert real < 24
    assert spent / whole == pytest.approx(real / 24, rel=0.1)
    assert events(coast, "alone")
    assert all(torch.isfinite(v.double()).all() for v in coast.state.values())


def test_a_wild_prediction_is_rolled_back_and_counted() -> None:
    guard = {"name": "loss_guard", "min_losses": 2, "factor": 1.5, "sigmas": None}
    coast = train(
        {"name": "coast", "real": 4, "horizon": 100, "guard": guard},
        steps=400,
        lr=0.5,
        predictor={"name": "velocity", "estimate": "last"},
        codec={"forward": "quantise:8", "backward": "quantise:8"},
    )
    verdicts = events(coast, "verdict")
    assert any(v["verdict"] == "doubt" for v in verdicts)
    assert all({"statistic", "threshold", "monitor", "step"} <= set(v) for v in verdicts)
    # both stages go back, each time
    assert len(events(coast, "rollback")) == 2 * sum(v["verdict"] == "doubt" for v in verdicts)
    assert coast.losses[-1] < coast.losses[0]


def test_without_a_guard_a_wild_prediction_ends_the_run_with_a_clear_error() -> None:
    def linear() -> list[nn.Module]:
        torch.manual_seed(0)
        return [nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 3)]

    with pytest.raises(NonFiniteError, match="training loss"):
        train(
            {"name": "coast", "real": 3, "horizon": 600},
            steps=20000,
            lr=1.0,
            model=linear,
            predictor={"name": "velocity", "estimate": "last"},
        )


def test_a_roll_back_leaves_the_parameters_of_before_the_jump() -> None:
    """With a guard that doubts every jump, training is vanilla on the batches that it took."""
    guard = {"name": "loss_guard", "min_losses": 2, "factor": 1.0, "sigmas": 0.0, "horizon": 2,
             "max_horizon": 2}  # fmt: skip
    coast = train(
        {"name": "coast", "real": 4, "horizon": 2, "guard": guard},
        lr=0.02,
        predictor={"name": "linear_growth"},
    )
    doubted = [v for v in events(coast, "verdict") if v["verdict"] == "doubt"]
    assert doubted
    steps = [row["step"] for row in coast.rows if row["process"] == "stage 1"]
    assert len(steps) == len(coast.losses)


def test_the_backtest_chooses_and_its_stage_bounds_the_horizon() -> None:
    coast = train(
        {"name": "coast", "real": 8, "horizon": 4},
        steps=60,
        predictor={"name": "backtest", "candidates": ["velocity", "average"], "margin": 0.0},
    )
    assert all(row["loss"] is None or row["loss"] < 10 for row in coast.rows)
    for event in events(coast, "alone"):
        assert event["steps"] <= 4


BAD = {
    "a negative horizon": ({"name": "coast", "horizon": -1}, {}, "horizon must be >= 0"),
    "no real step": ({"name": "coast", "real": 0}, {}, "real must be >= 1"),
    "an unknown guard": ({"name": "coast", "guard": "loss_gard"}, {}, "loss_guard"),
    "an unknown predictor": ({"name": "coast"}, {"predictor": {"name": "velocty"}}, "velocity"),
    "a predictor without coasting": (
        {"name": "vanilla"}, {"predictor": {"name": "velocity"}}, "leave the section out"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_settings(name: str) -> None:
    protocol, sections, text = BAD[name]
    with pytest.raises(ConfigError, match=text):
        train(protocol, **sections)


def test_a_horizon_longer_than_the_run_is_cut_and_a_stage_without_parameters_waits() -> None:
    def with_an_empty_stage() -> list[nn.Module]:
        torch.manual_seed(0)
        return [nn.Linear(6, 3), nn.Tanh()]

    coast = train({"name": "coast", "real": 3, "horizon": 10**6}, model=with_an_empty_stage)
    steps = [row["step"] for row in coast.rows if row["process"] == "stage 0"]
    assert steps == [1, 2, 3, 24]


# --- what is remembered, and what is left alone at a jump -----------------------------------------


def test_each_stage_may_have_a_predictor_of_its_own() -> None:
    """Stage 0 stays where it is at a jump, stage 1 does not."""
    coast = train(
        {"name": "coast", "real": 4, "horizon": 4},
        predictor={
            "name": "per_stage",
            "stages": [{"name": "static"}, {"name": "velocity", "estimate": "last"}],
        },
    )
    told = events(coast, "history")
    jumps: dict[int, list[float]] = {0: [], 1: []}
    for message in coast.told:
        if message.kind == "event" and message.meta["event"] == "history":
            jumps[int(message.sender.split()[1])].append(message.meta["jump_norm"])
    assert len(told) == len(jumps[0]) + len(jumps[1]) > 2
    assert set(jumps[0]) == {0.0}
    assert min(jumps[1]) > 0.0


def test_history_is_told_before_each_jump_and_shown_in_the_report(tmp_path: Path) -> None:
    config = parse_config(
        {
            "run": {"dir": str(tmp_path)},
            "data": {"batch_size": BATCH},
            "optimizer": {"name": "sgd", "lr": 0.02},
            "train": {"steps": 24},
            "protocol": {"name": "coast", "real": 4, "horizon": 4},
        }
    )
    given = Given(make_model, lambda: (make_data(), make_data()), nn.CrossEntropyLoss())
    folder, _ = simulate_pipeline(config, Pieces(config, given))
    run = open_run(folder)
    told = [event for event in run.events if event["event"] == "history"]
    assert [event["step"] for event in told] == [4, 4, 12, 12, 20, 20]
    # 3 snapshots of 4 steps: of each step, the newest three
    assert {(e["num_snapshots"], e["copies"], e["num_observed"]) for e in told} == {(3, 3.0, 4)}
    last = [event for event in told if event["process"] == "stage 1"]
    assert all(0 < event["straightness"] <= 1.000001 for event in told)
    assert all(event["loss_lowest"] <= event["loss_mean"] for event in last)
    titles = [title for title, _ in history_figures(run)]
    assert titles[:2] == ["length of jumps", "moves of training"]
    lines = {line["name"] for _, figure in history_figures(run) for line in figure["data"]}
    assert lines == {"stage 0", "stage 1"}
    assert "What each stage remembered" in write_report([folder], tmp_path / "r.html").read_text()


def test_moments_statistics_and_schedule_follow_the_laws_at_a_jump() -> None:
    """Adam counts real steps, the schedule all of them, running statistics only what was seen."""
    given = Given(
        make_model,
        lambda: (make_data(), make_data()),
        nn.CrossEntropyLoss(),
        lambda p: torch.optim.Adam(p, lr=0.001),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 25),
    )
    coast = run_pipeline(
        given,
        layout={"stages": 2, "micro_batches": 1},
        data={"batch_size": BATCH},
        train={"steps": 24},
        protocol={"name": "coast", "real": 4, "horizon": 4},
        predictor={"name": "velocity"},
    )
    real = len(coast.losses)
    assert real == 13
    for role in coast.roles:
        optimizer, schedule = role.updater.optimizer, role.updater.schedule
        assert {int(state["step"]) for state in optimizer.state.values()} == {real}
        assert schedule.last_epoch == 24
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001 * (1 - 24 / 25))
    # one batch of statistics for each real step, the first of which has momentum 0.1
    assert int(coast.state["1.num_batches_tracked"]) == real
    assert (coast.state["1.running_var"] > 0).all()


def test_an_optimizer_without_state_coasts() -> None:
    """Plain SGD keeps nothing; a jump by the last difference is then -h lr g."""
    given = Given(
        make_model,
        lambda: (make_data(), make_data()),
        nn.CrossEntropyLoss(),
        lambda p: torch.optim.SGD(p, lr=0.02),
    )
    coast = run_pipeline(
        given,
        layout={"stages": 2, "micro_batches": 1},
        data={"batch_size": BATCH},
        train={"steps": 24},
        protocol={"name": "coast", "real": 4, "horizon": 4},
        predictor={"name": "velocity", "estimate": "last"},
    )
    states = [s for role in coast.roles for s in role.updater.optimizer.state.values()]
    assert all(value is None for state in states for value in state.values())
    assert events(coast, "alone")
    assert all(loss < 5 for loss in coast.losses)


def test_a_parameter_that_is_no_number_ends_the_run_with_its_step() -> None:
    """NaN in the history: the loss was finite, the update was not."""

    class Poisoned(torch.optim.SGD):
        count = 0

        def step(self, closure: Any = None) -> None:
            super().step(closure)
            self.count += 1
            if self.count == 3:
                with torch.no_grad():
                    self.param_groups[0]["params"][0].view(-1)[0] = float("nan")

    given = Given(
        make_model,
        lambda: (make_data(), make_data()),
        nn.CrossEntropyLoss(),
        lambda p: Poisoned(p, lr=0.02),
    )
    with pytest.raises(NonFiniteError, match="the state at clock 3 has a NaN"):
        run_pipeline(
            given,
            layout={"stages": 2, "micro_batches": 1},
            data={"batch_size": BATCH},
            train={"steps": 24},
            protocol={"name": "coast", "real": 4, "horizon": 4},
        )


CODECS = [
    "identity", "cast:bf16", "quantise:4", "entropy+quantise:4", "top_k:0.5",
    "error_feedback+top_k:0.5", "delta+quantise:4", "delta,per=sample+quantise:4", "low_rank:2",
]  # fmt: skip


def test_all_codecs_are_tried_below() -> None:
    tried = {part.partition(":")[0].partition(",")[0] for c in CODECS for part in c.split("+")}
    assert tried == set(codecs.names())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "protocol",
    [
        {"name": "coast", "real": 4, "horizon": 4,
         "guard": {"name": "loss_guard", "min_losses": 2, "sigmas": 0.0}},
        {"name": "replay", "every": 3},
    ],
    ids=["coast", "replay"],
)  # fmt: skip
def test_both_compose_with_every_codec(protocol: dict[str, Any], codec: str) -> None:
    """Also across roll-backs: what both ends of a cut keep must go on fitting."""
    outcome = train(protocol, steps=60, lr=0.05, codec={"forward": codec, "backward": codec})
    assert len(outcome.losses) < 60
    assert outcome.scores[-1]["loss"] < outcome.losses[0]


RESUMED = {
    "fixed": {"protocol": {"name": "coast", "real": 3, "horizon": 4}},
    "backtest": {
        "protocol": {"name": "coast", "real": 6, "horizon": 3},
        "predictor": {"name": "backtest", "candidates": ["velocity"], "margin": 0.0},
    },
    "guarded": {
        "protocol": {"name": "coast", "real": 3, "horizon": 4,
                     "guard": {"name": "loss_guard", "min_losses": 2, "sigmas": 0.1}},
        "predictor": {"name": "koopman", "window": 4},
    },
    "replay": {"protocol": {"name": "replay", "every": 3, "guard": "loss_guard"}},
}  # fmt: skip


@pytest.mark.parametrize("name", RESUMED)
def test_history_and_plans_survive_a_stop(name: str, tmp_path: Path) -> None:
    """From any checkpoint the run ends with the bits that it has without a stop."""
    given: dict[str, Any] = RESUMED[name]
    whole = train(steps=20, run_dir=tmp_path, checkpoint={"every": 1, "keep": 99}, **given)
    saved = sorted((tmp_path / "checkpoints").glob("step-*"))
    assert len(saved) > 5
    for step in saved[:-1:3]:
        again = train(steps=20, run_dir=tmp_path / "again", resume_from=step, **given)
        for key, value in whole.state.items():
            assert torch.equal(again.state[key], value), (step.name, key)


@pytest.mark.parametrize(
    ("predictor", "text"),
    [
        ({"name": "velocity", "every": 0}, "predictor.every must be >= 1, got 0"),
        ({"name": "velocity", "history": -1}, "predictor.history must be >= 0, got -1"),
        ({"name": "velocity", "history": 1.5}, "must be a whole number"),
        ({"name": "backtest", "margn": 0.1}, "margin"),
        ({"name": "backtest", "margin": 2.0}, "margin must lie in"),
        ({"name": "per_stage"}, "a table with a name for each of the 2 stages"),
        ({"name": "per_stage", "stages": [{"name": "static"}]}, "for each of the 2 stages"),
        ({"name": "per_stage", "stages": [{"name": "static"}, {}]}, "a table with a name"),
        ({"name": "static", "stages": [{"name": "static"}] * 2}, "has no setting 'stages'"),
    ],
)
def test_bad_settings_of_predictors(predictor: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        train({"name": "coast", "real": 3, "horizon": 3}, predictor=predictor)
