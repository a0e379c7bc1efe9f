"""The protocol that goes over: its machine, its changes, in virtual time, and bad input."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from freewheel.errors import ConfigError
from freewheel.monitors.stragglers import slowness
from freewheel.protocols import protocols
from freewheel.protocols.at_switch import Changes
from freewheel.protocols.changed import Changed
from freewheel.protocols.k_async import fastest_size
from freewheel.protocols.replicas import (
    Drop,
    Fold,
    Grant,
    Joined,
    Left,
    Push,
    Pushed,
    Reduced,
    SwitchTopology,
)
from freewheel.protocols.strategy_switch import StrategySwitch
from freewheel.simulate import (
    Budget,
    Compute,
    CostOnly,
    Fault,
    LinkSpec,
    Observer,
    Simulation,
    Stragglers,
)
from freewheel.simulate.training import Training, TrainingBatch
from freewheel.streams.sampler import Sampler


def switch(**settings: Any) -> Any:
    return protocols.create("strategy_switch", settings)


def after(step: int) -> dict[str, Any]:
    return {"name": "maximum", "clock": step}


def central(**settings: Any) -> Any:
    machine = switch(**settings).central()
    for rank in range(3):
        assert list(machine.on(Joined(rank))) == []
    return machine


def pushed(rank: int, clock: int, based_on: int = 0) -> Pushed:
    return Pushed(Push(rank, clock, based_on, num_samples=4), {"loss": 1.0, "duration_s": 1.0})


def test_under_all_reduce_nothing_is_granted_and_the_switch_grants_all_at_their_clock() -> None:
    machine = central(criterion=after(2))
    assert list(machine.on(Reduced(1, {"loss": 1.0}))) == []
    assert list(machine.on(Reduced(2, {"loss": 1.0}))) == [
        SwitchTopology("server"),
        *(Grant(rank, 2) for rank in range(3)),
    ]
    fold, grant = machine.on(pushed(1, 3, based_on=2))
    assert isinstance(fold, Fold)
    assert fold.weights == (pytest.approx(1 / 3),), "lr_over_n"
    assert grant == Grant(1, 3)


def test_staleness_is_counted_in_versions_of_the_whole_run() -> None:
    machine = central(criterion=after(2), then={"name": "gba", "batches": 1, "tolerance": 0})
    for clock in (1, 2):
        machine.on(Reduced(clock, {"loss": 1.0, "num_samples": 4.0}))
    assert isinstance(machine.on(pushed(0, 3, based_on=2))[0], Fold), "fresh"
    assert isinstance(machine.on(pushed(1, 3, based_on=2))[0], Drop), "one version old"


def test_a_collective_without_samples_makes_no_version() -> None:
    machine = central(criterion=after(9))
    machine.on(Reduced(1, {"num_samples": 0.0}))
    machine.on(Reduced(2, {"num_samples": 3.0}))
    assert machine.version == 1


def test_on_the_way_back_nobody_is_answered_until_all_wait_and_nothing_is_left_unfolded() -> None:
    machine = central(
        criterion=after(1), then={"name": "gba", "batches": 4}, back={"name": "maximum", "clock": 2}
    )
    machine.on(Reduced(1, {"loss": 1.0}))
    # three pushes are a round: the second one of the run, after which it goes back
    assert machine.on(pushed(0, 2)) == [Grant(0, 2)]
    assert machine.on(pushed(0, 3)) == [Grant(0, 3)]
    assert machine.on(pushed(1, 2)) == []
    assert machine.on(pushed(0, 4)) == [
        Fold(tuple(_pushes((0, 2), (0, 3), (1, 2), (0, 4))), (0.25,) * 4)
    ]
    last = machine.on(pushed(2, 2))
    assert last[:2] == [Fold(tuple(_pushes((2, 2))), (1.0,)), SwitchTopology("replicas")]
    assert last[2:] == [Grant(0, 4), Grant(1, 2), Grant(2, 2)]
    assert machine.switches == [[1, 1], [2, 0]]


def _pushes(*names: tuple[int, int]) -> Iterator[Push]:
    return (Push(rank, clock, 0, 4) for rank, clock in names)


def test_who_dies_while_all_are_waited_for_is_waited_for_no_longer() -> None:
    machine = central(criterion=after(1), back=after(2))
    machine.on(Reduced(1, {"loss": 1.0}))
    for clock in (2, 3):
        machine.on(pushed(0, clock))
    assert isinstance(machine.on(pushed(1, 2))[0], Fold)
    assert machine.on(pushed(0, 4))[1:] == []
    actions = machine.on(Left(2))
    assert SwitchTopology("replicas") in actions
    assert [a for a in actions if isinstance(a, Grant)] == [Grant(0, 4), Grant(1, 2)]


@pytest.mark.parametrize(
    ("losses", "fires"),
    [
        (itertools.repeat(1.5), True),
        (itertools.repeat(0.0), True),
        (itertools.repeat(math.nan), False),
        ((0.1 * 1.05**step for step in itertools.count()), False),
        ((2.0 * 0.9**step for step in itertools.count()), False),
    ],
    ids=["constant", "zero", "nan", "rising", "falling"],
)
def test_the_published_rule_over_any_loss(losses: Iterator[float], fires: bool) -> None:
    """Bad input: a loss that is NaN, constant, zero or rising; that it never fired is said."""
    machine = central()
    for clock in range(1, 60):
        machine.on(Reduced(clock, {"loss": next(losses), "num_samples": 4.0}))
    assert (machine.switched_at is not None) == fires
    facts = machine.facts()
    if fires:
        assert facts == {"switched_at": 6, "switches": [{"step": 6, "to": "asp"}]}
    else:
        assert facts["switch"].startswith("never fired: relative_change ended at")
        assert facts["switch"].endswith("its threshold is 0.01")
    assert json.loads(json.dumps(facts)) == facts


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"then": "local_sgd"}, "must push one gradient a step"),
        ({"then": "fedbuff"}, "must push one gradient a step"),
        ({"first": "vanilla"}, "must push one gradient a step"),
        ({"then": "strategy_switch"}, "must push one gradient a step"),
        ({"then": "all_reduce"}, "nothing to switch between"),
        ({"then": {"staleness": 3}}, "a name and settings"),
        ({"then": "sgp"}, "unknown protocol 'sgp'"),
        ({"criterion": "relative_chang"}, r"relative_change"),
        ({"criterion": {"name": "relative_change", "window": 1}}, "window must be >= 2"),
        ({"criterion": {"name": "fixed_fraction", "fraction": 1.5}}, r"\[0, 1\]"),
        ({"back": 3}, "a name and settings"),
        ({"at_switch": "fold_momentun"}, "fold_momentum"),
        ({"at_switch": [{"name": "scale_lr", "factor": -1.0}]}, "factor must be > 0"),
        ({"at_switch": [{"name": "scale_batch", "factor": 0}]}, "factor must be >= 1"),
        ({"at_switch": [{"name": "ramp_lr", "start": 2.0}]}, r"start must lie in \[0, 1\]"),
        ({"at_switch": [{"factor": 2.0}]}, "needs a name"),
    ],
)
def test_bad_settings_are_errors_with_the_rule(settings: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        switch(**settings)


def test_bad_numbers_of_a_simulation_are_errors_with_the_rule() -> None:
    """Bad input: 0 workers, or a negative rate."""
    with pytest.raises(ConfigError, match="workers must be >= 1, got 0"):
        Simulation(switch(), CostOnly(Budget(1, 1), 0), 0)
    with pytest.raises(ConfigError, match="link rate must be > 0 Mbit/s, got -5"):
        LinkSpec(rate_mbit=-5)


def sgd(**settings: Any) -> torch.optim.SGD:
    weight = torch.nn.Parameter(torch.ones(2))
    return torch.optim.SGD([weight], **{"lr": 0.1, "momentum": 0.9, **settings})


def take_steps(optimizer: torch.optim.Optimizer, count: int) -> torch.Tensor:
    (weight,) = optimizer.param_groups[0]["params"]
    for _ in range(count):
        weight.grad = torch.ones(2)
        optimizer.step()
    value: torch.Tensor = weight.detach().clone()
    return value


def test_folded_momentum_moves_as_far_under_a_constant_gradient() -> None:
    optimizer = sgd()
    Changed(optimizer, None, Changes("fold_momentum"), num_workers=8)
    # heavy-ball momentum moves lr / (1 - mu) a step in the end
    torch.testing.assert_close(take_steps(optimizer, 5), torch.ones(2) - 5 * 0.1 / (1 - 0.9))


def test_a_schedule_goes_on_from_the_changed_rate_and_comes_back() -> None:
    optimizer = sgd()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    changed = Changed(optimizer, schedule, Changes(["fold_momentum", "scale_lr"]), 4)
    rates = []
    for _ in range(2):
        take_steps(optimizer, 1)
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.5 / 2, 0.5 / 3])
    changed.undo()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 3)
    assert optimizer.param_groups[0]["momentum"] == 0.9
    take_steps(optimizer, 1)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 4)


def test_a_ramp_is_over_after_its_updates_and_leaves_the_rate_alone() -> None:
    optimizer = sgd(momentum=0.0)
    Changed(optimizer, None, Changes([{"name": "ramp_lr", "updates": 2, "start": 0.5}]), 4)
    moved = 1.0 - take_steps(optimizer, 3)
    torch.testing.assert_close(moved, torch.full((2,), 0.1 * (0.5 + 0.75 + 1.0)))
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_momentum_correction_keeps_the_length_of_steps_and_forgetting_ends_them() -> None:
    for spec, expected in (("correct_velocity", 1.0 / 4.0), ("forget_velocity", 0.0)):
        optimizer = sgd()
        take_steps(optimizer, 3)
        (weight,) = optimizer.param_groups[0]["params"]
        before = optimizer.state[weight]["momentum_buffer"].clone()
        Changed(optimizer, None, Changes([{"name": "scale_lr", "factor": 4.0}, spec]), 4)
        torch.testing.assert_close(optimizer.state[weight]["momentum_buffer"], before * expected)


def test_momentum_cannot_be_folded_where_there_is_none() -> None:
    adam = torch.optim.Adam([torch.nn.Parameter(torch.ones(1))])
    with pytest.raises(ConfigError, match=r"at_switch asks for FoldMomentum, and Adam has no mom"):
        Changes("fold_momentum").check(adam)
    Changes(["scale_lr"]).check(adam)


@pytest.mark.parametrize(
    ("durations", "expected"), [([1.0, 1.0], 1.0), ([1.0, 3.0], 3.0), ([2.0] * 6 + [8.0] * 2, 4.0)]
)
def test_slowness_is_the_slowest_over_the_median(durations: list[float], expected: float) -> None:
    assert slowness(durations) == expected


def test_k_is_all_where_workers_are_equal_and_leaves_out_the_slow() -> None:
    assert fastest_size([1.0, 1.05, 1.1, 1.2]) == 4
    assert fastest_size([1.0] * 6 + [4.0] * 2) == 6
    assert fastest_size([5.0]) == 1


class Log(Observer):
    def __init__(self) -> None:
        self.switched: list[dict[str, Any]] = []
        self.verdicts: list[dict[str, Any]] = []

    def changed(self, what: str, now_s: float, **facts: Any) -> None:
        rows = {"switched": self.switched, "verdict": self.verdicts}.get(what)
        if rows is not None:
            rows.append({"at_s": now_s, **facts})


def cost(protocol: StrategySwitch, log: Log, slow: int = 1, **how: Any) -> Any:
    work = CostOnly(Budget(40, 4), num_bytes=1_000_000)
    pace = Compute(1.0, Stragglers(slow, 4.0))
    return Simulation(protocol, work, 4, pace, observer=log, **how).run()


def test_virtual_time_is_that_of_the_first_part_and_of_the_second() -> None:
    """10 collectives at the slowest's pace, then 120 steps of 3.25 a second: arithmetic."""
    log = Log()
    result = cost(switch(criterion=after(10)), log)
    assert log.switched == [{"at_s": 40.0, "step": 10, "to": "server"}]
    assert result.virtual_s == pytest.approx(40.0 + 120 / 3.25, abs=4.0)
    assert result.steps == 4 * 40
    assert result.num_folded == 4 * 40, "each step is folded once"
    assert [row["statistic"] for row in log.verdicts] == [float(n) for n in range(1, 11)]


