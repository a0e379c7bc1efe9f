"""From all-reduce to servers: nothing is lost, and the four silent faults of a hand-over are loud.

The faults are those of an independent implementation of the published method: gradients that were
summed in place of averaged, parts in another order on servers than on workers, parameters bound by
the order of a ring rather than by address, and a barrier over a fixed count.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import factories
from freewheel.config import ScheduleSection
from freewheel.errors import ModelError, WorkerError
from freewheel.runtime.pieces import Given
from freewheel.runtime.servers.sequencer import Order
from freewheel.runtime.switching.hand_over import fingerprint, order_of
from freewheel.runtime.training import make_schedule
from freewheel.transport.base import Link, Message
from freewheel.transport.inproc import InprocHub
from plain import train_plain
from switched import run_switched

GIVEN = Given(model=factories.small_model, data=factories.small_data)
SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
ADAM = {"name": "adam", "lr": 0.01}


def after(step: int) -> dict[str, Any]:
    return {"name": "maximum", "clock": step}


def run(tmp_path: Path, protocol: dict[str, Any], **how: Any) -> Any:
    workers, servers = how.pop("workers", 2), how.pop("servers", 1)
    return run_switched(
        how.pop("given", GIVEN),
        tmp_path,
        protocol={"then": "bsp", "criterion": after(4), **protocol},
        layout={"workers": workers, "servers": servers},
        data={"batch_size": how.pop("batch_size", 8)},
        train={"steps": 11, **how.pop("train", {})},
        **how,
    )


def expected(
    optimizer: dict[str, Any],
    schedule: dict[str, Any],
    workers: int,
    batch_size: int = 8,
    clip: float | None = None,
) -> dict[str, Tensor]:
    (x, y), _ = factories.small_data()
    model = factories.small_model()
    settings = {key: value for key, value in optimizer.items() if key != "name"}
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer["name"]]
    made = kind(model.parameters(), **settings)
    moves = make_schedule(ScheduleSection(**schedule), made, 11)
    train_plain(
        model,
        x,
        y,
        nn.CrossEntropyLoss(),
        made,
        11,
        batch_size,
        world_size=workers,
        schedule=moves,
        clip_norm=clip,
    )
    return model.state_dict()


@pytest.mark.parametrize(
    ("optimizer", "schedule", "workers", "servers", "clip"),
    [
        (SGD, {"name": "cosine", "warmup": 2}, 2, 1, None),
        (ADAM, {"name": "steps", "milestones": [0.2, 0.6]}, 3, 3, None),
        (SGD, {"name": "linear"}, 2, 2, 0.05),
    ],
    ids=["one server", "adam on three", "clipped on two"],
)
def test_all_reduce_then_bsp_is_one_process_throughout(
    optimizer: dict[str, Any],
    schedule: dict[str, Any],
    workers: int,
    servers: int,
    clip: float | None,
    tmp_path: Path,
) -> None:
    """No sample, step, momentum or schedule position is lost; gradients are averaged, not summed.

    The first silent fault: a sum in place of a mean would make the rate of the first phase
    ``workers`` times too large.
    """
    outcome = run(
        tmp_path,
        {},
        workers=workers,
        servers=servers,
        optimizer=optimizer,
        schedule=schedule,
        train={} if clip is None else {"clip_norm": clip},
    )
    wanted = expected(optimizer, schedule, workers, clip=clip)
    for name, value in outcome.state.items():
        torch.testing.assert_close(value, wanted[name], rtol=2e-5, atol=2e-6)
    assert outcome.totals["server 0"]["switch"]["switched_at"] == 4
    for rank in range(workers):
        rows = outcome.rows_of(rank)
        assert [row["step"] for row in rows] == list(range(1, 12)), "each step once"
    assert sum(row["samples"] for row in outcome.rows) == sum(
        len(batch) for batch in _batches(workers)
    )


def _batches(workers: int) -> list[Tensor]:
    from freewheel.streams.sampler import Sampler

    samplers = [Sampler(40, 8, 0, rank, workers) for rank in range(workers)]
    return [sampler.next().indices for _ in range(11) for sampler in samplers]


@pytest.mark.parametrize(
    ("optimizer", "schedule", "servers"),
    [(SGD, {"name": "cosine", "warmup": 2}, 1), (ADAM, {"name": "linear"}, 2)],
    ids=["one server", "adam on two"],
)
def test_there_and_back_again_is_one_process_throughout(
    optimizer: dict[str, Any], schedule: dict[str, Any], servers: int, tmp_path: Path
) -> None:
    """Momentum and schedule survive the return, and the optimizer's parts are whole again."""
    protocol = {
        "criterion": {"name": "any_of", "members": [after(3)]},
        "back": {"name": "all_of", "members": [after(6)]},
        "at_switch": [] if optimizer is ADAM else ["correct_velocity"],
    }
    outcome = run(
        tmp_path, protocol, servers=servers, optimizer=optimizer, schedule=schedule, workers=2
    )
    wanted = expected(optimizer, schedule, 2)
    switched = [(row["step"], row["to"]) for row in outcome.events("switched")]
    # the clock of a criterion goes on: once 3 is passed, each return is followed by a departure
    assert switched[:3] == [(3, "server"), (6, "replicas"), (7, "server")]
    (state,) = [role.module.state_dict() for role in outcome.roles.values() if role.saves_final]
    for name, value in state.items():
        torch.testing.assert_close(value, wanted[name], rtol=5e-5, atol=5e-6)
    for rank in range(2):
        assert [row["step"] for row in outcome.rows_of(rank)] == list(range(1, 12))


