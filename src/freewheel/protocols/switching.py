"""The central machine of a run that goes over from one protocol to another, and maybe back.

It holds the central machine of the protocol that is in force, passes events on to it, and shows the
criterion of that side one round at a time: a collective, or as many pushes as there are members.
When the criterion fires, no request is answered any more until all members have one; then nothing
is in flight, what the old machine still holds is folded, and the other protocol begins with the
very same members, clocks and version::

    fires -> withhold grants -> all wait -> fold the rest -> SwitchTopology -> Joined for each

Under all-reduce the end of a collective is that moment by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from freewheel.monitors.base import Monitor, Verdict
from freewheel.monitors.expected_gain import speedup
from freewheel.monitors.stragglers import slowness
from freewheel.protocols.base import Action, Event, Machine
from freewheel.protocols.base import Protocol as Synchronisation
from freewheel.protocols.replicas import (
    Drop,
    Fold,
    Grant,
    Joined,
    Left,
    Pulled,
    Pushed,
    Reduced,
    SwitchTopology,
)
from freewheel.protocols.state import plain, unplain

#: Attributes that are the machine's own state, beside those of the machine and criteria it holds.
_OWN = ("side", "clocks", "asked", "version", "step", "drains", "switches", "rounds")


class Sides(Protocol):
    """What it goes to and fro between."""

    def side(self, index: int) -> Synchronisation:
        """Return the first protocol (0) or the other one (1)."""
        ...

    def leave(self, index: int) -> Monitor | None:
        """Return the criterion for leaving a side; None: it is never left."""
        ...


def logged(verdict: Verdict) -> list[dict[str, Any]]:
    """Return what a log says of a verdict: a row, or one for each member of a combination.

    Example:
        >>> from freewheel.monitors import Verdict
        >>> from freewheel.protocols.switching import logged
        >>> logged(Verdict("maximum", "stay", 3.0, 9.0))[0]["monitor"]
        'maximum'
    """
    whole = verdict.log()
    rows = []
    for row in whole.pop("members", [whole]):
        if "members" in row:
            rows += [{"monitor": each.pop("name"), **each} for each in map(dict, row["members"])]
        else:
            rows.append({"monitor": row["name"], **{k: v for k, v in row.items() if k != "name"}})
    return rows


class Round:
    """What pushes since the last round said, and how long each member's last one took."""

    def __init__(self) -> None:
        self.pushes = self.samples = 0
        self.sums: dict[str, float] = {}
        self.durations_s: dict[int, float] = {}
        self.ages: dict[int, int] = {}

    def add(self, event: Pushed) -> None:
        """Take a push in."""
        push = event.push
        self.pushes += 1
        self.samples += push.num_samples
        for name, value in event.evidence.items():
            if name != "non_finite":
                self.sums[name] = self.sums.get(name, 0.0) + value * push.num_samples
        if event.evidence.get("duration_s", 0.0) > 0:
            self.durations_s[push.worker] = event.evidence["duration_s"]
        self.ages = {rank: age + 1 for rank, age in self.ages.items()}
        self.ages[push.worker] = 0

    def forget(self, rank: int) -> None:
        """Drop a worker that has left."""
        self.durations_s.pop(rank, None)
        self.ages.pop(rank, None)

    def close(self, num_workers: int) -> dict[str, float]:
        """Return the evidence of the round, and begin the next one."""
        total = max(1, self.samples)
        evidence = {name: value / total for name, value in self.sums.items()}
        evidence["num_workers"] = float(num_workers)
        took = list(self.durations_s.values())
        if took:
            # one from whom nothing has come for whole rounds is slower than its last push says
            late = max(self.ages.values(), default=0) / max(1, num_workers)
            evidence["slowness"] = max(slowness(took), late)
            longest = max(took)
            evidence["speedup"] = speedup([longest - each for each in took], longest)
        self.pushes = self.samples = 0
        self.sums = {}
        return evidence


