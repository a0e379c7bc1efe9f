"""Each protocol by hand, on cases small enough to work out on paper."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from freewheel.errors import ConfigError, DataError
from freewheel.protocols import Machine, card_of, protocols
from freewheel.protocols.arrivals import from_row, to_row
from freewheel.protocols.base import Action, Deadline, StepDone
from freewheel.protocols.planning import Plans
from freewheel.protocols.replicas import (
    Drop,
    Ended,
    Fold,
    Grant,
    Granted,
    Joined,
    Left,
    Pulled,
    Push,
    Pushed,
    Reduced,
    SendPull,
    SendPush,
    Start,
)
from freewheel.protocols.stages import Coast, Local, Plan, Replay, Sync


def central(name: str, num_workers: int, **settings: Any) -> Machine:
    machine = protocols.create(name, settings).central()
    assert machine is not None
    for rank in range(num_workers):
        machine.on(Joined(rank))
    return machine


def push(
    machine: Machine, rank: int, clock: int, based_on: int = 0, samples: int = 4, **evidence: float
) -> list[Action]:
    return list(machine.on(Pushed(Push(rank, clock, based_on, samples), evidence, 1.0)))


def grants(actions: list[Action]) -> list[tuple[int, int]]:
    return [(action.rank, action.clock) for action in actions if isinstance(action, Grant)]


def folds(actions: list[Action]) -> list[list[tuple[int, float]]]:
    return [
        [(p.worker, w) for p, w in zip(action.pushes, action.weights, strict=True)]
        for action in actions
        if isinstance(action, Fold)
    ]


def drops(actions: list[Action]) -> list[str]:
    return [action.reason for action in actions if isinstance(action, Drop)]


def test_a_worker_runs_while_granted_then_pushes_and_pulls() -> None:
    machine = protocols.create("local_sgd", {"k": 2}).local(0)
    assert machine.on(Granted(1, 0)) == (Start(0),)
    assert machine.on(StepDone(1, {}, 0.1)) == (Start(1),)
    assert machine.on(StepDone(2, {}, 0.1)) == (SendPush("parameters"), SendPull(1.0))
    assert machine.on(Granted(3, 1)) == (Start(2),)
    assert machine.on(StepDone(3, {}, 0.1)) == (Start(3),)
    # Scenario 18: the data ends between two pushes.
    assert machine.on(Ended(3)) == (SendPush("parameters"),)
    assert machine.on(Ended(3)) == ()


def test_bsp_folds_all_at_once_by_samples_and_sorted_by_rank() -> None:
    machine = central("bsp", 3)
    assert push(machine, 2, 1, samples=1) == []
    assert push(machine, 0, 1, samples=2) == []
    actions = push(machine, 1, 1, samples=1)
    assert folds(actions) == [[(0, 0.5), (1, 0.25), (2, 0.25)]]
    assert grants(actions) == [(0, 1), (1, 1), (2, 1)]


def test_bsp_goes_on_without_the_dead_and_keeps_its_last_push() -> None:
    machine = central("bsp", 3)
    push(machine, 0, 1)
    push(machine, 1, 1)
    actions = list(machine.on(Left(2)))
    assert folds(actions) == [[(0, 0.5), (1, 0.5)]]
    push(machine, 0, 2, 1)
    assert list(machine.on(Left(0))) == []
    actions = push(machine, 1, 2, 1)
    assert folds(actions) == [[(0, 0.5), (1, 0.5)]]
    assert grants(actions) == [(1, 2)]


def test_a_round_in_which_nobody_has_samples_is_no_version() -> None:
    """Scenario 3."""
    machine = central("bsp", 2)
    assert drops(push(machine, 0, 1, samples=0)) == ["no samples"]
    actions = push(machine, 1, 1, samples=0)
    assert (folds(actions), drops(actions), grants(actions)) == (
        [],
        ["no samples"],
        [(0, 1), (1, 1)],
    )
    # The next round is still based on version 0, and is not stale.
    push(machine, 0, 2)
    assert folds(push(machine, 1, 2)) == [[(0, 0.5), (1, 0.5)]]


def test_a_nan_is_refused_and_its_worker_goes_on() -> None:
    """Scenario 15."""
    machine = central("bsp", 2)
    assert drops(push(machine, 0, 1, non_finite=1.0)) == ["non-finite values"]
    actions = push(machine, 1, 1)
    assert folds(actions) == [[(1, 1.0)]]
    assert grants(actions) == [(0, 1), (1, 1)]


def test_a_stranger_is_refused_and_gets_no_grant() -> None:
    """Scenario 20, as far as the protocol sees it."""
    machine = central("asp", 1)
    assert push(machine, 7, 1) == [Drop(Push(7, 1, 0, 4), "its worker has left")]
    assert list(machine.on(Pulled(7, 1))) == []
    assert list(machine.on(Left(7))) == []


def test_a_restarted_worker_that_joins_before_its_death_is_noticed() -> None:
    machine = central("bsp", 2)
    push(machine, 0, 1)
    actions = list(machine.on(Joined(1, clock=0)))
    # Its former self is gone: the round ends; it then takes part in the next one.
    assert folds(actions) == [[(0, 1.0)]]
    assert grants(actions) == [(0, 1), (1, 0)]
    assert push(machine, 0, 2, 1) == []


def test_asp_scales_by_staleness() -> None:
    machine = central("asp", 2, rescale="dynsgd")
    assert folds(push(machine, 0, 1)) == [[(0, 1.0)]]
    assert folds(push(machine, 0, 2, based_on=1)) == [[(0, 1.0)]]
    assert folds(push(machine, 1, 1, based_on=0)) == [[(1, 1 / 3)]]


def test_a_bare_pull_is_answered_as_a_request() -> None:
    machine = central("asp", 1)
    assert list(machine.on(Pulled(0, 5))) == [Grant(0, 5)]


def test_ssp_holds_the_fast_and_releases_it() -> None:
    machine = central("ssp", 2, staleness=1)
    assert grants(push(machine, 0, 1)) == [(0, 1)]
    assert grants(push(machine, 0, 2)) == []
    assert grants(push(machine, 1, 1)) == [(1, 1), (0, 2)]
    assert grants(push(machine, 0, 3)) == []
    assert grants(list(machine.on(Left(1)))) == [(0, 3)]


def test_ssp_starts_a_newcomer_level_with_the_slowest() -> None:
    machine = central("ssp", 2, staleness=1)
    for clock in range(1, 6):
        push(machine, 0, clock)
        push(machine, 1, clock)
    assert list(machine.on(Joined(2))) == [Grant(2, 0)]
    assert grants(push(machine, 0, 6)) == [(0, 6)]
    push(machine, 1, 6)
    assert grants(push(machine, 0, 7)) == []  # the newcomer is at 5
    assert grants(push(machine, 2, 1)) == [(2, 1), (0, 7)]


def test_dssp_lets_the_fast_run_until_its_wait_is_shortest() -> None:
    """The slow one takes 4 s a step, the fast one 1 s: from a lead of 1 it runs 3 more steps."""
    machine = central("dssp", 2, lower=0, upper=5)

    def pushed(rank: int, clock: int, since_s: float) -> list[tuple[int, int]]:
        evidence = {"duration_s": (1.0, 4.0)[rank]}
        return grants(list(machine.on(Pushed(Push(rank, clock, 0, 1), evidence, since_s))))

    # The slowest is unknown before its first push: no step beyond `lower`.
    assert pushed(0, 1, 1.0) == []
    assert pushed(1, 1, 4.0) == [(1, 1), (0, 1)]
    # Push at 5 s; the slow one's next is at 8 s: after 3 extra steps the wait is 0.
    assert pushed(0, 2, 4.0) == [(0, 2)]
    assert [pushed(0, clock, 1.0) for clock in (3, 4)] == [[(0, 3)], [(0, 4)]]
    assert pushed(0, 5, 1.0) == []


def test_bounded_delay_numbers_steps_over_all_workers() -> None:
    machine = protocols.create("bounded_delay", {"tau": 1}).central()
    assert machine is not None
    first = [grants(list(machine.on(Joined(rank)))) for rank in range(3)]
    assert first == [[(0, 0)], [(1, 0)], []]
    assert grants(push(machine, 1, 1)) == []  # task 0 still runs, task 2 would be 2 after it
    assert grants(push(machine, 0, 1)) == [(2, 0), (1, 1)]


def test_bounded_delay_bounds_staleness_by_two_tau() -> None:
    for seed in range(50):
        chance, tau = Random(seed), seed % 5
        machine = protocols.create("bounded_delay", {"tau": tau}).central()
        assert machine is not None
        version, running = 0, dict[int, tuple[int, int]]()

        def act(actions: list[Action]) -> None:
            nonlocal version
            for action in actions:
                if isinstance(action, Fold):
                    (folded,) = action.pushes
                    assert version - folded.based_on <= 2 * tau  # noqa: B023 - used at once
                    version += 1
                elif isinstance(action, Grant):
                    running[action.rank] = (action.clock, version)  # noqa: B023 - used at once

        for rank in range(6):
            act(list(machine.on(Joined(rank))))
        for _ in range(60):
            rank = chance.choice(sorted(running))
            clock, based_on = running.pop(rank)
            act(push(machine, rank, clock + 1, based_on))


def test_backup_workers_close_early_and_send_the_late_on() -> None:
    machine = central("backup_workers", 3, b=1)
    assert push(machine, 0, 1) == []
    assert folds(push(machine, 1, 1)) == [[(0, 0.5), (1, 0.5)]]
    late = push(machine, 2, 1, based_on=0)
    assert drops(late) == ["late by 1 rounds"]
    assert grants(late) == [(2, 1)]
    push(machine, 2, 2, based_on=1)
    assert folds(push(machine, 0, 2, based_on=1)) == [[(0, 0.5), (2, 0.5)]]


def test_fedbuff_weights_by_hand() -> None:
    """Mean of two, each scaled by 1 / sqrt(1 + staleness)."""
    machine = central("fedbuff", 2, k=2)
    push(machine, 0, 1)
    assert folds(push(machine, 1, 1)) == [[(0, 0.5), (1, 0.5)]]
    push(machine, 0, 2, based_on=1)
    push(machine, 0, 3, based_on=1)
    push(machine, 0, 4, based_on=2)
    actions = push(machine, 1, 2, based_on=0)
    assert folds(actions) == [[(0, 0.5), (1, pytest.approx(0.5 / 3**0.5))]]
    push(machine, 0, 5, based_on=3)
    machine.on(Left(1))
    assert folds(list(machine.on(Left(0)))) == [[(0, 1.0)]]  # nothing is left behind


def test_gba_keeps_the_global_batch_and_drops_old_tokens() -> None:
    machine = central("gba", 3, tolerance=0)
    push(machine, 0, 1)
    push(machine, 0, 2)
    assert folds(push(machine, 1, 1)) == [
        [(0, pytest.approx(1 / 3)), (0, pytest.approx(1 / 3)), (1, pytest.approx(1 / 3))]
    ]
    push(machine, 0, 3, based_on=1)
    push(machine, 1, 2, based_on=1)
    actions = push(machine, 2, 1, based_on=0)
    assert drops(actions) == ["stale: tolerance is 0 versions"]
    assert folds(actions) == [[(0, 0.5), (1, 0.5)]]


def test_easgd_moves_both_ends_by_alpha() -> None:
    """x_i - a (x_i - x) and x + a (x_i - x), from the fold's weight and the pull's mix."""
    alpha, own, centre = 0.3, 5.0, 1.0
    protocol = protocols.create("easgd", {"alpha": alpha, "period": 1})
    local, server = protocol.local(0), protocol.central()
    assert server is not None
    server.on(Joined(0))
    local.on(Granted(0, 0))
    _, pull = local.on(StepDone(1, {}, 0.1))
    assert isinstance(pull, SendPull)
    (fold, _) = push(server, 0, 1)
    assert isinstance(fold, Fold)
    (weight,) = fold.weights
    moved = (1 - weight) * centre + weight * own
    assert moved == pytest.approx(centre + alpha * (own - centre))
    assert (1 - pull.mix) * own + pull.mix * moved == pytest.approx(own - alpha * (own - centre))


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        (
            "ssp",
            {"staleness": -1},
            'staleness bound must be >= 0, got -1; use protocol = "asp" for no bound',
        ),
        ("ssp", {"staleness": 1.5}, "must be a whole number >= 0, got 1.5"),
        ("ssp", {"stalenes": 1}, "did you mean 'staleness'"),
        ("dssp", {"lower": 4, "upper": 2}, "upper bound must be >= 4, got 2"),
        ("local_sgd", {"k": 0}, "local steps k must be >= 1, got 0"),
        ("bounded_delay", {"tau": -1}, "delay tau must be >= 0, got -1"),
        ("backup_workers", {"b": -1}, "backup workers b must be >= 0, got -1"),
        ("fedbuff", {"k": True}, "must be a whole number >= 1, got True"),
        ("gba", {"tolerance": -1}, "tolerance must be >= 0, got -1"),
        ("easgd", {"alpha": 0.9}, r"alpha must be in \(0, 0.5\], got 0.9"),
        ("asp", {"rescale": ["dynsgd", "lr_over_n"]}, "both rescale"),
        ("spp", {}, "unknown protocol 'spp'; did you mean 'ssp'"),
    ],
)
def test_bad_settings_name_value_rule_and_remedy(
    name: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        protocols.create(name, settings)


def test_explain_has_source_and_formulas() -> None:
    text = card_of("ssp")
    for part in ("Ho et al.", "2013", "2 P", "its clock is forgotten", "bit for bit"):
        assert part in text
    with pytest.raises(ConfigError, match="did you mean 'vanilla'"):
        card_of("vanila")


def test_a_state_of_another_protocol_is_refused() -> None:
    state = central("bsp", 2).state_dict()
    with pytest.raises(ValueError, match="is this state from another protocol"):
        central("ssp", 2).load_state_dict(state)


def test_plans_take_over_at_their_clock() -> None:
    plans = Plans()
    plans.add(Plan(2, (Sync(1, "int8"), Local(2))), newest_clock=1)
    plans.add(Plan(7, (Coast(3), Replay(1))), newest_clock=4)
    rounds = [plans.round_at(clock) for clock in range(12)]
    assert rounds[:2] == [Sync(), Sync()]
    assert rounds[2:7] == [Sync(1, "int8"), Local(2), Local(2), Sync(1, "int8"), Local(2)]
    assert rounds[7:] == [Coast(3)] * 3 + [Replay(1), Coast(3)]


def test_a_later_word_replaces_a_plan_that_has_not_begun() -> None:
    plans = Plans()
    plans.add(Plan(9, (Coast(1),)), newest_clock=1)
    plans.add(Plan(5, (Local(1),)), newest_clock=2)
    assert plans.round_at(20) == Local(1)
    again = Plans()
    again.load_state_dict(json.loads(json.dumps({"plans": plans.state_dict()["plans"]})))
    assert again.round_at(20) == Local(1)


def test_a_plan_for_a_clock_that_has_begun_is_refused() -> None:
    plans = Plans()
    with pytest.raises(ValueError, match="clock 5 had begun"):
        plans.add(Plan(5, (Sync(),)), newest_clock=5)
    with pytest.raises(ValueError, match="at least 1 step"):
        plans.add(Plan(6, (Coast(0),)), newest_clock=5)


@pytest.mark.parametrize(
    "event",
    [
        Joined(3, 7),
        Left(3),
        Pulled(1, 2),
        Reduced(4, {"loss": 0.1}),
        Deadline("quiet"),
        Pushed(Push(1, 2, 3, 4, "delta"), {"loss": 1 / 3}, 0.1),
    ],
)
def test_arrivals_survive_json(event: Any) -> None:
    assert from_row(json.loads(json.dumps(to_row(event)))) == event


@pytest.mark.parametrize("row", [{}, {"event": "pushed"}, {"event": "left", "who": 1}])
def test_a_row_that_is_no_arrival_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="is not an arrival"):
        from_row(row)
