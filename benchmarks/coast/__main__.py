"""Runs ``coast``: ``make bench NAME=coast``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.coast import page, real, runs
from benchmarks.coast.cells import (
    BACKTEST,
    CELLS,
    FEW,
    PREDICTORS,
    STATIC,
    Cell,
    Rounds,
    Sections,
    Table,
)
from benchmarks.coast.search import best
from benchmarks.harness import Benchmark, Figure, Measure
from benchmarks.tasks import FOLDER

#: A jump stands if the loss after it is not far above those before.
GUARD: Table = {"name": "loss_guard", "min_losses": 4}


#: Tried on validation data, with the bits of ``coded``: all exchange about as often.
REPLAYS: dict[str, Table] = {
    "3 repeats": {"repeats": 3},
    "7 repeats": {"repeats": 7},
    "every 5th, begun late": {"every": 5, "begin": "loss_fallen"},
}
#: As many bytes from fewer bits and more exchanges.
MIXES: dict[str, tuple[int, Table]] = {
    "3 bits, every 4th, begun late": (3, {"every": 4, "begin": "loss_fallen"}),
    "2 bits, every 2nd": (2, {"every": 2}),
    "2 bits, every 3rd, begun late": (2, {"every": 3, "begin": "loss_fallen"}),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure part by part; the results file is written after each."""
    bench = Benchmark.from_command("coast", argv)
    _Coast(bench).run()
    return 0


