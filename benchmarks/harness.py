"""The one form of all benchmarks: arms interleaved, units resumed, results with intervals.

A benchmark is a folder ``benchmarks/NAME/`` with two files. ``benchmark.toml`` has ``about`` (a
sentence or two for the docs), ``seeds`` (one repeat of every arm for each), any settings of its
own, and a ``[tiny]`` table that overrides some of them for CI. ``__main__.py`` looks like this::

    def main(argv: Sequence[str] | None = None) -> int:
        bench = Benchmark.from_command("echo", argv)
        size = bench.settings["num_bytes"]
        bench.run({"ours": lambda seed: {"echo_s": echo(size, seed)}, "tcp": ...})
        bench.write({
            "echo, ours to TCP": Figure(
                asked=1.0, rule="at_most", statistic="ratio_of_medians",
                metric="echo_s", arm="ours", against="tcp"),
        })
        return 0

An arm is a function from a seed to its metrics (numbers, or None where there is none). All arms of
one ``run`` are taken back to back for each seed, in turning order, so that a drift of the machine
meets all of them. Each finished unit (one arm, one seed) is appended to
``benchmarks/work/NAME.jsonl`` and skipped when the command is started again with the same settings.
An arm that raises is recorded with its error, as a row of the table; ``--retry-failed`` takes it
again, ``--fresh`` takes all again, and ``--go-on`` takes over what the results file of another
machine holds under the same settings: for accuracies and virtual time, not for seconds.
``--seeds N`` takes the first N seeds only; the results say so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure, compute
from benchmarks.intervals import OF_ONE
from benchmarks.provenance import load, machine, versions

__all__ = [
    "RESULTS",
    "ROOT",
    "Benchmark",
    "Figure",
    "Measure",
    "Metrics",
    "interleave",
    "read_settings",
]

ROOT = Path(__file__).parent
RESULTS = ROOT / "results"
WORK = ROOT / "work"

Metrics = Mapping[str, float | int | None]
Measure = Callable[[int], Metrics]


@dataclass(frozen=True)
class Unit:
    """One arm measured once: the line of it in the work file."""

    arm: str
    seed: int
    settings: str
    metrics: Metrics
    error: str | None
    load: float
    took_s: float


class Benchmark:
    """A benchmark in the course of being run.

    Args:
        name: its folder.
        settings: of ``benchmark.toml``, ``[tiny]`` already applied.
        seeds: one repeat of every arm for each.
        work: the file of finished units.
        out: the results file.
        tiny: whether this is the small form; its results are never shown as results.
        command: what a person types to run it again.
    """

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any],
        *,
        seeds: Sequence[int],
        work: Path,
        out: Path,
        tiny: bool = False,
        about: str = "",
        command: str = "",
        retry_failed: bool = False,
        go_on: bool = False,
    ) -> None:
        self.name, self.settings, self.seeds, self.tiny = name, dict(settings), list(seeds), tiny
        self.work, self.out, self.about = work, out, about
        self.command = command or f"make bench NAME={name}"
        canonical = json.dumps(self.settings, sort_keys=True).encode()
        self.fingerprint = hashlib.sha256(canonical).hexdigest()[:16]
        self._order: list[str] = []
        own = {
            (unit.arm, unit.seed): unit
            for unit in _read(work)
            if unit.settings == self.fingerprint and not (unit.error and retry_failed)
        }
        before = _published(out, self.settings, self.fingerprint) if go_on else ()
        #: Of another machine, or of an earlier state of this one.
        self._taken_over = {(unit.arm, unit.seed): unit for unit in before}
        self._units = {**self._taken_over, **own}

    @classmethod
    def from_command(cls, name: str, argv: Sequence[str] | None = None) -> Benchmark:
        """Read ``benchmarks/NAME/benchmark.toml`` and the arguments of ``python -m``."""
        arguments = list(sys.argv[1:] if argv is None else argv)
        parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
        parser.add_argument("--tiny", action="store_true", help="the small form that CI runs")
        parser.add_argument("--out", type=Path, help="the results file")
        parser.add_argument("--fresh", action="store_true", help="forget the units done before")
        parser.add_argument("--retry-failed", action="store_true", help="take failed units again")
        parser.add_argument("--go-on", action="store_true", help="keep what the results file holds")
        parser.add_argument("--seeds", type=int, metavar="N", help="the first N seeds only")
        given = parser.parse_args(arguments)
        about, seeds, settings = read_settings(ROOT / name / "benchmark.toml", tiny=given.tiny)
        form = f"{name}.tiny" if given.tiny else name
        work = WORK / f"{form}.jsonl"
        if given.tiny and given.out:
            work = given.out.with_suffix(".jsonl")  # so that two at once do not meet
        if given.fresh:
            work.unlink(missing_ok=True)
        default = WORK / f"{form}.json" if given.tiny else RESULTS / f"{name}.json"
        return cls(
            name,
            settings,
            seeds=seeds[: given.seeds],
            work=work,
            out=given.out or default,
            tiny=given.tiny,
            about=about,
            command=_command(name, given.tiny, given.seeds),
            retry_failed=given.retry_failed,
            go_on=given.go_on,
        )

    def run(self, arms: Mapping[str, Measure], seeds: Sequence[int] | None = None) -> None:
        """Measure every arm once per seed, interleaved, skipping the units already done.

        May be called several times, with other arms: what must be back to back goes in one call.
        """
        seeds = self.seeds if seeds is None else list(seeds)
        for name in arms:
            if name in self._order:
                raise ValueError(f"arm {name!r} stands in two runs; names of arms are unique")
            self._order.append(name)
        for name, seed in interleave(list(arms), seeds):
            if (name, seed) not in self._units:
                self._keep(self._measure(name, seed, arms[name]))

    def _measure(self, arm: str, seed: int, measure: Measure) -> Unit:
        before, started = load()[0], time.perf_counter()
        metrics: Metrics = {}
        error = None
        try:
            metrics = {key: _number(value) for key, value in measure(seed).items()}
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}".replace(f"{ROOT.parent}/", "")
        took_s = round(time.perf_counter() - started, 3)
        shown = error or ", ".join(f"{key} {_short(value)}" for key, value in metrics.items())
        print(f"{self.name}: {arm}, seed {seed} ({took_s:.1f} s): {shown}", file=sys.stderr)
        return Unit(arm, seed, self.fingerprint, metrics, error, before, took_s)

    def _keep(self, unit: Unit) -> None:
        self._units[unit.arm, unit.seed] = unit
        self.work.parent.mkdir(parents=True, exist_ok=True)
        with self.work.open("a+b") as file:
            file.seek(max(file.tell() - 1, 0))
            cut_short = file.read(1) not in (b"", b"\n")
            file.write(b"\n" * cut_short + json.dumps(asdict(unit)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def arms(self) -> list[dict[str, Any]]:
        """Return what was measured, as it stands in a results file."""
        return [self._arm(name) for name in self._order]

    def _arm(self, name: str) -> dict[str, Any]:
        units = sorted(
            (unit for unit in self._units.values() if unit.arm == name), key=lambda unit: unit.seed
        )
        keys = list(dict.fromkeys(key for unit in units for key in unit.metrics))
        return {
            "name": name,
            "metrics": {key: summarise([unit.metrics.get(key) for unit in units]) for key in keys},
            "seeds": [unit.seed for unit in units],
            "failures": [unit.error for unit in units if unit.error],
        }

    def write(self, headline: Mapping[str, Figure]) -> dict[str, Any]:
        """Compute the headline from the arms, write the results file, and return it."""
        arms = self.arms()
        units = [unit for unit in self._units.values() if unit.arm in self._order]
        loads = [unit.load for unit in units]
        results: dict[str, Any] = {
            "name": self.name,
            "about": self.about,
            "command": self.command,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "tiny": self.tiny,
            "machine": machine(),
            "versions": versions(),
            "load": {"before": loads[0] if loads else load()[0], "after": load()[0]},
            "took_s": round(sum(unit.took_s for unit in units), 1),
            "taken_over": sum(unit in self._taken_over.values() for unit in units),
            "seeds": self.seeds,
            "settings": self.settings,
            "arms": arms,
            "headline": {name: compute(figure, arms) for name, figure in headline.items()},
        }
        if loads:
            results["load"]["during"] = {"median": float(np.median(loads)), "max": max(loads)}
        self.out.parent.mkdir(parents=True, exist_ok=True)
        aside = self.out.with_suffix(".part")
        aside.write_text(dump(results))
        aside.replace(self.out)
        for name, entry in results["headline"].items():
            verdict = {True: "holds", False: "does not hold", None: "reported"}[entry["holds"]]
            asked = f"asked {entry['rule'].replace('_', ' ')} {_short(entry['asked'])}"
            print(f"{name}: {_short(entry['reached'])} ({asked}): {verdict}")
        return results


def interleave(arms: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Yield every (arm, seed), all arms of a seed back to back, every second seed in reverse.

    Example:
        >>> from benchmarks.harness import interleave
        >>> list(interleave(["a", "b"], [0, 1]))
        [('a', 0), ('b', 0), ('b', 1), ('a', 1)]
    """
    for turn, seed in enumerate(seeds):
        for arm in arms if turn % 2 == 0 else reversed(arms):
            yield arm, seed