class Switching:
    """Runs one protocol's central machine after the other.

    Args:
        sides: the two protocols, and when each is left.

    Attributes:
        verdict: what the criterion last said; None before it was asked.
        switches: the step, and the side gone over to, of each switch.
    """

    def __init__(self, sides: Sides) -> None:
        self._sides = sides
        self._leave = [sides.leave(0), sides.leave(1)]
        self._verdict: Verdict | None = None
        self.side = 0
        self.inner: Machine | None = sides.side(0).central()
        self.clocks: dict[int, int] = {}
        # members whose request has no answer yet: rank to clock
        self.asked: dict[int, int] = {}
        self.version = self.step = 0
        self.drains = False
        self.switches: list[list[int]] = []
        self.rounds = Round()

    @property
    def verdict(self) -> Verdict | None:
        """What the criterion said last."""
        return self._verdict

    @property
    def switched_at(self) -> int | None:
        """The step after which the first switch came; None: there was none so far."""
        return self.switches[0][0] if self.switches else None

    def facts(self) -> dict[str, Any]:
        """Return what a summary says: when it went over, and, if it never did, how far it was."""
        names = [self._sides.side(index).name for index in (0, 1)]
        found: dict[str, Any] = {
            "switched_at": self.switched_at,
            "switches": [{"step": step, "to": names[side]} for step, side in self.switches],
        }
        if not self.switches:
            last = self._verdict
            value = "none" if last is None or last.statistic is None else f"{last.statistic:.4g}"
            found["switch"] = (
                "never fired: no round was judged"
                if last is None
                else f"never fired: {last.name} ended at {value}, its threshold is "
                f"{last.threshold:.4g}"
            )
        return found

    def on(self, event: Event, /) -> Sequence[Action]:
        """Pass the event on to the protocol in force; go over when its criterion fires."""
        if isinstance(event, Reduced):
            return self._reduced(event)
        if isinstance(event, Joined):
            return [*self.on(Left(event.rank)), *self._joined(event)]
        if isinstance(event, Left):
            return self._left(event)
        if isinstance(event, (Pushed, Pulled)):
            return self._requested(event)
        return self._passed(event)

    def _reduced(self, event: Reduced) -> list[Action]:
        # a collective in which nobody had samples makes no version
        self.version += event.evidence.get("num_samples", 1.0) > 0
        self.clocks = {rank: clock + 1 for rank, clock in self.clocks.items()}
        if not self._fires(event.evidence):
            return []
        self.asked = dict(self.clocks)
        return self._go_over()

    def _joined(self, event: Joined) -> list[Action]:
        self.clocks[event.rank] = event.clock
        if self.inner is None:
            return []  # it takes part in the next collective, whose end is its grant
        self.asked[event.rank] = event.clock
        self.rounds.ages[event.rank] = 0
        # one who comes while the others wait joins the next protocol only
        return self._when_all_wait() if self.drains else self._passed(event)

    def _left(self, event: Left) -> list[Action]:
        if event.rank not in self.clocks:
            return []
        del self.clocks[event.rank]
        self.asked.pop(event.rank, None)
        self.rounds.forget(event.rank)
        return [*self._passed(event), *self._when_all_wait()]

    def _requested(self, event: Pushed | Pulled) -> list[Action]:
        if self.inner is None:
            # no worker pushes to a server under all-reduce; who does so is told, not lost
            return [Drop(event.push, "all-reduce is on")] if isinstance(event, Pushed) else []
        rank = event.push.worker if isinstance(event, Pushed) else event.rank
        if rank in self.clocks:
            clock = event.push.clock if isinstance(event, Pushed) else event.clock
            self.clocks[rank] = self.asked[rank] = clock
            if isinstance(event, Pushed) and not self.drains:
                self.rounds.add(event)
                if self.rounds.pushes >= len(self.clocks):
                    self.drains = self._fires(self.rounds.close(len(self.clocks)))
        return [*self._passed(event), *self._when_all_wait()]

    def _fires(self, evidence: Mapping[str, float]) -> bool:
        """Show a round to the criterion of this side; return whether it is time to go."""
        self.step += 1
        criterion = self._leave[self.side]
        if criterion is None:
            return False
        self._verdict = criterion.observe(self.step, evidence)
        return self._verdict.verdict == "switch"

    def _passed(self, event: Event) -> list[Action]:
        """Let the protocol in force act; keep books, and back what may not be done now."""
        if self.inner is None:
            return []
        actions: list[Action] = []
        for action in self.inner.on(event):
            if isinstance(action, Grant):
                if self.drains:
                    continue
                self.asked.pop(action.rank, None)
            elif isinstance(action, Fold):
                self.version += 1
            actions.append(action)
        return actions

    def _when_all_wait(self) -> list[Action]:
        if not self.drains or not self.clocks or self.asked.keys() != self.clocks.keys():
            return []
        return self._go_over()

    def _go_over(self) -> list[Action]:
        """Fold what the old machine holds, then begin the other protocol with the same members."""
        self.drains = True
        actions = [a for rank in sorted(self.clocks) for a in self._passed(Left(rank))]
        self.drains, self.side = False, 1 - self.side
        self.switches.append([self.step, self.side])
        self.rounds = Round()
        self.rounds.ages = dict.fromkeys(self.clocks, 0)
        criterion = self._leave[self.side]
        if criterion is not None:
            criterion.reset()
        other = self._sides.side(self.side)
        self.inner = other.central()
        actions.append(SwitchTopology(other.layout))
        if self.inner is None:
            actions += [Grant(rank, clock) for rank, clock in sorted(self.asked.items())]
            self.asked = {}
            return actions
        if hasattr(self.inner, "version"):
            self.inner.version = self.version  # staleness is counted in versions of the whole run
        answers = [
            self.inner.on(Joined(rank, clock)) for rank, clock in sorted(self.clocks.items())
        ]
        for action in (action for answer in answers for action in answer):
            if isinstance(action, Grant):
                self.asked.pop(action.rank, None)
            actions.append(action)
        return actions

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as plain JSON values."""
        own = {name: getattr(self, name) for name in _OWN if name != "rounds"}
        return {
            **{name: plain(value) for name, value in own.items()},
            "rounds": {name: plain(value) for name, value in vars(self.rounds).items()},
            "inner": None if self.inner is None else self.inner.state_dict(),
            "criteria": [None if each is None else each.state_dict() for each in self._leave],
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Continue as the machine that ``state`` was taken from."""
        expected = {*_OWN, "inner", "criteria"}
        if set(state) != expected:
            raise ValueError(
                f"strategy_switch keeps {sorted(expected)}, got {sorted(state)}; "
                "is this state from another protocol?"
            )
        for name in _OWN:
            if name != "rounds":
                setattr(self, name, unplain(state[name]))
        self.rounds = Round()
        for name, value in state["rounds"].items():
            setattr(self.rounds, name, unplain(value))
        self.inner = self._sides.side(self.side).central()
        if self.inner is not None:
            self.inner.load_state_dict(state["inner"])
        for criterion, its_state in zip(self._leave, state["criteria"], strict=True):
            if criterion is not None:
                criterion.load_state_dict(its_state)
