"""Runs ``codecs_speed``: ``make bench NAME=codecs_speed``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.harness import Benchmark, Figure, Metrics
from freewheel.codecs import make_codec

#: The codecs for which a speed is asked; the others of ``benchmark.toml`` state theirs.
FAST = [f"cast:{to}" for to in ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2")] + [
    f"quantise:{bits},rounding={rounding}"
    for bits in range(1, 9)
    for rounding in ("stochastic", "nearest")
]
BLOCKS = [f"quantise:{bits},per=64" for bits in (2, 4, 8)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all codecs and write the results."""
    torch.set_num_threads(1)
    bench = Benchmark.from_command("codecs_speed", argv)
    specs = [*FAST, *BLOCKS, *bench.settings["others"]]
    bench.run({spec: partial(measure, bench.settings, spec) for spec in specs})
    bench.write(
        {
            f"encode MB/s, {spec}": Figure(
                asked=bench.settings["asked_mb_per_s"] if spec in FAST else None,
                rule="at_least",
                statistic="median",
                metric="encode_mb_per_s",
                arm=spec,
            )
            for spec in specs
        }
    )
    return 0


def measure(settings: Mapping[str, Any], spec: str, seed: int) -> Metrics:
    """Time calls of a codec at both ends."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(settings["rows"], settings["columns"], generator=generator)
    key = list(range(settings["rows"])) if "per=sample" in spec else "x"
    sender, receiver = make_codec(spec), make_codec(spec)
    encoding, decoding, by_clock, num_bytes = [], [], [], 0
    for repeat in range(settings["repeats"] + 2):
        encoded, used, took = timed(partial(sender.encode, x, key=key, generator=generator))
        _, used_there, _ = timed(partial(receiver.decode, encoded, x.shape, x.dtype, key=key))
        sender.commit(key, encoded.ticket)
        num_bytes = encoded.num_bytes
        if repeat >= 2:  # the first calls meet cold caches
            encoding.append(used)
            decoding.append(used_there)
            by_clock.append(took)
    megabytes = x.numel() * x.element_size() / 1e6
    return {
        "encode_mb_per_s": megabytes / statistics.median(encoding),
        "decode_mb_per_s": megabytes / statistics.median(decoding),
        "wall_encode_mb_per_s": megabytes / statistics.median(by_clock),
        "byte_ratio": x.numel() * x.element_size() / num_bytes,
    }


def timed(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return a call's result, the processor seconds it used and the seconds it took."""
    used, started = time.thread_time(), time.perf_counter()
    result = call()
    return result, time.thread_time() - used, time.perf_counter() - started


if __name__ == "__main__":
    raise SystemExit(main())
