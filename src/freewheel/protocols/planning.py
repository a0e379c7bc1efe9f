"""The plans that a stage has heard of, and which round each clock belongs to."""

from __future__ import annotations

from freewheel.protocols.stages import Plan, Round, Sync
from freewheel.protocols.state import PlainState


class Plans(PlainState):
    """Keeps agreed plans until their clock comes, and answers what to do at a clock.

    Example:
        >>> from freewheel.protocols.planning import Plans
        >>> from freewheel.protocols.stages import Coast, Plan, Sync
        >>> plans = Plans()
        >>> plans.add(Plan(4, (Sync(2), Coast(1))), newest_clock=3)
        >>> [type(plans.round_at(clock)).__name__ for clock in range(3, 10)]
        ['Sync', 'Sync', 'Sync', 'Coast', 'Sync', 'Sync', 'Coast']
    """

    def __init__(self) -> None:
        self.plans: list[Plan] = []

    def add(self, plan: Plan, newest_clock: int) -> None:
        """Take in a plan; one for the same clock, or a later one, that was kept before is void.

        Args:
            plan: what was agreed.
            newest_clock: the newest clock that this stage has begun; -1 before the first.

        Raises:
            ValueError: the plan begins at a clock that has begun, or has no steps.
        """
        if plan.from_clock <= newest_clock:
            raise ValueError(
                f"a plan for clock {plan.from_clock} came when clock {newest_clock} had begun; a "
                "plan must begin later than every micro-batch in flight"
            )
        if not plan.rounds or min(each.steps for each in plan.rounds) < 1:
            raise ValueError(f"every round of a plan needs at least 1 step, got {plan.rounds}")
        self.plans = [kept for kept in self.plans if kept.from_clock < plan.from_clock] + [plan]

    def round_at(self, clock: int) -> Round:
        """Return the round that ``clock`` is in: ``Sync()`` before the first plan."""
        begun = [plan for plan in self.plans if plan.from_clock <= clock]
        if not begun:
            return Sync()
        plan = begun[-1]
        place = (clock - plan.from_clock) % sum(each.steps for each in plan.rounds)
        for each in plan.rounds:
            if place < each.steps:
                return each
            place -= each.steps
        raise AssertionError("a place within the plan's length lies in one of its rounds")