def test_every_member_of_a_combination_is_logged_with_its_threshold() -> None:
    log = Log()
    members = ["relative_change", {"name": "all_of", "members": [after(7), after(9)]}]
    cost(switch(criterion={"name": "any_of", "members": members}), log)
    rows = [(row["monitor"], row["threshold"]) for row in log.verdicts]
    assert rows == [("relative_change", 0.01), ("maximum", 7.0), ("maximum", 9.0)] * 9


def test_the_hand_over_costs_its_bytes() -> None:
    first, second = (
        cost(switch(criterion=after(10)), Log(), link=LinkSpec(8.0)),
        cost(switch(criterion=after(99)), Log(), link=LinkSpec(8.0)),
    )
    # parameters from rank 0 once; without it only collectives, 2 * 3 / 4 of the bytes each
    assert first.bytes_sent[0] >= second.bytes_sent[0] * 10 / 40 + 1_000_000


def test_transient_stragglers_leave_all_reduce_and_it_returns() -> None:
    class Slow(Compute):
        def of(self, num_workers: int) -> Any:
            return Spell()

    class Spell:
        """Worker 3 is slow in its steps 11 to 20."""

        def __init__(self) -> None:
            self.steps = [0] * 4

        def next_s(self, rank: int) -> float:
            self.steps[rank] += 1
            return 6.0 if rank == 3 and 10 < self.steps[3] <= 20 else 1.0

    log = Log()
    policy = switch(
        criterion={"name": "straggler", "factor": 2.0, "window": 3},
        back={"name": "no_straggler", "factor": 1.5, "window": 3},
    )
    work = CostOnly(Budget(60, 4), num_bytes=0)
    result = Simulation(policy, work, 4, Slow(1.0), observer=log).run()
    assert [row["to"] for row in log.switched] == ["server", "replicas"]
    # two of three slow rounds make a slow median
    assert log.switched[0]["step"] == 12
    assert result.num_folded == 240
    everything = Simulation(
        protocols.create("all_reduce"), CostOnly(Budget(60, 4), 0), 4, Slow(1.0)
    )
    assert result.virtual_s < everything.run().virtual_s - 20


