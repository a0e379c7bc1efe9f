"""The rows of the table, computed from the units of a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from freewheel.compare.arms import Arm
from freewheel.compare.controls import VANILLA
from freewheel.compare.predict import predicted
from freewheel.compare.runner import Outcome
from freewheel.compare.statistics import Estimate, mean, paired, ratio, recovered
from freewheel.compare.units import Unit

Values = list[float | None]


@dataclass(frozen=True)
class Cost:
    """Time over one link, in seconds of training.

    Args:
        wall_s: the whole run.
        speedup: vanilla's time over this one's.
        bound: vanilla's time over this arm's with free communication: no speed-up of the same
            arithmetic can be above it.
        to_target_s: until vanilla's final metric less the margin was first reached.
    """

    wall_s: Estimate | None
    speedup: Estimate | None
    bound: float | None
    to_target_s: Estimate | None


@dataclass(frozen=True)
class Row:
    """One arm.

    Args:
        arm: which.
        statuses: how many of its runs ended how; ``"not run"`` are those still to come.
        metric: final, mean over the seeds.
        uncoded: the same parameters, scored without codecs at the cuts; of arms that have some.
        difference: to vanilla, seed by seed; above 0 is more of the metric.
        floor: the floor that ``recovered`` counts from.
        recovered: (metric - floor) / (vanilla - floor).
        num_bytes: sent in training by all processes.
        byte_ratio: vanilla's bytes over these.
        costs: by link (``""``: the file's own).
        to_target_bytes: until the target was first reached.
        reached: seeds that reached it.
        updates: by stage, mean over the seeds.
        errors: of the runs that did not end well.
    """

    arm: Arm
    statuses: Mapping[str, int]
    metric: Estimate | None
    uncoded: Estimate | None
    difference: Estimate | None
    floor: str | None
    recovered: Estimate | None
    num_bytes: Estimate | None
    byte_ratio: Estimate | None
    costs: Mapping[str, Cost]
    to_target_bytes: Estimate | None
    reached: int
    updates: Mapping[str, float]
    errors: Sequence[str] = field(default_factory=tuple)

    @property
    def num_ok(self) -> int:
        """Runs that ended well."""
        return self.statuses.get("ok", 0)

    @property
    def num_seeds(self) -> int:
        """Runs that were asked for."""
        return sum(self.statuses.values())


class Table:
    """All rows of a comparison.

    Args:
        outcome: what was measured so far.
    """

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.section = outcome.plan.section
        self.seeds = self.section.seed_list
        self.vanilla = self._values(VANILLA, _metric)
        level = mean(_known(self.vanilla))
        #: Vanilla's mean final metric, and that less the margin; None before vanilla has finished.
        self.vanilla_mean = None if level is None else level.value
        self.target = None if level is None else self.section.target(level.value)
        self.links = [link.name for link in self.section.links] or [""]
        self.rows = [self._row(arm) for arm in outcome.arms]

    @property
    def target_difference(self) -> float | None:
        """The margin as a difference to vanilla."""
        if self.vanilla_mean is None or self.target is None:
            return None
        return self.target - self.vanilla_mean

    def differences(self, arm: Arm) -> list[float]:
        """Return an arm's final metric less vanilla's, of each seed that has both."""
        pairs = zip(self._values(arm, _metric), self.vanilla, strict=True)
        return [a - b for a, b in pairs if a is not None and b is not None]

    def unit(self, arm: Arm, seed: int) -> Unit | None:
        """Return a run that ended well."""
        unit = self.outcome.units.get((arm.name, seed))
        return unit if unit is not None and unit.status == "ok" else None

    def per_seed(self, arm: Arm) -> dict[str, Values]:
        """Return everything that was measured of an arm, one value a seed."""
        found = {self.section.metric: self._values(arm, _metric), "steps": self._of(arm, "steps")}
        if arm.kind != "floor":
            found["uncoded"] = self._values(arm, _uncoded)
            found["bytes"] = self._of(arm, "bytes")
            found["bytes_to_target"] = self._values(arm, lambda unit: self._target_at(unit, 2))
            for link in self.links:
                tail = f", {link}" if link else ""
                found[f"wall_s{tail}"] = self._walls(arm, link, "wall_s")
                found[f"free_s{tail}"] = self._walls(arm, link, "free_s")
                found[f"s_to_target{tail}"] = self._to_target(arm, link)
        return found

    def _row(self, arm: Arm) -> Row:
        units = [self.outcome.units.get((arm.name, seed)) for seed in self.seeds]
        statuses = Counter("not run" if unit is None else unit.status for unit in units)
        values = self._values(arm, _metric)
        is_floor = arm.kind == "floor"
        sent = [] if is_floor else self._of(arm, "bytes")
        floor = self._floor_of(arm)
        to_target = self._values(arm, lambda unit: self._target_at(unit, 2))
        return Row(
            arm,
            dict(statuses),
            mean(_known(values)),
            mean(_known(self._values(arm, _uncoded))),
            None if arm.kind == "vanilla" else paired(values, self.vanilla),
            None if floor is None else floor.name,
            None if floor is None else self._recovered(values, floor),
            mean(_known(sent)),
            ratio(self._of(VANILLA, "bytes"), sent) if sent else None,
            {} if is_floor else {link: self._cost(arm, link) for link in self.links},
            None if is_floor else mean(_known(to_target)),
            len(_known(to_target)),
            self._updates(arm),
            [unit.error for unit in units if unit is not None and unit.error],
        )

    def _cost(self, arm: Arm, link: str) -> Cost:
        walls, vanilla = self._walls(arm, link, "wall_s"), self._walls(VANILLA, link, "wall_s")
        bound = ratio(vanilla, self._walls(arm, link, "free_s"))
        cost = Cost(
            mean(_known(walls)),
            ratio(vanilla, walls),
            None if bound is None else bound.value,
            mean(_known(self._to_target(arm, link))),
        )
        if not link:
            return cost
        # all seeds share one prediction for each kind of step: their spread says nothing of time
        return replace(
            cost,
            wall_s=_without_interval(cost.wall_s),
            speedup=_without_interval(cost.speedup),
            to_target_s=_without_interval(cost.to_target_s),
        )

    def _floor_of(self, arm: Arm) -> Arm | None:
        """Return the floor that lies highest of those that hold for an arm."""
        owner = next((a for a in self.outcome.arms if a.name == (arm.of or arm.name)), arm)
        if arm.kind == "floor" or _cuts_otherwise(owner):
            return None
        heads = [(), self.section.zero_comm_hidden, owner.zero_comm_hidden or ()]
        best: tuple[float, Arm] | None = None
        for floor in self.outcome.arms:
            head = tuple(floor.sections.get("model", {}).get("hidden", ()))
            level = mean(_known(self._oriented(self._values(floor, _metric))))
            if floor.kind != "floor" or head not in heads or level is None:
                continue
            if best is None or level.value > best[0]:
                best = (level.value, floor)
        return None if best is None else best[1]

    def _recovered(self, values: Values, floor: Arm) -> Estimate | None:
        columns = (values, self.vanilla, self._values(floor, _metric))
        return recovered(*(self._oriented(column) for column in columns))

    def _oriented(self, values: Values) -> Values:
        sign = 1.0 if self.section.higher_is_better else -1.0
        return [None if value is None else sign * value for value in values]

    def _values(self, arm: Arm, read: Callable[[Unit], float | None]) -> Values:
        units = [self.unit(arm, seed) for seed in self.seeds]
        return [None if unit is None else read(unit) for unit in units]

    def _of(self, arm: Arm, key: str) -> Values:
        return self._values(arm, lambda unit: unit.measured[key])

    def _walls(self, arm: Arm, link: str, key: str) -> Values:
        if link == "":
            return self._of(arm, key)
        return self._values(arm, lambda unit: predicted(self.outcome, arm, unit, link, key))

    def _to_target(self, arm: Arm, link: str) -> Values:
        if link == "":
            return self._values(arm, lambda unit: self._target_at(unit, 3))

        def share(unit: Unit) -> float | None:
            step = self._target_at(unit, 0)
            whole = predicted(self.outcome, arm, unit, link, "wall_s")
            if step is None or whole is None:
                return None
            return whole * step / float(unit.measured["steps"])

        return self._values(arm, share)

    def _target_at(self, unit: Unit, column: int) -> float | None:
        """Return a column of the curve where it first reaches the target."""
        for point in unit.measured["curve"]:
            if self.target is not None:
                above = point[1] - self.target
                if (above if self.section.higher_is_better else -above) >= 0:
                    return float(point[column])
        return None

    def _updates(self, arm: Arm) -> dict[str, float]:
        found: dict[str, list[float]] = {}
        for seed in self.seeds:
            unit = self.unit(arm, seed)
            for process, count in (unit.measured["updates"] if unit else {}).items():
                found.setdefault(process, []).append(count)
        return {process: sum(counts) / len(counts) for process, counts in sorted(found.items())}


def _metric(unit: Unit) -> float | None:
    value = unit.measured["metric"]
    return None if value is None else float(value)


def _uncoded(unit: Unit) -> float | None:
    return unit.measured.get("uncoded")


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _without_interval(found: Estimate | None) -> Estimate | None:
    return None if found is None else replace(found, low=None, high=None)


def _cuts_otherwise(arm: Arm) -> bool:
    """Whether an arm trains another model, or cuts it elsewhere: floors are of vanilla's cut."""
    layout: Mapping[str, Any] = arm.sections.get("layout", {})
    return bool({"model", "data"} & set(arm.sections) or {"cuts", "stages"} & set(layout))
