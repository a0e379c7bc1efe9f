"""Pushes and pulls that data asks for, between servers and workers: threads, and one real run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import factories
from cli import ROOT, SUPPORT, freewheel, sets
from freewheel.config import ScheduleSection
from freewheel.errors import ConfigError, ModelError
from freewheel.protocols import protocols
from freewheel.runtime.pieces import Given
from freewheel.runtime.servers.arrivals_file import read_arrivals
from freewheel.runtime.training import make_schedule
from freewheel.simulate import Budget
from freewheel.simulate.replay import replay
from freewheel.simulate.served_training import ServedTraining
from freewheel.streams.sampler import Sampler
from freewheel.transport.base import Message
from served import Outcome, run_served

DATA = factories.small_data(48)
GIVEN = Given(model=factories.small_model, data=lambda: DATA)
STEPS = 24


def batches_of(rank: int, workers: int, data: Any) -> Iterator[tuple[Any, Any, int]]:
    (x, y), _ = data
    sampler = Sampler(len(x), 8, 0, rank, workers)
    while True:
        indices = sampler.next().indices
        yield x[indices], y[indices], len(indices)


def repeated(
    folder: Path,
    protocol: dict[str, Any],
    codec: dict[str, str],
    data: Any = DATA,
    model: Any = factories.small_model,
    steps: int = STEPS,
) -> dict[str, Tensor]:
    """Return what the arrivals of a run give in one process."""
    settings = dict(protocol)
    made = protocols.create(settings.pop("name"), settings)
    work = ServedTraining(
        model(),
        lambda rank: batches_of(rank, 3, data),
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        lambda optimizer: make_schedule(ScheduleSection(name="linear"), optimizer, steps),
        Budget(steps, 3, shared=False),
        8,
        local=made.pushes != "gradient",
        watch=made.watch,
        **codec,
    )
    replay(read_arrivals(folder), made, work)
    return work.trained().state_dict()


def trained(folder: Path, protocol: dict[str, Any], **more: Any) -> Outcome:
    steps = more.pop("steps", STEPS)
    layout = {"workers": 3, **more.pop("layout", {})}
    return run_served(
        more.pop("given", GIVEN),
        folder,
        data={"batch_size": 8},
        train={"steps": steps},
        layout=layout,
        optimizer={"name": "adam", "lr": 0.01},
        schedule={"name": "linear"},
        protocol=protocol,
        **more,
    )


RECKON = {"name": "dead_reckoning", "tolerance": 0.03}
EWMA = {"name": "velocity", "estimate": "ewma", "shrink": True}
CASES: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"name": "fda", "theta": 0.005}, {}),
    ({"name": "fda", "theta": 0.005, "every": 2, "estimate": "sketch"}, {"pull": "delta+cast"}),
    ({"name": "fda", "theta": 0.005}, {"push": "error_feedback+top_k:0.2"}),
    (RECKON, {}),
    ({**RECKON, "predictor": EWMA, "every": 3}, {}),
    ({**RECKON, "predictor": "velocity"}, {"push": "quantise:8", "pull": "quantise:4"}),
    ({**RECKON, "pull_tolerance": 0}, {"push": "error_feedback+top_k:0.2", "pull": "quantise:4"}),
    ({"name": "bsp"}, {"push": "error_feedback+top_k:0.2", "pull": "delta+quantise:8"}),
    ({"name": "asp"}, {"push": "quantise:8", "pull": "cast:bf16"}),
]


@pytest.mark.parametrize(("protocol", "codec"), CASES, ids=str)
def test_scenario_19_recorded_arrivals_replay_bit_for_bit_decisions_and_codecs(
    protocol: dict[str, Any], codec: dict[str, str], tmp_path: Path
) -> None:
    outcome = trained(tmp_path, protocol, codec=codec)
    for name, value in repeated(tmp_path, protocol, codec).items():
        assert torch.equal(outcome.state[name], value), name
    notes = outcome.served["workers"].values()
    pushes = sum(note["folded"] + sum(note["dropped"].values()) for note in notes)
    if "theta" in protocol or "tolerance" in protocol:
        assert 3 < pushes < 3 * STEPS, "some steps were sent and some were not"


@pytest.mark.parametrize("predictor", ["static", EWMA], ids=["static", "ewma"])
@pytest.mark.parametrize("consistency", ["global", "per_server"])
def test_both_ends_hold_the_same_numbers_over_two_servers(
    predictor: Any, consistency: str, tmp_path: Path
) -> None:
    protocol = {**RECKON, "predictor": predictor, "every": 2}
    here: dict[tuple[int, int], list[Tensor]] = {}
    there: dict[tuple[int, int], list[Tensor]] = {}

    def change(who: str, role: Any) -> None:
        kind, number = who.split()
        rank = int(number)
        if kind == "server":
            grant = role.hands._grant

            def granted(order: Any) -> None:
                grant(order)
                known = role.hands._ends[order.rank].both.known(order.asked)
                there.setdefault((order.rank, rank), []).append(known)

            role.hands._grant = granted
        else:
            adopt = role.exchange._adopt

            def adopted() -> Any:
                found = adopt()
                for server, end in enumerate(role.exchange._predicted.ends):
                    here.setdefault((rank, server), []).append(end.both.known(end._clock))
                return found

            role.exchange._adopt = adopted

    outcome = trained(
        tmp_path,
        protocol,
        layout={"servers": 2, "consistency": consistency},
        codec={"push": "quantise:8", "pull": "quantise:4"},
        change=change,
    )
    assert len(here) == 6
    for pair, values in here.items():
        # the last push is granted, too, and its worker does not wait for that
        assert 0 <= len(there[pair]) - len(values) <= 1
        assert len(values) > 3
        assert not torch.equal(values[0], values[-1])
        for one, other in zip(values, there[pair], strict=False):
            assert torch.equal(one, other)
    assert all(bool(torch.isfinite(value).all()) for value in outcome.state.values())


def test_tolerance_0_is_fedbuff_of_one_bit_for_bit(tmp_path: Path) -> None:
    """From the same arrivals, since two asynchronous runs are never alike."""
    outcome = trained(tmp_path, {"name": "fedbuff", "k": 1, "rescale": "none"})
    exact = {"name": "dead_reckoning", "tolerance": 0.0, "rescale": "none"}
    for name, value in repeated(tmp_path, exact, {}).items():
        assert torch.equal(outcome.state[name], value), name


def test_theta_0_averages_every_step(tmp_path: Path) -> None:
    ran = {}
    for name, settings in (("fda", {"theta": 0.0}), ("local_sgd", {"k": 1})):
        (tmp_path / name).mkdir()
        ran[name] = trained(tmp_path / name, {"name": name, **settings}, layout={"servers": 2})
    for name, value in ran["local_sgd"].state.items():
        assert torch.allclose(ran["fda"].state[name], value, rtol=1e-5, atol=1e-6), name
    messages = [outcome.totals["worker 0"]["traffic"]["train"] for outcome in ran.values()]
    assert messages[0]["messages_sent"] == messages[1]["messages_sent"]


def test_fda_over_three_servers_decides_as_with_one(tmp_path: Path) -> None:
    states = []
    for servers in (1, 3):
        folder = tmp_path / str(servers)
        folder.mkdir()
        protocol = {"name": "fda", "theta": 0.005}
        outcome = trained(folder, protocol, layout={"servers": servers})
        states.append((outcome.served["version"], outcome.state))
    assert states[0][0] == states[1][0] < STEPS
    for name, value in states[0][1].items():
        assert torch.allclose(states[1][1][name], value, atol=1e-5), name


def test_fda_with_servers_that_decide_by_themselves_is_refused(tmp_path: Path) -> None:
    layout = {"servers": 2, "consistency": "per_server"}
    with pytest.raises(ConfigError, match="'fda' compares whole models"):
        trained(tmp_path, {"name": "fda"}, layout=layout)


def test_a_report_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    def break_it(who: str, role: Any) -> None:
        if who == "worker 1":
            send = role.mail.send

            def send_other(to: str, sent: Message) -> None:
                if sent.kind == "report":
                    fields = {name: getattr(sent, name) for name in sent.__slots__}
                    sent = Message(**{**fields, "tensors": (torch.zeros(7),)})
                send(to, sent)

            role.mail.send = send_other

    with pytest.raises(ModelError, match="its report does not hold 2 numbers"):
        trained(tmp_path, {"name": "fda"}, change=break_it)


@pytest.mark.parametrize("protocol", [{"name": "fda", "theta": 0.005}, RECKON], ids=str)
def test_scenario_14_the_others_go_on_when_one_is_gone(
    protocol: dict[str, Any], tmp_path: Path
) -> None:
    class Died(Exception):
        pass

    def change(who: str, role: Any) -> None:
        if who == "worker 1":
            train, run = role._train, role.run

            def dies(step: int, batches: Any) -> Any:
                if step == 5:
                    raise Died
                return train(step, batches)

            def run_until_then() -> Any:
                try:
                    return run()
                except Died:
                    for server in ("server 0", "server 1"):
                        role.mail.link.send(server, Message("gone", meta={"rank": 1}))
                    return {}

            role._train, role.run = dies, run_until_then

    outcome = trained(tmp_path, protocol, layout={"servers": 2}, change=change)
    clocks = {rank: notes["clock"] for rank, notes in outcome.served["workers"].items()}
    assert clocks["0"] == clocks["2"] == STEPS
    assert clocks["1"] <= 5


class NanOnce(nn.Module):
    """Its gradient, not its loss, is NaN when the batch holds sample value 77."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)
        if output.requires_grad and bool((x[:, 0] == 77.0).any()):
            output.register_hook(lambda gradient: gradient * float("nan"))
        return output


