"""Predicted time: the steps of an accuracy run at the seconds that their kind takes over a link."""

from __future__ import annotations

from freewheel.compare.arms import Arm
from freewheel.compare.controls import VANILLA
from freewheel.compare.runner import Outcome
from freewheel.compare.units import Unit


def predicted(outcome: Outcome, arm: Arm, unit: Unit, link: str, key: str) -> float | None:
    """Return the seconds that a run would take over a link.

    sum over kinds k of steps: n_k * t_k, with n_k counted in the accuracy run and t_k measured over
    the link, as the mean over the short runs.

    Args:
        outcome: holds the short runs.
        arm: whose run it is; a control at an arm's bytes takes vanilla's steps.
        unit: the accuracy run.
        link: name of the link.
        key: ``"wall_s"``, or ``"free_s"``: with free communication.

    Returns:
        None where the short runs failed, or met no step of a kind that the run took.
    """
    timed = VANILLA.name if arm.budget_of is not None else arm.name
    runs = [
        short.measured["step_seconds"]
        for (its_link, its_arm, _), short in outcome.times.items()
        if its_link == link and its_arm == timed and short.status == "ok"
    ]
    total = 0.0
    for kind, count in unit.measured["kinds"].items():
        seconds = [run[kind][key] for run in runs if kind in run]
        if not seconds:
            return None
        total += count * sum(seconds) / len(seconds)
    return total
