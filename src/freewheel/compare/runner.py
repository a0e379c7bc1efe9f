"""Carries a comparison out: which unit is run when, and what depends on what."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from freewheel.compare.arms import Arm, Plan, merge
from freewheel.compare.controls import VANILLA, with_controls
from freewheel.compare.data import scored_sections
from freewheel.compare.execute import Executor, Extra, Stopped
from freewheel.compare.floors import floor_sections
from freewheel.compare.measure import step_seconds
from freewheel.compare.probe import Fastest, fastest, short
from freewheel.compare.uncoded import is_coded, score_uncoded
from freewheel.compare.units import Unit, Units
from freewheel.config import Config
from freewheel.launch.resolve import resolve
from freewheel.runtime.pieces import Given

Part = Literal["test", "validation"]

UNSHAPED = {"rate_mbit": None, "delay_ms": 0.0, "jitter_ms": 0.0}


@dataclass
class Outcome:
    """What a comparison has so far.

    Args:
        plan: the comparison.
        arms: vanilla, arms, controls and floors, in the table's order.
        part: which part was scored.
        units: by arm and seed.
        times: by link, arm and seed: short runs that a time is predicted from.
        fastest: by link (``""`` is the file's own): how vanilla is fastest.
        interrupted: whether it was stopped before its end.
    """

    plan: Plan
    arms: Sequence[Arm]
    part: Part = "test"
    units: dict[tuple[str, int], Unit] = field(default_factory=dict)
    times: dict[tuple[str, str, int], Unit] = field(default_factory=dict)
    fastest: dict[str, Fastest] = field(default_factory=dict)
    interrupted: bool = False


class Runner:
    """Runs all units of a comparison that are not done.

    All arms of a seed are run back to back, every second seed in reverse, so that a drift of the
    machine meets all of them; controls at an arm's bytes come after it.

    Args:
        plan: the comparison.
        out: its folder.
        part: what is scored: ``"validation"`` to tune, ``"test"`` to report.
        say: told a line about each unit as it ends.
        retry_failed: run units that crashed or diverged again.

    Raises:
        FreewheelError: an arm cannot work at all.
    """

    def __init__(
        self,
        plan: Plan,
        out: Path,
        part: Part = "test",
        say: Callable[[str], None] | None = None,
        retry_failed: bool = False,
    ) -> None:
        self._path = (str(plan.path.resolve().parent), str(Path.cwd()))
        self.plan = _prepared(plan, self._path)
        self.outcome = Outcome(self.plan, with_controls(self.plan), part)
        self._steps = {arm.name: self._resolved_steps(arm) for arm in self.outcome.arms}
        self._say = say
        self._units = Units(out / "units.jsonl", retry_failed)
        section = self.plan.section
        self._num = len(self.outcome.arms) * len(section.seed_list)
        self._executor = Executor(
            out, self._path, section.metric, self._units, self._said, section.keep_runs
        )

    def outline(self) -> str:
        """Return in a line what there is to do."""
        arms, seeds = len(self.outcome.arms), len(self.plan.section.seed_list)
        controls = sum(arm.kind in ("control", "floor") for arm in self.outcome.arms)
        return (
            f"{self.plan.name}: {arms} arms ({controls} of them controls) x {seeds} "
            f"seed{'s' if seeds != 1 else ''}; {len(self._units)} runs are done already"
        )

    def run(self) -> Outcome:
        """Run everything; return early, with what there is, when interrupted."""
        try:
            self._run()
        except KeyboardInterrupt:
            self.outcome.interrupted = True
        return self.outcome

    def _run(self) -> None:
        plan, outcome, section = self.plan, self.outcome, self.plan.section
        if not section.links:
            outcome.fastest[""] = fastest(plan, self._executor)
        for link in section.links:
            values = link.model_dump(exclude_none=True)
            outcome.fastest[link.name] = fastest(plan, self._executor, values)
        direct = [arm for arm in outcome.arms if arm.budget_of is None]
        budgeted = [arm for arm in outcome.arms if arm.budget_of is not None]
        for turn, seed in enumerate(section.seed_list):
            for arms in (direct, budgeted):
                for arm in arms if turn % 2 == 0 else reversed(arms):
                    self._train(arm, seed)
            if turn < section.time_seeds:
                self._time(seed)

    def _train(self, arm: Arm, seed: int) -> None:
        config = self._config(arm, seed)
        if config is None:
            return
        try:
            unit = self._executor.run(config, arm.name, extra=self._uncoded(config))
        except Stopped as stopped:
            self.outcome.units[arm.name, seed] = stopped.unit
            raise
        self.outcome.units[arm.name, seed] = unit

    def _uncoded(self, config: Config) -> Extra | None:
        if not is_coded(config):
            return None
        path, metric = self._path, self.plan.section.metric
        return lambda folder: {"uncoded": score_uncoded(config, folder, path, metric)}

    def _config(self, arm: Arm, seed: int) -> Config | None:
        """Return what an arm runs at a seed; None where it waits for a run that failed."""
        plan, section = self.plan, self.plan.section
        own = self.outcome.fastest.get("")
        layout = {"layout": own.layout} if own is not None and arm.kind != "floor" else {}
        more: dict[str, Any] = merge(layout, arm.sections)
        if section.links:
            more = merge(more, {"link": UNSHAPED})
        if arm.kind == "floor":
            vanilla = plan.config(VANILLA, seed)
            more = merge(more, floor_sections(arm.sections["model"], vanilla))
        config, steps = plan.config(arm, seed, **more), self._steps[arm.name]
        if arm.budget_of is not None:
            fewer = self._steps_for(arm.budget_of, seed)
            if fewer is None:
                return None
            more = merge(more, self._fitted(config, steps, fewer))
            steps = fewer
        if config.eval.every == 0:
            every = max(1, steps // section.evaluations)
            more = merge(more, {"eval": {"every": every}})
        config = plan.config(arm, seed, **more)
        return plan.config(arm, seed, **merge(more, scored_sections(config, self.outcome.part)))

    def _steps_for(self, arm: str, seed: int) -> int | None:
        """Return the steps of vanilla that cost as many bytes as an arm did."""
        units = self.outcome.units
        spent, vanilla = units.get((arm, seed)), units.get((VANILLA.name, seed))
        if (
            spent is None
            or vanilla is None
            or spent.status != "ok"
            or vanilla.status != "ok"
            or not vanilla.measured["bytes"]
        ):
            return None
        steps = int(vanilla.measured["steps"])
        share = float(spent.measured["bytes"]) / float(vanilla.measured["bytes"])
        return min(steps, max(1, math.floor(steps * share)))

    @staticmethod
    def _fitted(config: Config, steps: int, fewer: int) -> dict[str, Any]:
        """Return the sections of a run of fewer steps, with all its schedule in them."""
        shrink = fewer / steps
        sections: dict[str, Any] = {"train": {"steps": fewer}}
        if config.schedule.warmup:
            sections["schedule"] = {"warmup": max(1, round(config.schedule.warmup * shrink))}
        if config.eval.every:
            sections["eval"] = {"every": max(1, round(config.eval.every * shrink))}
        return sections

    def _time(self, seed: int) -> None:
        """Take the time of each arm over each link on a few steps."""
        for link in self.plan.section.links:
            network, best = link.model_dump(exclude_none=True), self.outcome.fastest[link.name]
            for arm in self.outcome.arms:
                if arm.kind == "floor" or arm.budget_of is not None:
                    continue
                sections = merge({"layout": best.layout, "link": network}, arm.sections)
                config = self.plan.config(arm, seed, **merge(sections, {"link": network}))
                config = short(config, self.plan.section.time_steps)
                unit = self._executor.run(
                    config,
                    arm.name,
                    f"time over {link.name}",
                    lambda folder: {"step_seconds": step_seconds(folder)},
                )
                self.outcome.times[link.name, arm.name, seed] = unit

    def _resolved_steps(self, arm: Arm) -> int:
        """Return the length of an arm's runs, having seen that they can work at all."""
        config = self.plan.config(arm, self.plan.section.seed_list[0])
        if arm.kind == "floor":
            config = self.plan.config(VANILLA, config.run.seed)
        return resolve(config, Given(), self._path)[2]

    def _said(self, unit: Unit) -> None:
        done = len(self.outcome.units) + (unit.what == "train")
        count = f"{done}/{self._num} " if unit.what == "train" else ""
        if self._say is not None:
            self._say(f"{count}{describe(unit, self.plan.section.metric)}")


def describe(unit: Unit, metric: str) -> str:
    """Return a unit in a line."""
    where = f"{unit.arm}, seed {unit.seed}"
    if unit.what != "train":
        where = f"{where}, {unit.what}"
    if unit.status != "ok":
        said = (unit.error or "").splitlines()
        return f"{where}: {unit.status} after {unit.took_s:.0f} s{': ' + said[0] if said else ''}"
    measured = unit.measured
    if unit.what == "train":
        reached = f"{metric} {measured['metric']:.4g}"
    else:
        reached = f"{1000 * measured['wall_s'] / max(1, measured['steps']):.1f} ms/step"
    sent = f"{measured['bytes'] / 1e6:,.1f} MB"
    return f"{where}: {reached}, {sent}, trained {measured['wall_s']:.1f} s ({unit.took_s:.0f} s)"


def _prepared(plan: Plan, path: Sequence[str]) -> Plan:
    """Return the plan with its cuts by name, so that all runs are cut at the same places."""
    config = plan.config(VANILLA, seed=plan.section.seed_list[0])
    if config.layout.kind != "pipeline" or config.layout.cuts != "balanced":
        return plan
    cuts = resolve(config, Given(), path)[0].layout.cuts
    return replace(plan, base=merge(plan.base, {"layout": {"cuts": list(cuts)}}))
