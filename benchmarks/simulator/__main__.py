"""Runs ``simulator``: ``make bench NAME=simulator``."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Benchmark, Figure, Metrics
from benchmarks.simulator.paced import PACES

HERE = Path(__file__).parent
Case = tuple[str, str, int, float, float, float]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all cases and write the results."""
    bench = Benchmark.from_command("simulator", argv)
    settings, figures = bench.settings, {}
    alone = ("asp", "server", 1, 1.0, 0.0, 0.0)
    bench.run({"one worker": partial(_real, settings, alone)})
    (found,) = (arm for arm in bench.arms() if arm["name"] == "one worker")
    step_ms = statistics.median(v for v in found["metrics"]["step_ms"]["values"] if v)
    for protocol, layout, workers, slow, rate_mbit, delay_ms in settings["cases"]:
        case = (protocol, layout, workers, slow, rate_mbit, delay_ms)
        what = f"{protocol}, {workers} workers"
        what += f", one {slow}x slower" if slow > 1 else ""
        what += f", {rate_mbit} Mbit/s, {delay_ms} ms" if rate_mbit else ""
        real, virtual = f"{what}, real", f"{what}, virtual"
        bench.run(
            {
                real: partial(_real, settings, case),
                virtual: partial(_virtual, settings, case, step_ms),
            }
        )
        figures[f"samples/s, virtual from real: {what}"] = Figure(
            0.15, "at_most", "relative_difference", "samples_per_s", virtual, real
        )
    bench.write(figures)
    return 0


def _real(settings: dict[str, Any], case: Case, seed: int) -> Metrics:
    return _run("train", [], settings, case, seed)


def _virtual(settings: dict[str, Any], case: Case, step_ms: float, seed: int) -> Metrics:
    slow = case[3]
    options = ["--each", "--step-ms", str(step_ms), "--jitter", "0.02"]
    if slow > 1:
        # only the sleep is longer
        pace = float(settings["pace_ms"])
        options += ["--stragglers", f"1x{1 + (slow - 1) * pace / step_ms:.3f}"]
    return _run("simulate", options, settings, case, seed)


def _run(
    command: str, options: Sequence[str], settings: dict[str, Any], case: Case, seed: int
) -> Metrics:
    protocol, layout, workers, slow, rate_mbit, delay_ms = case
    values = [
        f"run.seed={seed}",
        f"train.steps={settings['warmup'] + settings['steps']}",
        f"layout.kind={layout}",
        f"layout.workers={workers}",
        f"protocol.name={protocol}",
        *([f"link.rate_mbit={rate_mbit}", f"link.delay_ms={delay_ms}"] if rate_mbit else []),
    ]
    paces = [settings["pace_ms"]] * (workers - 1) + [settings["pace_ms"] * slow]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        PACES: ",".join(map(str, paces)),
    }
    with tempfile.TemporaryDirectory(prefix="simulator-") as folder:
        given = [part for value in (*values, f"run.dir={folder}") for part in ("--set", value)]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "freewheel.cli.main", command, str(HERE / "run.toml")),
                *(*options, *given, "--json"),
            ],
            cwd=HERE.parents[1],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"freewheel {command}: {done.stderr[-400:]}")
        (run,) = Path(folder).iterdir()
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    json.loads(done.stdout)
    return _rates([json.loads(line) for line in lines], int(settings["warmup"]))


def _rates(rows: Sequence[dict[str, Any]], warmup: int) -> Metrics:
    """Return samples per second while all workers train, and the median time of a step."""
    of: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for row in rows:
        if row.get("step") is not None and row.get("samples"):
            at_s = float(row["virtual_s"] if "virtual_s" in row else row["at_s"])
            of[row["process"]].append((at_s, int(row["samples"])))
    start = max(sorted(steps)[warmup - 1][0] for steps in of.values())
    end = min(max(steps)[0] for steps in of.values())
    samples = sum(n for steps in of.values() for at_s, n in steps if start < at_s <= end)
    times = [row["compute_s"] for row in rows if row.get("compute_s") is not None]
    return {
        "samples_per_s": samples / (end - start),
        "step_ms": 1e3 * statistics.median(times[warmup:]),
    }


if __name__ == "__main__":
    raise SystemExit(main())