def with_nan() -> Any:
    (x, y), _ = factories.small_data(48)
    x = x.clone()
    x[5, 0] = 77.0
    return (x, y), (x, y)


@pytest.mark.parametrize(
    "protocol",
    [
        {"name": "local_sgd", "k": 3},
        {"name": "fedbuff", "k": 1, "local_steps": 2},
        {"name": "easgd", "period": 2},
        {"name": "fda", "theta": 0.002},
        {**RECKON, "tolerance": 0.01},
    ],
    ids=lambda value: value["name"],
)
def test_scenario_15_a_nan_gradient_is_refused_named_and_replayed(
    protocol: dict[str, Any], tmp_path: Path
) -> None:
    """A worker with an optimizer of its own does not take such a step, here or when replayed."""
    data = with_nan()
    outcome = trained(tmp_path, protocol, given=Given(model=NanOnce, data=lambda: data), steps=6)
    events = outcome.events("refused")
    bad = [int(event["reason"].removesuffix(" non-finite values")) for event in events]
    assert sum(bad) == 3 * 21, "three epochs, each with one such batch, and 21 parameters"
    assert all(bool(torch.isfinite(value).all()) for value in outcome.state.values())
    for name, value in repeated(tmp_path, protocol, {}, data, NanOnce, 6).items():
        assert torch.equal(outcome.state[name], value), name


