"""Which vanilla is fastest: every schedule and number of micro-batches, timed on a few steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from freewheel.compare.arms import Plan
from freewheel.compare.controls import VANILLA
from freewheel.compare.data import scored_sections
from freewheel.compare.execute import Executor
from freewheel.compare.measure import typical_step_s
from freewheel.config import Config

#: Samples scored at the end of a run that only its time is taken from.
SCORED = 200


@dataclass(frozen=True)
class Fastest:
    """The layout that vanilla is fastest with.

    Args:
        layout: schedule and number of micro-batches.
        step_s: seconds of a step of each candidate, by name; None where it failed.
    """

    layout: Mapping[str, Any]
    step_s: Mapping[str, float | None]


def candidates(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the layouts to try, by name.

    One micro-batch is the same under every schedule, and is tried once; more micro-batches than
    samples are not tried.

    Example:
        >>> from pathlib import Path
        >>> from freewheel.compare.arms import Plan
        >>> from freewheel.compare.probe import candidates
        >>> from freewheel.compare.settings import CompareSection
        >>> section = CompareSection(micro_batches=(1, 2))
        >>> list(candidates(Plan("x", Path("x"), {}, section, ())))
        ['1f1b x 1', '1f1b x 2', 'gpipe x 2']
    """
    config = plan.config(VANILLA, seed=0)
    found: dict[str, dict[str, Any]] = {}
    for schedule in plan.section.schedules:
        for count in plan.section.micro_batches:
            known = any(layout["micro_batches"] == count for layout in found.values())
            if count <= config.data.batch_size and not (count == 1 and known):
                layout = {"schedule": schedule, "micro_batches": count}
                found[f"{schedule} x {count}"] = layout
    return found


def short(config: Config, steps: int) -> Config:
    """Return a run of a few steps of which only the time is taken.

    The learning rate moves as if it were the whole run that is short; little is scored.
    """
    train = config.train.model_copy(update={"steps": steps, "epochs": None})
    data = scored_sections(config, limit=SCORED)["data"]
    sections = {
        **config.model_dump(mode="json", exclude_unset=True),
        "train": train.model_dump(mode="json", exclude_none=True),
        "data": data,
    }
    sections["eval"] = {**sections.get("eval", {}), "every": 0}
    return type(config).model_validate(sections)


def fastest(plan: Plan, executor: Executor, link: Mapping[str, Any] | None = None) -> Fastest:
    """Time every candidate and return the fastest.

    Args:
        plan: the comparison.
        executor: runs the candidates.
        link: a network in place of the file's.
    """
    section = plan.section
    own = plan.config(VANILLA, seed=0).layout
    if section.probe_steps == 0 or own.kind != "pipeline":
        return Fastest({"schedule": own.schedule, "micro_batches": own.micro_batches}, {})
    step_s: dict[str, float | None] = {}
    tried = candidates(plan)
    for name, layout in tried.items():
        more: dict[str, Any] = {"layout": layout, **({"link": link} if link is not None else {})}
        config = short(plan.config(VANILLA, section.probe_seed, **more), section.probe_steps)
        unit = executor.run(
            config,
            f"vanilla, {name}",
            "probe",
            lambda folder: {"step_s": typical_step_s(folder)},
        )
        step_s[name] = unit.measured.get("step_s")
    timed = {name: value for name, value in step_s.items() if value is not None}
    if not timed:
        return Fastest({"schedule": own.schedule, "micro_batches": own.micro_batches}, step_s)
    return Fastest(tried[min(timed, key=lambda name: timed[name])], step_s)
