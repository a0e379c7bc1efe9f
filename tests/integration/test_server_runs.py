"""How runs with servers begin, go on and end: uneven shards, bad pushes, buffers, waits."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import factories
from freewheel.errors import ConfigError, ModelError, NonFiniteError
from freewheel.protocols import protocols
from freewheel.runtime.pieces import Given
from freewheel.transport.base import Message
from freewheel.transport.schema import Limits
from served import run_served

GIVEN = Given(model=factories.small_model, data=factories.small_data)
SERVED = [name for name in protocols.names() if protocols.get(name).layout == "server"]
BIG_STEPS = {
    "local_sgd": {"k": 3},
    "fedbuff": {"local_steps": 2},
    "easgd": {"period": 2},
    "fda": {"theta": 0.0},
    "dead_reckoning": {"tolerance": 0.0},
}


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (3, 2)])
def test_scenarios_2_3_18_uneven_shards_end_and_every_push_is_accounted_for(
    name: str, workers: int, servers: int, tmp_path: Path
) -> None:
    outcome = run_served(
        GIVEN,  # 5 batches of 8: shards of 3 and 2, or of 2, 2 and 1
        tmp_path,
        data={"batch_size": 8},
        train={"epochs": 2},
        layout={"workers": workers, "servers": servers},
        protocol={"name": name, **BIG_STEPS.get(name, {})},
        run={"step_timeout_s": 10},
    )
    assert sum(row["samples"] for row in outcome.rows) == 2 * 40
    rounds = 2 * -(-5 // workers)
    for rank in range(workers):
        notes = outcome.served["workers"][str(rank)]
        assert notes["clock"] == rounds, "the last push of an early finisher was applied"
        per_push = {"local_sgd": 3, "fedbuff": 2, "easgd": 2}.get(name, 1)
        pushes = -(-rounds // per_push)
        assert notes["folded"] + sum(notes["dropped"].values()) == pushes
        assert [row["clock"] for row in outcome.rows_of(rank)] == list(range(1, rounds + 1))
    assert all(bool(torch.isfinite(value).all()) for value in outcome.state.values())


def test_scenario_3_an_empty_worker_weighs_nothing(tmp_path: Path) -> None:
    """With 5 samples and batches of 8 the second worker never has any."""
    both = run_served(
        Given(model=factories.small_model, data=lambda: factories.small_data(5)),
        tmp_path,
        data={"batch_size": 8},
        train={"steps": 4},
        layout={"workers": 2},
    )
    (tmp_path / "alone").mkdir()
    alone = run_served(
        Given(model=factories.small_model, data=lambda: factories.small_data(5)),
        tmp_path / "alone",
        data={"batch_size": 8},
        train={"steps": 4},
        layout={"workers": 1},
    )
    assert both.served["workers"]["1"]["dropped"] == {"no samples": 4}
    for name, value in alone.state.items():
        assert torch.equal(both.state[name], value), name


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


def bad_data() -> Any:
    (x, y), _ = factories.small_data(48)
    x = x.clone()
    x[5, 0] = 77.0
    return (x, y), (x, y)


@pytest.mark.parametrize("name", ["bsp", "asp", "ssp", "local_sgd"])
def test_scenario_15_a_nan_gradient_is_refused_and_named(name: str, tmp_path: Path) -> None:
    outcome = run_served(
        Given(model=NanOnce, data=bad_data),
        tmp_path,
        data={"batch_size": 8},
        train={"epochs": 1},
        layout={"workers": 2, "servers": 2},
        protocol={"name": name, **BIG_STEPS.get(name, {})},
    )
    assert all(bool(torch.isfinite(value).all()) for value in outcome.state.values())
    (event,) = outcome.events("refused")
    culprit = event["worker"].split()[1]
    assert "non-finite" in event["reason"]
    for rank, notes in outcome.served["workers"].items():
        expected = {"non-finite values": 1} if rank == culprit else {}
        assert notes["dropped"] == expected


def nan_loss(output: Tensor, targets: Tensor) -> Tensor:
    return output.mean() * float("nan")


def test_a_worker_that_is_never_finite_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="the last 100 pushes of worker 0 were NaN"):
        run_served(
            Given(model=factories.small_model, data=factories.small_data, loss=nan_loss),
            tmp_path,
            data={"batch_size": 8},
            train={"steps": 150},
            layout={"workers": 1},
            eval={"metrics": []},
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensors": (torch.zeros(3),)}, r"its vector is \(3,\)"),
        ({"tree": "delta"}, "it holds 'delta', and the protocol folds 'gradient'"),
    ],
)
def test_a_push_that_does_not_fit_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    def break_it(who: str, role: Any) -> None:
        if who == "worker 1":
            send = role.mail.send

            def send_other(to: str, sent: Message) -> None:
                if sent.kind == "push":
                    fields = {name: getattr(sent, name) for name in sent.__slots__} | change
                    sent = Message(**fields)
                send(to, sent)

            role.mail.send = send_other

    with pytest.raises(ModelError, match=f"server 0 refused the push of worker 1.*{message}"):
        run_served(
            GIVEN,
            tmp_path,
            data={"batch_size": 8},
            train={"steps": 3},
            layout={"workers": 2},
            protocol={"name": "asp"},
            change=break_it,
        )


def batchnorm() -> nn.Sequential:
    return factories.batchnorm_model()


@pytest.mark.parametrize("protocol", [{"name": "bsp"}, {"name": "local_sgd", "k": 2}])
def test_scenario_11_buffers_are_the_mean_and_equal_after_a_sync(
    protocol: dict[str, Any], tmp_path: Path
) -> None:
    outcome = run_served(
        Given(model=batchnorm, data=lambda: factories.small_data(48)),
        tmp_path,
        data={"batch_size": 8},
        train={"steps": 6},
        layout={"workers": 3, "servers": 2},
        protocol=protocol,
    )
    states = [outcome.roles[f"worker {rank}"].module.state_dict() for rank in range(3)]
    for name, value in outcome.state.items():
        for state in states:
            assert torch.equal(state[name], value), name
    assert outcome.state["1.num_batches_tracked"].dtype == torch.int64
    assert int(outcome.state["1.num_batches_tracked"]) == 6


def test_buffers_of_one_step_are_the_mean_by_hand(tmp_path: Path) -> None:
    outcome = run_served(
        Given(model=batchnorm, data=lambda: factories.small_data(16)),
        tmp_path,
        data={"batch_size": 8, "shuffle": False},
        train={"steps": 1},
        layout={"workers": 2},
    )
    (x, _), _ = factories.small_data(16)
    first = factories.batchnorm_model()[0]
    with torch.no_grad():
        means = [first(x[start : start + 8]).mean(0) for start in (0, 8)]
    # momentum 0.1 from zero
    expected = 0.1 * (means[0] + means[1]) / 2
    assert torch.allclose(outcome.state["1.running_mean"], expected, atol=1e-6)


def test_evaluation_comes_when_due_and_at_the_end_and_changes_nothing(tmp_path: Path) -> None:
    states = []
    for every in (0, 2):
        folder = tmp_path / str(every)
        folder.mkdir()
        outcome = run_served(
            GIVEN,
            folder,
            data={"batch_size": 8},
            train={"steps": 6},
            layout={"workers": 2, "servers": 2},
            eval={"every": every},
        )
        states.append(outcome.state)
        steps = [score["step"] for score in outcome.scores]
        assert steps == ([2, 4, 6] if every else [6])
        assert [score["version"] for score in outcome.scores] == steps
        assert outcome.totals["server 1"]["traffic"]["evaluate"]["messages_sent"] == len(steps)
    for name, value in states[0].items():
        assert torch.equal(states[1][name], value), name


def test_scenario_16_a_server_idles_longer_than_any_timeout(tmp_path: Path) -> None:
    """Steps take longer than run.step_timeout_s: only waits for a reply are held against it."""

    def slow(who: str, role: Any) -> None:
        if who.startswith("worker"):
            train = role._train

            def later(step: int, batches: Any) -> Any:
                threading.Event().wait(0.5)
                return train(step, batches)

            role._train = later

    outcome = run_served(
        GIVEN,
        tmp_path,
        data={"batch_size": 8},
        train={"steps": 2},
        layout={"workers": 2, "servers": 2},
        protocol={"name": "asp"},
        run={"step_timeout_s": 0.3},
        change=slow,
    )
    assert outcome.served["version"] == 4


def test_scenario_21_whom_a_worker_waited_for_is_in_its_rows(tmp_path: Path) -> None:
    def slow(who: str, role: Any) -> None:
        if who == "worker 1":
            train = role._train

            def later(step: int, batches: Any) -> Any:
                threading.Event().wait(1.5 if step == 1 else 0.0)
                return train(step, batches)

            role._train = later

    outcome = run_served(
        GIVEN,
        tmp_path,
        data={"batch_size": 8},
        train={"steps": 3},
        layout={"workers": 2},
        change=slow,
    )
    row = outcome.rows_of(0)[1]
    assert row["wait_for"] == "worker 1"
    assert row["wait_s"] > 1.0
    told = [dict(m.meta) for m in outcome.told if m.kind == "waiting"]
    assert {"process": "worker 0", "for": "worker 1"}.items() <= told[0].items()
    assert outcome.totals["worker 0"]["waited_for"]["worker 1"] > 1.0


def test_clipping_by_parts_of_different_versions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs the gradient of the whole model"):
        run_served(
            GIVEN,
            tmp_path,
            data={"batch_size": 8},
            train={"steps": 2, "clip_norm": 1.0},
            layout={"workers": 1, "servers": 2, "consistency": "per_server"},
        )


@pytest.mark.parametrize(
    ("codec", "least"),
    [
        ({"push": "error_feedback+top_k:0.1"}, 0.60),
        ({"push": "quantise:8", "pull": "delta+quantise:8"}, 0.30),
        ({"push": "cast:bf16", "pull": "cast:bf16"}, 0.51),
    ],
    ids=["top_k", "quantise", "cast"],
)
@pytest.mark.parametrize("name", ["bsp", "asp", "fedbuff"])
def test_codecs_of_pushes_and_pulls_save_bytes_and_still_learn(
    codec: dict[str, str], least: float, name: str, tmp_path: Path
) -> None:
    ran = {}
    for kind, section in (("coded", codec), ("whole", {})):
        (tmp_path / kind).mkdir()
        ran[kind] = run_served(
            Given(model=wide_model, data=lambda: factories.small_data(48)),
            tmp_path / kind,
            data={"batch_size": 8},
            train={"epochs": 10},
            layout={"workers": 2, "servers": 2},
            protocol={"name": name, **({"k": 1} if name == "fedbuff" else {})},
            optimizer={"name": "sgd", "lr": 0.002},
            codec=section,
        )

    def sent(kind: str) -> int:
        return sum(t["traffic"]["train"]["bytes_sent"] for t in ran[kind].totals.values())

    # header, meta and orders of some hundred bytes a message are the same in both
    assert sent("coded") < (least + 0.05) * sent("whole")
    losses = [outcome.scores[-1]["metrics"]["loss"] for outcome in ran.values()]
    assert losses[0] == pytest.approx(losses[1], abs=0.1)
    assert losses[0] < 1.0


def wide_model() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 3000), nn.Tanh(), nn.Linear(3000, 3))


def test_scenario_22_parameters_beyond_the_message_limit_travel_in_pieces(tmp_path: Path) -> None:
    states = []
    for limits in (
        None,
        Limits(piece_bytes=1 << 12, max_message_bytes=1 << 15, max_text_bytes=1 << 12),
    ):
        folder = tmp_path / str(len(states))
        folder.mkdir()
        outcome = run_served(
            Given(model=wide_model, data=factories.small_data),  # 120 kB of parameters
            folder,
            data={"batch_size": 8},
            train={"steps": 3},
            layout={"workers": 2, "servers": 2},
            limits=limits,
        )
        states.append(outcome.state)
    for name, value in states[0].items():
        assert torch.equal(states[1][name], value), name


@pytest.mark.parametrize("name", ["bsp", "ssp", "local_sgd", "backup_workers"])
def test_scenario_14_the_others_go_on_when_one_is_gone(name: str, tmp_path: Path) -> None:
    """A synchronous round shrinks once the coordinator has said that a worker died."""

    class Died(Exception):
        pass

    def change(who: str, role: Any) -> None:
        if who == "worker 1":
            train, run = role._train, role.run

            def dies(step: int, batches: Any) -> Any:
                if step == 3:
                    raise Died
                return train(step, batches)

            def run_until_then() -> Any:
                try:
                    return run()
                except Died:
                    # what the coordinator does when it sees that the process is no more
                    for server in ("server 0", "server 1"):
                        role.mail.link.send(server, Message("gone", meta={"rank": 1}))
                    return {}

            role._train, role.run = dies, run_until_then

    outcome = run_served(
        GIVEN,
        tmp_path,
        data={"batch_size": 4},
        train={"steps": 8},
        layout={"workers": 3, "servers": 2},
        protocol={"name": name, **BIG_STEPS.get(name, {})},
        change=change,
    )
    clocks = {rank: notes["clock"] for rank, notes in outcome.served["workers"].items()}
    assert clocks["0"] == clocks["2"] == 8
    assert clocks["1"] == 3