def test_one_who_joins_while_all_go_over_takes_part_in_what_follows() -> None:
    for at_s in (1.5, 3.99, 4.0, 4.01, 30.0):
        log = Log()
        result = cost(
            switch(criterion=after(1), back=after(5)),
            log,
            faults=[Fault("join", 4, at_s)],
            link=LinkSpec(100.0, 5.0),
        )
        assert result.num_folded == result.steps
        assert result.compute_s[4] > 0


def training(protocol: Any, steps: int = 12) -> Training:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 5, generator=generator)
    y = torch.randn(64, 1, generator=generator)

    def batches(rank: int) -> Iterator[TrainingBatch]:
        sampler = Sampler(64, 8, 0, rank, 4, True)
        while True:
            indices = sampler.next().indices
            yield x[indices], y[indices], len(indices)

    torch.manual_seed(0)
    work = Training(
        nn.Linear(5, 1),
        batches,
        nn.functional.mse_loss,
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
        Budget(steps, 4),
        8,
    )
    Simulation(protocol, work, 4, Compute(1.0, Stragglers(1, 3.0))).run()
    return work


@pytest.mark.parametrize("switch_at", [1, 5, 11])
def test_all_reduce_then_bsp_computes_what_all_reduce_does(switch_at: int) -> None:
    """Parameters, momentum and the schedule's position are handed over, with real gradients."""
    there = training(switch(criterion=after(switch_at), then="bsp"))
    back = training(switch(criterion=after(switch_at), then="bsp", back=after(switch_at + 3)))
    whole = training(protocols.create("all_reduce"))
    assert torch.equal(there.server.flat, whole.server.flat)
    assert torch.equal(back.server.flat, whole.server.flat)
    assert there.lr == pytest.approx(0.05 * 0.9**12)


def test_a_scaled_batch_takes_as_many_samples_in_fewer_pushes() -> None:
    spec = [{"name": "scale_batch", "factor": 3}]
    work = training(switch(criterion=after(3), then="bsp", at_switch=spec))
    assert work.budget.taken == 48
    assert work.lr == pytest.approx(0.05 * 0.9**12), "the schedule counts batches"


def test_gradient_noise_sees_gradients() -> None:
    machine = switch(criterion={"name": "gradient_noise", "min_steps": 1, "threshold": 1e-9})
    assert "grad_norm_sq" in machine.needs
    assert training(machine).budget.taken == 48