@pytest.mark.parametrize("name", ["bsp", "asp", "ssp"])
def test_scenario_3_a_step_without_samples_moves_the_schedule_in_a_replay_too(
    name: str, tmp_path: Path
) -> None:
    """40 samples in batches of 8 are 5 for 3 workers: one of every 6 steps is empty."""
    data = factories.small_data(40)
    given = Given(model=factories.small_model, data=lambda: data)
    outcome = trained(tmp_path, {"name": name}, given=given, steps=8)
    assert any(row["samples"] == 0 for row in outcome.rows)
    for key, value in repeated(tmp_path, {"name": name}, {}, data, steps=8).items():
        assert torch.equal(outcome.state[key], value), key


def test_a_loop_of_ones_own_begins_from_rank_0_and_is_predicted(tmp_path: Path) -> None:
    """Real processes: the workers' own initial parameters are not those that are predicted."""
    script = tmp_path / "loop.py"
    script.write_text(
        f"""
import sys
sys.path.insert(0, {str(SUPPORT)!r})
import torch, factories, freewheel
from safetensors.torch import save_file
torch.manual_seed(int.from_bytes(__import__("os").urandom(4), "big"))
model = torch.nn.Linear(6, 3)
(x, y), _ = factories.small_data(48)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
with freewheel.join(model, optimizer) as run:
    for step in range(20):
        rows = torch.arange(8) + 8 * ((step * run.world_size + run.rank) % 6)
        run.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        run.optimizer.step(num_samples=8)
save_file(model.state_dict(), {str(tmp_path)!r} + f"/{{run.rank}}.safetensors")
""",
        encoding="utf-8",
    )
    done = freewheel(
        *("launch", str(script), "--workers", "2", "--servers", "2", "--json"),
        *("--protocol", "dead_reckoning", "--set", "protocol.tolerance=0.05"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout[done.stdout.index("{") :])
    assert 2 <= sum(notes["folded"] for notes in summary["workers"].values()) < 40
    ends = [(tmp_path / f"{rank}.safetensors").read_bytes() for rank in range(2)]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("command", ["train", "simulate"])
def test_the_example_runs(command: str, tmp_path: Path) -> None:
    more = sets(data__name="digits", train__steps=25, run__dir=str(tmp_path))
    done = freewheel(
        *(command, str(ROOT / "examples" / "data_driven.toml"), "--json"),
        *more,
        *(["--each"] if command == "simulate" else []),
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["status"] == "ok"
    averages = summary["updates"] if command == "simulate" else summary["version"]
    assert 2 <= averages < 25
    assert summary["final_accuracy"] > 0.5