def test_without_barriers_and_back_no_step_is_counted_twice(tmp_path: Path) -> None:
    """Fast workers have taken more steps by then; each goes on with its own count and samples."""
    outcome = run(
        tmp_path,
        {
            "then": {"name": "asp", "rescale": "lr_over_n"},
            "criterion": {"name": "maximum", "clock": 3},
            "back": {"name": "maximum", "clock": 7},
        },
        workers=3,
        optimizer=SGD,
    )
    switched = [row["to"] for row in outcome.events("switched")]
    assert switched[:2] == ["server", "replicas"]
    for rank in range(3):
        steps = [row["step"] for row in outcome.rows_of(rank)]
        assert steps == list(range(1, len(steps) + 1))
    taken = sum(len(outcome.rows_of(rank)) for rank in range(3))
    assert 3 * 11 <= taken < 3 * 11 + 3 * len(switched), "whole rounds after a return"
    values = [role.module.state_dict() for name, role in outcome.roles.items() if role.saves_final]
    assert len(values) == 1
    assert all(torch.isfinite(value).all() for value in values[0].values())


@pytest.mark.parametrize("switch_at", [0, 10, 11, 99])
def test_a_switch_in_the_first_step_the_last_or_never(switch_at: int, tmp_path: Path) -> None:
    outcome = run(tmp_path, {"criterion": after(switch_at)}, optimizer=SGD, workers=2)
    wanted = expected(SGD, {"name": "constant"}, 2)
    never = switch_at > 11
    over = 0 < switch_at < 11 or switch_at == 0
    state = outcome.state if over else outcome.roles["worker 0"].module.state_dict()
    for name, value in state.items():
        torch.testing.assert_close(value, wanted[name], rtol=2e-5, atol=2e-6)
    said = outcome.totals["server 0" if over else "worker 0"]["switch"]
    assert said["switched_at"] == (None if never else max(1, switch_at))
    if never:
        assert said["switch"] == "never fired: maximum ended at 11, its threshold is 99"
    saves = [name for name, role in outcome.roles.items() if role.saves_final]
    assert saves == (["server 0"] if over else ["worker 0"])
    assert outcome.scores[-1]["step"] == 11


def test_without_barriers_all_samples_are_taken_and_not_one_more(tmp_path: Path) -> None:
    outcome = run(
        tmp_path, {"then": {"name": "asp", "rescale": "lr_over_n"}}, workers=3, optimizer=SGD
    )
    steps = [outcome.totals[f"worker {rank}"]["step"] for rank in range(3)]
    assert sum(steps) == 3 * 11
    assert outcome.served["version"] == 4 + sum(n["folded"] for n in _notes(outcome))
    assert sum(n["folded"] for n in _notes(outcome)) <= 3 * 7
    (switched,) = outcome.events("switched")
    assert (switched["step"], switched["to"]) == (4, "server")
    verdicts = outcome.events("verdict")
    assert [row["statistic"] for row in verdicts] == [1.0, 2.0, 3.0, 4.0]
    assert {row["threshold"] for row in verdicts} == {4.0}


def _notes(outcome: Any) -> list[dict[str, Any]]:
    return list(outcome.served["workers"].values())