class _Coast:
    """The benchmark in the course of being run.

    Args:
        bench: where units and results go.
    """

    def __init__(self, bench: Benchmark) -> None:
        self.bench = bench
        self.settings = bench.settings
        self.figures: dict[str, Figure] = {}
        #: Chosen on validation data: the rate of a cell, and its predictor at a ratio.
        self.rate: dict[str, float] = {}
        self.predictor: dict[tuple[str, int], str] = {}

    def run(self) -> None:
        """Measure everything, what is asked for first."""
        few = self.settings["few_seeds"]
        for cell, ratios in self.settings["full"].items():
            self._cell(cell, ratios, self.bench.seeds, tuple(PREDICTORS))
            self._write()
            self._more_of(cell)
        for task in self.settings["coded"]["tasks"]:
            self._coded(task, few)
            self._write()
        for cell, ratios in self.settings["few"].items():
            self._cell(cell, ratios, few, FEW)
            self._write()

    def _more_of(self, cell: str) -> None:
        """Measure what is asked in one cell alone."""
        rates, far, at_work = (self.settings[key] for key in ("rates", "far", "real"))
        if cell == far["cell"]:
            self._too_far(**far)
        if cell == rates["cell"]:
            self._larger_rates(**rates)
        if cell == at_work["cell"]:
            self._real(self.settings["few_seeds"], **at_work)
        self._write()

    def _write(self) -> None:
        self.bench.write(self.figures)
        if not self.bench.tiny:
            page.main([])

    # --- one cell at equal bytes ----------------------------------------------------------------

    def _cell(
        self, name: str, ratios: Sequence[int], seeds: Sequence[int], tried: Sequence[str]
    ) -> None:
        cell, trial = CELLS[name], self.settings["trial_seeds"]
        if len(tried) < len(PREDICTORS):
            trial = trial[:1]  # what takes long is searched less
        self.rate[name] = rate = best(
            self.bench,
            {r: (f"{name}: vanilla at {r}, tried", _tried(cell.sections(r))) for r in cell.rates},
            trial,
        )
        arms = {f"{name}: vanilla at {rate}": _arm(cell.sections(rate))}
        for ratio in sorted(ratios, reverse=True):
            self._choose(name, cell, ratio, tried, trial)
            arms |= self._at_ratio(name, cell, ratio)
        self.bench.run(arms, seeds)
        if 2 in ratios:
            coasting = cell.coasting(rate, cell.rounds[2], BACKTEST)
            arm = {f"{name}, 2x: coast, backtest": _arm(coasting)}
            self.bench.run(arm, self.settings["few_seeds"])
        for ratio in ratios:
            self._figures(name, ratio)

    def _choose(
        self, name: str, cell: Cell, ratio: int, tried: Sequence[str], trial: Sequence[int]
    ) -> None:
        """Choose a predictor; at 2x, where jumps are short, that of 4x."""
        if ratio == 2:
            self.predictor[name, 2] = self.predictor[name, 4]
            return
        rate, rounds, where = self.rate[name], cell.rounds[ratio], f"{name}, {ratio}x"
        self.predictor[name, ratio] = best(
            self.bench,
            {
                key: (
                    f"{where}: coast, {key}, tried",
                    _tried(cell.coasting(rate, rounds, PREDICTORS[key])),
                )
                for key in tried
            },
            trial,
        )

    def _at_ratio(self, name: str, cell: Cell, ratio: int) -> dict[str, Measure]:
        rate, rounds, where = self.rate[name], cell.rounds[ratio], f"{name}, {ratio}x"
        chosen = self.predictor[name, ratio]
        less = cell.sections(rate, steps=rounds.exchanges(cell.steps))
        guarded = cell.coasting(rate, rounds, PREDICTORS[chosen], _steady(rounds))
        return {
            f"{where}: coast, {chosen}": _arm(cell.coasting(rate, rounds, PREDICTORS[chosen])),
            f"{where}: static": _arm(cell.coasting(rate, rounds, STATIC)),
            f"{where}: train_less": _arm(less),
            # where jumps are long
            **({f"{where}: coast, guarded": _arm(guarded)} if ratio > 4 else {}),
        }

    def _figures(self, name: str, ratio: int) -> None:
        where, vanilla = f"{name}, {ratio}x", f"{name}: vanilla at {self.rate[name]}"
        coast = f"{where}: coast, {self.predictor[name, ratio]}"
        # asked for in the regimes that are named, from 4x on: to beat both controls
        asked = 0.0 if "SGD" in name and ratio >= 4 else None
        for control in ("static", "train_less"):
            self._differ(f"{where}: coast against {control}", coast, f"{where}: {control}", asked)
        if ratio > 4:
            title = f"{where}: coast with a guard against static"
            self._differ(title, f"{where}: coast, guarded", f"{where}: static", None)
        most = -10.0 if ratio == 27 else None
        self._differ(f"{where}: coast against vanilla", coast, vanilla, most)
        self._differ(f"{where}: static against vanilla", f"{where}: static", vanilla, None)
        self.figures[f"{where}: fewer bytes"] = Figure(
            None, "at_least", "ratio_of_means", "bytes", vanilla, coast
        )

    def _differ(self, title: str, arm: str, against: str, asked: float | None) -> None:
        self.figures[title] = Figure(asked, "at_least", "mean_difference", "accuracy", arm, against)

    # --- the control of prediction itself -------------------------------------------------------

    def _larger_rates(
        self, cell: str, ratios: Sequence[int], plain: Sequence[float], momentum: Sequence[float]
    ) -> None:
        """Choose the best rate for waiting, for coasting, and for both with momentum."""
        task = CELLS[cell]
        for ratio in ratios:
            where, rounds = f"{cell}, {ratio}x", task.rounds[ratio]
            # a larger rate leaves less room: the cautious one is tried, too
            careful = dict.fromkeys([self.predictor[cell, ratio], "regression, capped"])
            arms: dict[str, Measure] = {}
            for kind, rates, mass in (("plain", plain, 0.0), ("momentum", momentum, 0.9)):
                sides = {
                    "static": {"static": STATIC},
                    "coast": {key: PREDICTORS[key] for key in careful},
                }
                for who, tables in sides.items():
                    tries = {
                        f"{key}, {kind} {rate}": task.coasting(rate, rounds, table, momentum=mass)
                        for rate in rates
                        for key, table in tables.items()
                    }
                    found = best(
                        self.bench,
                        {
                            key: (f"{where}: {who}, {key}, tried", _tried(sections))
                            for key, sections in tries.items()
                        },
                    )
                    arms[f"{where}: {who}, {kind}, best rate"] = _arm(tries[found])
            self.bench.run(arms)
            for kind in ("plain", "momentum"):
                self._differ(
                    f"{where}: coast against static, {kind}, each at its best rate",
                    f"{where}: coast, {kind}, best rate",
                    f"{where}: static, {kind}, best rate",
                    None,
                )
            self._differ(
                f"{where}: coast against static at its best rate",
                f"{where}: coast, {self.predictor[cell, ratio]}",
                f"{where}: static, plain, best rate",
                None,
            )

    # --- safety ---------------------------------------------------------------------------------

    def _too_far(self, cell: str, horizon: int) -> None:
        """Predict a whole jump by the last difference alone, with a guard that says no."""
        task, where = CELLS[cell], f"{cell}, far too long"
        rounds = Rounds(task.rounds[4].real, horizon)
        halving, fixed = {**GUARD, "max_horizon": rounds.horizon}, _steady(rounds)
        wild = {"name": "velocity", "estimate": "last"}
        rate = self.rate[cell]
        arms = {
            f"{where}: coast": task.coasting(rate, rounds, wild, fixed),
            f"{where}: static": task.coasting(rate, rounds, STATIC, fixed),
            f"{where}: coast, halving": task.coasting(rate, rounds, wild, halving),
        }
        self.bench.run({name: _arm(sections) for name, sections in arms.items()})
        for who in ("coast", "coast, halving"):
            self._differ(
                f"{where}: {who} against static", f"{where}: {who}", f"{where}: static", -0.5
            )
        self.figures[f"{where}: jumps rolled back"] = Figure(
            1.0, "at_least", "mean", "rolled_back", f"{where}: coast"
        )

    # --- real processes -------------------------------------------------------------------------

    def _real(
        self, seeds: Sequence[int], cell: str, ratio: int, rates_mbit: Sequence[int], delay_ms: int
    ) -> None:
        task, rate, rounds = CELLS[cell], self.rate[cell], CELLS[cell].rounds[ratio]
        chosen = self.predictor[cell, ratio]
        sections = {
            "vanilla": task.sections(rate),
            "coast": task.coasting(rate, rounds, PREDICTORS[chosen]),
            "static": task.coasting(rate, rounds, STATIC),
        }
        virtual = {
            "vanilla": f"{cell}: vanilla at {rate}",
            "coast": f"{cell}, {ratio}x: coast, {chosen}",
            "static": f"{cell}, {ratio}x: static",
        }
        for mbit in rates_mbit:
            where = f"{cell}, {ratio}x, real processes over {mbit} Mbit/s"
            run = partial(real.run, rate_mbit=mbit, delay_ms=delay_ms)
            self.bench.run(
                {f"{where}: {who}": partial(run, s) for who, s in sections.items()}, seeds
            )
            for title, metric, asked in (("faster", "wall_s", 5.0), ("fewer bytes", "bytes", None)):
                self.figures[f"{where}: {title}"] = Figure(
                    None if self.bench.tiny else asked,
                    "at_least",
                    "ratio_of_means",
                    metric,
                    f"{where}: vanilla",
                    f"{where}: coast",
                )
            self._differ(
                f"{where}: coast against vanilla", f"{where}: coast", f"{where}: vanilla", -10.0
            )
            self._differ(
                f"{where}: coast against static", f"{where}: coast", f"{where}: static", 0.0
            )
            if list(seeds) == self.bench.seeds:
                self._differ(
                    f"{where}: virtual against real", virtual["coast"], f"{where}: coast", 0.0
                )

    # --- codecs ---------------------------------------------------------------------------------

    def _coded(self, name: str, seeds: Sequence[int]) -> None:
        section = self.settings["coded"]
        task, every, bits = _task(name), int(section["every"]), int(section["bits"])
        less = {**task, "train": {"steps": -(-_steps(task) // every)}, **_codec(bits)}
        where = f"{name}, replay and {bits} bits"
        mixed = f"{name}, replay and fewer bits"
        tries = {
            key: {**task, "protocol": {"name": "replay", "every": every, **table}, **_codec(bits)}
            for key, table in REPLAYS.items()
        }
        mixes = {
            key: {**task, "protocol": {"name": "replay", **table}, **_codec(few)}
            for key, (few, table) in MIXES.items()
        }
        chosen = self._best_of(where, tries)
        vanilla, arms = f"{where}: vanilla", {f"{where}: {chosen}": tries[chosen]}
        if not self.bench.tiny:
            mix = self._best_of(mixed, mixes)
            arms[f"{mixed}: {mix}"] = mixes[mix]
        self.bench.run(
            {
                vanilla: _arm(task),
                **{key: _arm(sections) for key, sections in arms.items()},
                f"{where}: train_less": _arm(less),
            },
            seeds,
        )
        asked = {"pair_sum": -1.5, "fashion_mnist_lenet": -1.0}.get(name)
        for arm in arms:
            at = arm.rpartition(":")[0]
            self._differ(f"{at}: against vanilla", arm, vanilla, asked)
            self._differ(f"{at}: against train_less", arm, f"{where}: train_less", None)
            self.figures[f"{at}: fewer bytes"] = Figure(
                None, "at_least", "ratio_of_means", "bytes", vanilla, arm
            )

    def _best_of(self, where: str, tries: Mapping[str, Sections]) -> str:
        """Return which does best on validation data with one seed that is not reported."""
        return best(
            self.bench,
            {key: (f"{where}: {key}, tried", _tried(sections)) for key, sections in tries.items()},
            self.settings["trial_seeds"][:1],
        )


def _steady(rounds: Rounds) -> Table:
    """Return a guard whose horizon never changes, so that bytes stay what they are."""
    return {**GUARD, "min_horizon": rounds.horizon, "max_horizon": rounds.horizon}


def _codec(bits: int) -> Sections:
    """Return what quantises both ways."""
    return {"codec": dict.fromkeys(("forward", "backward"), f"quantise:{bits}")}


def _task(name: str) -> Sections:
    """Return a benchmark task as sections of a run, in one micro-batch."""
    table: dict[str, Any] = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    kept = ("data", "model", "optimizer", "schedule", "train", "layout")
    sections = {key: dict(table[key]) for key in kept if key in table}
    sections["layout"] = {**sections["layout"], "kind": "pipeline", "micro_batches": 1}
    return sections


def _steps(sections: Sections) -> int:
    train = sections["train"]
    if "steps" in train:
        return int(train["steps"])
    samples = len(runs.source_of(str(sections["data"]["name"]), "test").train)
    return int(train["epochs"]) * -(-samples // int(sections["data"]["batch_size"]))


def _arm(sections: Sections) -> Measure:
    return partial(runs.run, sections)


def _tried(sections: Sections) -> Measure:
    return partial(runs.run, sections, scored="validation")


if __name__ == "__main__":
    raise SystemExit(main())
