"""The machines of coast and replay, without a tensor."""

from __future__ import annotations

import json
from typing import Any

import pytest

from freewheel.errors import ConfigError
from freewheel.protocols import protocols
from freewheel.protocols.base import Action, StepDone
from freewheel.protocols.stages import Coast, Plan, Proposed, Replay, Rollback, Sync


def coast(**settings: Any) -> Any:
    return protocols.create("coast", settings).central()


def done(machine: Any, clock: int, loss: float = 1.0) -> tuple[Action, ...]:
    return tuple(machine.on(StepDone(clock, {"loss": loss}, 0.0)))


def horizons(machine: Any, steps: int) -> dict[int, int]:
    """Drive real steps, as stages would; return the clock and the length of each jump."""
    found, clock = {}, 0
    while clock < steps:
        clock += 1
        for action in done(machine, clock):
            first = action.rounds[0] if isinstance(action, Plan) else None
            if isinstance(first, Coast):
                found[clock] = first.steps
                clock += first.steps
    return found


def test_a_fixed_horizon() -> None:
    assert horizons(coast(real=2, horizon=3), 20) == {2: 3, 7: 3, 12: 3, 17: 3}


def test_a_scheduled_horizon() -> None:
    schedule = [[6, 1], [12, 0], [18, 4]]
    found = horizons(coast(real=2, horizon=3, horizons=schedule), 26)
    # 0 means no jump: every round of real steps looks again
    assert found == {2: 3, 7: 1, 10: 1, 19: 4, 25: 4}


def test_a_schedule_alone_may_begin_with_none() -> None:
    assert horizons(coast(real=2, horizon=0, horizons=[[4, 5]]), 15) == {4: 5, 11: 5}
    assert protocols.create("coast", {"horizon": 0, "horizons": [[4, 0]]}).central() is None


def test_a_schedule_bounds_what_a_guard_asks_for() -> None:
    guard = {"name": "loss_guard", "min_losses": 2}
    free = horizons(coast(real=2, horizon=3, guard=guard), 60)
    assert list(free.values()) == [3, 6, 12, 24, 48]  # each that stands doubles the next one
    bound = horizons(coast(real=2, horizon=3, guard=guard, horizons=[[10, 7]]), 60)
    assert list(bound.values())[:2] == [3, 6]
    assert set(list(bound.values())[2:]) == {7}


def test_proposals_of_stages_bound_the_next_jump() -> None:
    machine = coast(real=2, horizon=10)
    machine.on(Proposed(0, "horizon:4", 0))
    machine.on(Proposed(1, "horizon:6", 0))
    assert horizons(machine, 4) == {2: 4}


def test_a_first_horizon_above_a_guards_own_bound_is_that_bound() -> None:
    assert horizons(coast(real=5, horizon=1000, guard="loss_guard"), 6) == {5: 1000}


def test_a_guard_without_a_horizon_judges_jumps_and_leaves_their_length_alone() -> None:
    machine = coast(real=2, horizon=3, guard="deviation")
    # it has no evidence of its own here, so every jump is in doubt
    assert done(machine, 1) == ()
    assert done(machine, 2) == (Plan(2, (Coast(3), Sync(2))),)
    assert done(machine, 6)[0] == Rollback(2)


def test_a_doubted_jump_goes_back_and_halves_the_next() -> None:
    guard = {"name": "loss_guard", "min_losses": 2}
    machine = coast(real=2, horizon=8, guard=guard)
    assert done(machine, 1) == ()
    assert done(machine, 2, 1.1) == (Plan(2, (Coast(8), Sync(2))),)
    assert done(machine, 11, 9.0) == (Rollback(2), Plan(11, (Sync(1),)))
    assert machine.verdict.verdict == "doubt"
    assert done(machine, 12) == ()
    assert done(machine, 13) == (Plan(13, (Coast(4), Sync(2))),)


