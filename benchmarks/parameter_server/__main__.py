"""Runs ``parameter_server``: ``make bench NAME=parameter_server``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness import ROOT, Benchmark, Figure, Metrics
from benchmarks.parameter_server import hosts
from freewheel.protocols import protocols
from freewheel.simulate import Budget, Compute, CostOnly, Simulation, Stragglers

OURS = "freewheel asp"
PUSH_8_BITS = "error_feedback+quantise:8"
RAY = ROOT / "work" / "ray" / "bin" / "python"
#: How many times a peer's updates per second are asked, by hidden units.
ASKED = {63: 3.0, 1258: 2.0, 12579: 1.0}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all sizes and write the results."""
    bench = Benchmark.from_command("parameter_server", argv)
    figures = {}
    for hidden, warmup, updates in bench.settings["sizes"]:
        given = ["--hidden", str(hidden), "--warmup", str(warmup), "--updates", str(updates)]
        given += ["--workers", str(bench.settings["workers"])]
        what = f"{(795 * hidden + 10) / 1000:,.0f}k parameters"
        arms = {f"{OURS}, {what}": partial(_ours, given, bench.settings["workers"])}
        for peer in bench.settings["peers"]:
            arms[f"{peer}, {what}"] = partial(_theirs, peer, given)
            figures[f"updates/s against {peer}, {what}"] = Figure(
                asked=ASKED[hidden],
                rule="at_least",
                statistic="ratio_of_medians",
                metric="updates_per_s",
                arm=f"{OURS}, {what}",
                against=f"{peer}, {what}",
            )
        bench.run(arms)
    for hidden, warmup, updates in bench.settings["bound_sizes"]:
        given = ["--hidden", str(hidden), "--warmup", str(warmup), "--updates", str(updates)]
        given += ["--workers", "1", "--fixed-gradient"]
        ours, bound = f"push and pull, {hidden} hidden", f"bound, {hidden} hidden"
        bench.run({ours: partial(_ours, given, 1), bound: partial(_theirs, "bound", given)})
        figures[f"push and pull against the bound, {hidden} hidden"] = Figure(
            0.6, "at_least", "ratio_of_medians", "updates_per_s", ours, bound
        )
    for hidden, warmup, updates in bench.settings["memory_sizes"]:
        given = ["--hidden", str(hidden), "--warmup", str(warmup), "--updates", str(updates)]
        given += ["--workers", str(bench.settings["workers"]), "--adam"]
        name = f"server with Adam, {hidden} hidden"
        bench.run({name: partial(_ours, given, bench.settings["workers"])})
        # parameters and two moments; of each worker a push and a pull on their way
        most = 3.0 + 2.0 * bench.settings["workers"]
        figures[f"server memory with Adam over parameters, {hidden} hidden"] = Figure(
            most, "at_most", "median", "server_memory_over_parameters", name
        )
    for hidden, warmup, updates in bench.settings["hosts_sizes"]:
        given = ["--hidden", str(hidden), "--warmup", str(warmup), "--updates", str(updates)]
        given += ["--workers", str(bench.settings["workers"])]
        figures |= _on_hosts(bench, given, hidden)
    steps = bench.settings["virtual_steps"]
    paced = {"asp": {}, "ssp": {"staleness": 4}, "bsp": {}}
    bench.run({name: partial(_paced, name, own, steps) for name, own in paced.items()})
    for name, asked in (("asp", 2.5), ("ssp", 1.0)):
        figures[f"samples/s (virtual), one of four 4x slower, {name} against bsp"] = Figure(
            asked, "at_least", "ratio_of_medians", "samples_per_virtual_s", name, "bsp"
        )
    bench.write(figures)
    return 0


def _on_hosts(bench: Benchmark, given: Sequence[str], hidden: int) -> dict[str, Figure]:
    """Measure servers and workers on hosts of their own, over links of a stated rate."""
    rate, workers = bench.settings["hosts_rate_mbit"], bench.settings["workers"]
    what = f"{(795 * hidden + 10) / 1000:,.0f}k parameters, hosts at {rate} Mbit/s"
    peer = f"rpc_server, {what}"
    codecs = {OURS: {}, f"{OURS}, 8 bits": {"push": PUSH_8_BITS, "pull": "quantise:8"}}
    arms = {
        f"{name}, {what}": partial(hosts.ours, given, workers, rate, codec)
        for name, codec in codecs.items()
    }
    bench.run({**arms, peer: partial(hosts.rpc, given, workers, rate)})
    return {
        f"updates/s against rpc_server, {name}": Figure(
            None if bench.tiny else 1.5,
            "at_least",
            "ratio_of_medians",
            "updates_per_s",
            name,
            peer,
        )
        for name in arms
    }


def _ours(given: Sequence[str], workers: int, seed: int) -> Metrics:
    with tempfile.TemporaryDirectory(prefix="loop-") as folder:
        command = [
            *(sys.executable, "-m", "freewheel.cli.main", "launch"),
            *(str(ROOT / "peers" / "loop.py"), "--workers", str(workers), "--protocol", "asp"),
            *("--set", f"run.dir={folder}", "--set", "run.threads=1", "--json"),
            *("--", *given, "--seed", str(seed), "--out", folder),
        ]
        _run(command)
        seconds = [float((Path(folder) / str(rank)).read_text()) for rank in range(workers)]
        beyond_mb = float((Path(folder) / "server_mb").read_text())
    updates = int(given[given.index("--updates") + 1])
    model_mb = 4 * (795 * int(given[given.index("--hidden") + 1]) + 10) / 2**20
    return {
        "updates_per_s": workers * updates / max(seconds),
        "server_memory_over_parameters": 1.0 + beyond_mb / model_mb,
    }


def _theirs(peer: str, given: Sequence[str], seed: int) -> Metrics:
    python = str(RAY) if peer == "ray_server" else sys.executable
    if not Path(python).exists():
        raise RuntimeError("Ray is not installed; benchmarks/peers/ray_server.py says how")
    out = _run([python, "-m", f"benchmarks.peers.{peer}", *given, "--seed", str(seed)])
    return dict(json.loads(out.splitlines()[-1]))


def _paced(name: str, settings: dict[str, int], steps: int, seed: int) -> Metrics:
    work = CostOnly(Budget(steps, 4), num_bytes=0, batch_size=32)
    pace = Compute(1.0, Stragglers(1, 4.0), jitter=0.1, seed=seed)
    result = Simulation(protocols.create(name, settings), work, 4, pace).run()
    return {"samples_per_virtual_s": result.samples / result.virtual_s}


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])}: {done.stderr[-400:]}")
    return done.stdout


if __name__ == "__main__":
    raise SystemExit(main())