def summarise(values: Sequence[float | None]) -> dict[str, Any]:
    """Return median and mean with their 95% intervals, and the values themselves by seed."""
    finite = np.array([value for value in values if value is not None], dtype=float)
    summary: dict[str, Any] = {"median": None, "mean": None, "values": list(values)}
    if len(finite):
        summary["median"], interval = OF_ONE["median"](finite)
        summary["median_interval"] = list(interval) if interval else None
        summary["mean"], interval = OF_ONE["mean"](finite)
        summary["mean_interval"] = list(interval) if interval else None
    return summary


def dump(results: Mapping[str, Any]) -> str:
    """Return a results file's text: JSON with one line for each arm and each figure."""

    def inline(value: Any) -> str:
        return json.dumps(value, allow_nan=False)

    lines = []
    for key, value in results.items():
        if key == "arms":
            text = "[\n  " + ",\n  ".join(map(inline, value)) + "\n ]" if value else "[]"
        elif key == "headline":
            rows = [f"{inline(name)}: {inline(entry)}" for name, entry in value.items()]
            text = "{\n  " + ",\n  ".join(rows) + "\n }" if rows else "{}"
        else:
            text = inline(value)
        lines.append(f" {inline(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_settings(path: Path, *, tiny: bool) -> tuple[str, list[int], dict[str, Any]]:
    """Return ``about``, ``seeds`` and the other settings of a ``benchmark.toml``.

    Raises:
        ValueError: ``about`` or ``seeds`` is missing, or ``[tiny]`` overrides an unknown setting.
    """
    table = tomllib.loads(path.read_text())
    small = table.pop("tiny", {})
    unknown = sorted(set(small) - set(table))
    if unknown:
        raise ValueError(f"{path.name}: [tiny] sets {unknown}, which the full form does not have")
    if tiny:
        table |= small
    missing = sorted({"about", "seeds"} - set(table))
    if missing:
        raise ValueError(f"{path.name} must have {missing}")
    return table.pop("about"), table.pop("seeds"), table


def _read(work: Path) -> list[Unit]:
    units = []
    with suppress(FileNotFoundError):
        for line in work.read_text().splitlines():
            # A line cut short by a kill is a unit that was not finished.
            with suppress(json.JSONDecodeError, TypeError):
                units.append(Unit(**json.loads(line)))
    return units


def _command(name: str, tiny: bool, num_seeds: int | None) -> str:
    if tiny:
        return f"python -m benchmarks.{name} --tiny"
    few = "" if num_seeds is None else f' ARGS="--seeds {num_seeds}"'
    return f"make bench NAME={name}{few}"


def _published(out: Path, settings: Mapping[str, Any], fingerprint: str) -> Iterator[Unit]:
    """Yield the units of a results file that was made with these settings; none that failed."""
    with suppress(FileNotFoundError):
        results = json.loads(out.read_text())
        during = results["load"].get("during", {"median": 0.0})["median"]
        took_s = results["took_s"] / max(1, sum(len(arm["seeds"]) for arm in results["arms"]))
        for arm in results["arms"] if results["settings"] == settings else ():
            for place, seed in enumerate(arm["seeds"]):
                metrics = {key: value["values"][place] for key, value in arm["metrics"].items()}
                if any(value is not None for value in metrics.values()):
                    yield Unit(arm["name"], seed, fingerprint, metrics, None, during, took_s)


def _number(value: Any) -> float | int | None:
    if value is None:
        return None
    if isinstance(value, bool | int):
        return int(value)
    number = float(value)
    return float(f"{number:.8g}") if math.isfinite(number) else None


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
