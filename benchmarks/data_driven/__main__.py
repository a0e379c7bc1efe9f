"""Runs ``data_driven``: ``make bench NAME=data_driven``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import ROOT, Benchmark, Figure, Metrics
from freewheel.config import Config, parse_config
from freewheel.runtime.length import length_of
from freewheel.runtime.pieces import Pieces
from freewheel.simulate import Compute
from freewheel.simulate.run import Virtual, simulate

BSP = "bsp"


def main(argv: Sequence[str] | None = None) -> int:
    """Run all arms and write the results."""
    torch.set_num_threads(1)
    bench = Benchmark.from_command("data_driven", argv)
    settings = bench.settings
    arms = settings["arms"]
    bench.run({name: partial(_virtual, settings, arm, {}) for name, arm in arms.items()})
    short = {"steps": settings["real_steps"]}
    bench.run(
        {
            _short(name, kind): partial(run, settings, arms[name], short)
            for name in settings["real_arms"]
            for kind, run in (("virtual", _virtual), ("real", _real))
        },
        bench.seeds[:1],
    )
    bench.write(_figures(settings))
    return 0


def _figures(settings: Mapping[str, Any]) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for name in settings["arms"]:
        if name == BSP:
            continue
        asked = name in settings["asked_of"]
        figures[f"bytes of bsp, {name}"] = Figure(
            asked=settings["asked_ratio"] if asked else None,
            rule="at_least",
            statistic="ratio_of_means",
            metric="bytes",
            arm=BSP,
            against=name,
        )
        figures[f"accuracy against bsp, {name}"] = Figure(
            asked=-settings["asked_points"] if asked else None,
            rule="at_least",
            statistic="mean_difference",
            metric="accuracy",
            arm=name,
            against=BSP,
        )
    for name in settings["real_arms"]:
        figures[f"bytes of {settings['real_steps']} steps, real against virtual, {name}"] = Figure(
            asked=settings["asked_agreement"],
            rule="at_most",
            statistic="ratio_of_means",
            metric="bytes",
            arm=_short(name, "real"),
            against=_short(name, "virtual"),
        )
    return figures


def _short(name: str, kind: str) -> str:
    return f"{name}, few steps, {kind}"


def _config(
    settings: Mapping[str, Any], arm: Mapping[str, Any], train: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    sections = {key: dict(value) for key, value in settings["task"].items()}
    for key, value in arm.items():
        sections[key] = {**sections.get(key, {}), **value}
    if train:
        sections["train"] = dict(train)
    sections["run"] = {"seed": seed, "threads": 1}
    return sections


def _virtual(
    settings: Mapping[str, Any], arm: Mapping[str, Any], train: Mapping[str, Any], seed: int
) -> Metrics:
    sections = _config(settings, arm, train, seed)
    with tempfile.TemporaryDirectory(prefix="data-driven-") as folder:
        sections["run"]["dir"] = folder
        config: Config = parse_config(sections)
        virtual = Virtual(Compute(0.01, jitter=0.1, seed=seed), shared=False)
        _, summary = simulate(config, Pieces(config), length_of, virtual)
    return {
        "accuracy": summary["final_accuracy"],
        "bytes": summary["bytes_sent"],
        "messages": summary["messages_sent"],
        "updates": summary["updates"],
    }


def _real(
    settings: Mapping[str, Any], arm: Mapping[str, Any], train: Mapping[str, Any], seed: int
) -> Metrics:
    sections = _config(settings, arm, train, seed)
    with tempfile.TemporaryDirectory(prefix="data-driven-") as folder:
        sections["run"]["dir"] = folder
        file = Path(folder) / "run.toml"
        file.write_text("".join(_lines(sections)), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "freewheel.cli.main", "train", str(file), "--json"],
            cwd=ROOT.parent,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"freewheel train ended with {done.returncode}: {done.stderr[-400:]}")
    summary = json.loads(done.stdout)
    return {
        "accuracy": summary["final_accuracy"],
        "bytes": summary["bytes_sent"],
        "messages": summary["messages_sent"],
        "updates": summary["version"],
    }


def _lines(sections: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for section, values in sections.items():
        yield f"[{section}]\n"
        for key, value in values.items():
            yield f"{key} = {_toml(value)}\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


if __name__ == "__main__":
    raise SystemExit(main())