def test_what_happens_to_rate_and_momentum_is_what_was_asked(tmp_path: Path) -> None:
    """lr / (1 - mu) and no momentum under bsp: plain SGD from the step of the switch on."""
    changes = ["fold_momentum", {"name": "scale_lr", "factor": 0.5}]
    outcome = run(tmp_path, {"at_switch": changes}, optimizer=SGD)
    (x, y), _ = factories.small_data()
    model = factories.small_model()
    made = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    moves = _After(made, step=4, lr=0.1 / (1 - 0.9) * 0.5, momentum=0.0)
    train_plain(model, x, y, nn.CrossEntropyLoss(), made, 11, 8, world_size=2, schedule=moves)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(outcome.state[name], value, rtol=2e-5, atol=2e-6)
    rates = {row["step"]: row["lr"] for row in outcome.rows_of(0)}
    assert rates[4] == pytest.approx(0.1)
    assert rates[11] == pytest.approx(0.5)


class _After:
    """Sets an optimizer's rate and momentum after so many steps."""

    def __init__(self, optimizer: torch.optim.Optimizer, step: int, **settings: float) -> None:
        self.optimizer, self.at, self.settings, self.steps = optimizer, step, settings, 0

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.at:
            self.optimizer.param_groups[0].update(self.settings)


def test_parts_in_another_order_on_a_server_are_an_error(tmp_path: Path) -> None:
    """The second silent fault: it hides where layers shrink from input to output, as here."""

    def change(name: str, role: Any) -> None:
        if name == "server 1":
            role.parameters = role.parameters[::-1]

    with pytest.raises(ModelError, match=r"worker 0 keeps the parameters of server 1 in another"):
        run(tmp_path, {}, servers=2, optimizer=SGD, change=change)


class _Swapped:
    """Sends what is for one server to the next one in a ring."""

    def __init__(self, inner: Link) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def send(self, to: str, message: Message, *, timeout_s: float = 60.0) -> None:
        ring = {"server 0": "server 1", "server 1": "server 0"}
        if message.kind in ("state", "ready"):
            to = ring.get(to, to)
        self.inner.send(to, message, timeout_s=timeout_s)


@pytest.mark.parametrize("who", [("worker 0", "worker 1"), ("worker 1",)])
def test_parameters_bound_by_ring_order_are_an_error(who: tuple[str, ...], tmp_path: Path) -> None:
    """The third silent fault: one worker's parts, or all, at the wrong servers."""

    def wrap(name: str, link: Link) -> Link:
        swapped: Any = _Swapped(link)
        return swapped if name in who else link

    with pytest.raises(ModelError, match=r"server [01]"):
        run(tmp_path, {}, servers=2, optimizer=SGD, wrap=wrap)


def test_a_worker_that_drifted_off_is_an_error(tmp_path: Path) -> None:
    """As one whose gradients were not averaged would have."""

    class Drifting:
        def __init__(self, role: Any) -> None:
            self.inner, self.module = role.sum, role.module

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def run(self, word: float) -> float:
            heard = self.inner.run(word)
            for parameter in self.module.parameters():
                parameter.grad *= 2  # a sum over two, where the others have the mean
            return heard

    def change(name: str, role: Any) -> None:
        if name == "worker 1":
            role.sum = Drifting(role)

    with pytest.raises(ModelError, match="worker 1 has other parameters for server 0"):
        run(tmp_path, {}, optimizer=SGD, change=change)


def test_all_reduce_does_not_come_back_without_a_worker_that_died(tmp_path: Path) -> None:
    server = _server_of_three(tmp_path)
    server.hands.gone.add(1)
    with pytest.raises(WorkerError, match=r"worker 1 died under the servers, and all-reduce"):
        server._carry_out([Order("return", ((0, 4), (2, 4)), version=5)])


def test_members_are_waited_for_by_name_not_by_count(tmp_path: Path) -> None:
    """The fourth silent fault: worker 0 says three times that it is ready; worker 1 has left."""
    server = _server_of_three(tmp_path)
    waited: list[str] = []

    def script() -> list[Message]:
        state, ready = _hand_over(server, members=[0, 2])
        return [ready(0), state, ready(0), ready(0), ready(2)]

    messages = script()

    class Scripted:
        def receive(self, **_: Any) -> Message:
            message = messages.pop(0)
            waited.append(f"{message.kind} {message.sender}")
            return message

    server.mail.link = Scripted()
    assert server._wait() is not None
    assert waited[-1] == "ready worker 2", "three words of worker 0 are one"
    assert not messages, "nor does it wait for worker 1, which is no member"