def test_replay_announces_once_and_again_after_a_drift() -> None:
    guard = {"name": "loss_guard", "min_losses": 3, "sigmas": 3.0}
    machine: Any = protocols.create("replay", {"every": 4, "guard": guard}).central()
    plan = (Replay(3), Sync(1))
    assert done(machine, 1) == (Plan(1, plan),)
    for clock, loss in ((5, 1.1), (9, 0.9), (13, 1.0)):
        assert done(machine, clock, loss) == ()
    assert done(machine, 17, 3.0) == (Plan(17, plan),)
    # the new level is learnt anew: as much as the drift was is no drift any more
    for clock, loss in ((21, 3.1), (25, 2.9), (29, 3.0), (33, 3.05)):
        assert done(machine, clock, loss) == ()
    assert done(machine, 37, 9.0) == (Plan(37, plan),)


def test_replay_without_a_guard_never_announces_again() -> None:
    machine: Any = protocols.create("replay", {"every": 2}).central()
    assert done(machine, 1) == (Plan(1, (Replay(1), Sync(1))),)
    assert [done(machine, clock, 10.0**clock) for clock in (3, 5, 7)] == [()] * 3


def test_replay_begins_when_its_criterion_says_so() -> None:
    begin = {"name": "loss_fallen", "share": 0.5, "window": 2}
    machine: Any = protocols.create("replay", {"every": 4, "begin": begin}).central()
    told = [done(machine, clock, loss) for clock, loss in enumerate([2.0, 2.0, 1.9, 1.1], 1)]
    assert told == [()] * 4, "3.0 of 4.0 is more than half"
    assert machine.verdict.verdict == "stay"
    assert done(machine, 5, 0.9) == (Plan(5, (Replay(3), Sync(1))),)
    assert [done(machine, clock, 9.0) for clock in (9, 13)] == [()] * 2


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("coast", {"real": 2, "horizon": 3, "guard": {"name": "loss_guard", "min_losses": 2}}),
        ("replay", {"every": 2, "guard": {"name": "loss_guard", "min_losses": 2}}),
        ("replay", {"every": 2, "begin": {"name": "loss_fallen", "share": 0.9, "window": 3}}),
    ],
)
def test_a_state_goes_through_json_and_goes_on_the_same(
    name: str, settings: dict[str, Any]
) -> None:
    protocol = protocols.create(name, settings)
    one: Any = protocol.central()
    losses = [1.0, 1.1, 0.9, 5.0, 1.0, 1.05, 7.0, 1.0, 1.0, 1.0]
    for clock, loss in enumerate(losses, 1):
        other: Any = protocol.central()
        other.load_state_dict(json.loads(json.dumps(one.state_dict())))
        assert done(one, 10 * clock, loss) == done(other, 10 * clock, loss)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"real": 0}, "real must be >= 1, got 0"),
        ({"horizon": -1}, "horizon must be >= 0, got -1; use 0 for no prediction"),
        ({"horizon": 1.5}, "horizon must be a whole number"),
        ({"horizons": [[5, 3], [5, 2]]}, "a step of horizons must be >= 6, got 5"),
        ({"horizons": [[5, -3]]}, "a horizon of horizons must be >= 0, got -3"),
        ({"horizons": [5]}, r"horizons must be pairs \[step, horizon\], got 5"),
        ({"guard": {"name": "loss_guard", "sigmas": -1.0}}, "sigmas must be >= 0"),
    ],
)
def test_bad_settings_of_coast(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        protocols.create("coast", settings)


def test_bad_settings_of_replay() -> None:
    with pytest.raises(ConfigError, match="loss_guard"):
        protocols.create("replay", {"guard": "loss_gard"})
    with pytest.raises(ConfigError, match="loss_fallen"):
        protocols.create("replay", {"begin": "loss_falen"})
    with pytest.raises(ConfigError, match=r"share must lie in \(0, 1\), got 2"):
        protocols.create("replay", {"begin": {"share": 2}})
