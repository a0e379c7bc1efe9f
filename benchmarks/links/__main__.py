"""Runs ``links``: ``make bench NAME=links`` (as root: it needs a network lab)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.arms import ours
from benchmarks.arms.places import RUN_FILE, place
from benchmarks.harness import Benchmark, Figure, Metrics


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all links and models and write the results."""
    bench = Benchmark.from_command("links", argv)
    figures = {}
    for rate_mbit, delay_ms in bench.settings["links"]:
        for model in bench.settings["models"]:
            group = f"{model}, {rate_mbit} Mbit/s, {delay_ms} ms"
            lab, shaped = f"{group}, lab", f"{group}, shaped"
            bench.run(
                {
                    lab: partial(_lab, bench, model, rate_mbit, delay_ms),
                    shaped: partial(_shaped, bench, model, rate_mbit, delay_ms),
                }
            )
            figures[f"time per step, {group}, shaped from lab"] = Figure(
                0.10, "at_most", "relative_difference", "step_ms", shaped, lab
            )
            figures[f"bytes, {group}, counted from sent"] = Figure(
                0.03, "at_most", "median", "byte_error", lab
            )
    bench.write(figures)
    return 0


def _lab(bench: Benchmark, model: str, rate_mbit: float, delay_ms: float, seed: int) -> Metrics:
    with place(bench.settings["world_size"], rate_mbit, delay_ms) as where:
        return ours.train(where, RUN_FILE, _overrides(bench, model, seed), warmup=_warmup(bench))


def _shaped(bench: Benchmark, model: str, rate_mbit: float, delay_ms: float, seed: int) -> Metrics:
    link = [f"link.rate_mbit={rate_mbit}", f"link.delay_ms={delay_ms}"]
    overrides = [*_overrides(bench, model, seed), *link]
    with place(bench.settings["world_size"]) as where:
        return ours.train(where, RUN_FILE, overrides, warmup=_warmup(bench))


def _warmup(bench: Benchmark) -> int:
    return int(bench.settings["warmup"])


def _overrides(bench: Benchmark, model: str, seed: int) -> list[str]:
    settings = bench.settings
    return [
        f"model.name={model}",
        f"run.seed={seed}",
        f"train.steps={settings['warmup'] + settings['steps']}",
        f"layout.stages={settings['world_size']}",
        f"layout.micro_batches={settings['micro_batches']}",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