def _server_of_three(tmp_path: Path) -> Any:
    from freewheel.config import parse_config
    from freewheel.runtime.context import Context
    from freewheel.runtime.job import Job
    from freewheel.runtime.mail import Mail
    from freewheel.runtime.pieces import Pieces
    from freewheel.runtime.stopwatch import Stopwatch
    from freewheel.runtime.switching.server import SwitchingServerRole

    config = parse_config(
        {
            "layout": {"kind": "server", "workers": 3},
            "protocol": {"name": "strategy_switch"},
            "train": {"steps": 5},
        }
    )
    job = Job("server", 0, "00" * 8, str(tmp_path), "")
    mail = Mail(InprocHub().link("server 0"), Stopwatch(), 5.0)
    return SwitchingServerRole(Context(job, config, Pieces(config, GIVEN), mail))


def _hand_over(server: Any, members: list[int]) -> tuple[Message, Any]:
    from freewheel.runtime.servers.part_optimizer import split_for, trained_by
    from freewheel.runtime.switching.hand_over import state_message

    module = factories.small_model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    parameters = trained_by(optimizer)
    (part,), whole = split_for(optimizer, parameters, 1)
    vector = torch.cat([p.detach().reshape(-1) for p in parameters])
    facts = {"clock": 3, "version": 3, "members": members, "machine": {}, "grants": []}
    state = state_message(vector, part, parameters, optimizer, None, whole, facts)
    said = {"order": order_of(module, parameters, part), "fingerprint": fingerprint(vector)}

    def ready(rank: int) -> Message:
        return Message("ready", (torch.empty(0),), clock=3, meta=said, sender=f"worker {rank}")

    return replace(state, sender="worker 0"), ready


def test_buffers_of_all_workers_become_their_mean(tmp_path: Path) -> None:
    given = Given(model=factories.batchnorm_model, data=factories.small_data)
    outcome = run(tmp_path, {}, given=given, optimizer=SGD)
    assert int(outcome.state["1.num_batches_tracked"]) == 11
    assert torch.isfinite(outcome.state["1.running_var"]).all()


def test_the_validation_loss_is_that_of_the_whole_part_after_each_epoch(tmp_path: Path) -> None:
    """Replicas score shares of it, and the sum rides in the all-reduce."""
    rule = {"name": "relative_change", "window": 2, "loss": "validation_loss", "per": "epoch"}
    outcome = run(
        tmp_path,
        {"criterion": {**rule, "threshold": 0.0}},
        given=Given(model=factories.small_model, data=_three_parts),
        optimizer={"name": "sgd", "lr": 0.1},
        eval={"batch_size": 3},
    )
    shown = [row["loss"] for row in outcome.events("verdict") if row["loss"] is not None]
    (x, y), (held_x, held_y), _ = _three_parts()
    wanted = []
    for updates in (2, 5, 8):  # an epoch is 3 steps, and is measured before its last update
        model = factories.small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train_plain(model, x, y, nn.CrossEntropyLoss(), optimizer, updates, 8, world_size=2)
        with torch.no_grad():
            wanted.append(float(nn.functional.cross_entropy(model(held_x), held_y)))
    assert list(dict.fromkeys(shown)) == pytest.approx(wanted, rel=1e-4)


def _three_parts() -> tuple[tuple[Tensor, Tensor], ...]:
    (x, y), test = factories.small_data(40)
    generator = torch.Generator().manual_seed(5)
    held_x = torch.randn(10, 6, generator=generator)
    return (x, y), (held_x, torch.arange(10) % 3), test


@pytest.mark.parametrize(
    ("criterion", "loss", "fires"),
    [
        ({"name": "relative_change", "window": 2}, "constant", True),
        ({"name": "relative_change", "window": 2, "threshold": 1e-9}, "falling", False),
    ],
)
def test_a_criterion_over_a_loss_that_is_constant_or_falls(
    criterion: dict[str, Any], loss: str, fires: bool, tmp_path: Path
) -> None:
    optimizer = {"name": "sgd", "lr": 0.0 if loss == "constant" else 0.1}
    data = {"batch_size": 20}
    outcome = run_switched(
        GIVEN,
        tmp_path,
        protocol={"then": "bsp", "criterion": criterion},
        layout={"workers": 2},
        data=data,
        train={"steps": 6},
        optimizer=optimizer,
    )
    said = outcome.totals["server 0" if fires else "worker 0"]["switch"]
    assert (said["switched_at"] is not None) == fires
    if not fires:
        assert re.match(r"never fired: relative_change ended at [\d.]+, its", said["switch"])
