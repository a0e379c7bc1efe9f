"""What the scripts of peers share: their place among the ranks, timing, memory, the JSON line."""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore  # type: ignore[attr-defined]  # public, not listed


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all peers have; places default to the environment."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--rank", type=int, default=int(os.environ.get("RANK", "0")))
    made.add_argument("--world-size", type=int, default=int(os.environ.get("WORLD_SIZE", "1")))
    made.add_argument("--store", required=True, help="a path all ranks see; new for each run")
    made.add_argument("--interface", default=os.environ.get("GLOO_SOCKET_IFNAME", "lo"))
    made.add_argument("--model", choices=("mlp", "lenet"), default="mlp")
    made.add_argument("--batch-size", type=int, default=64)
    made.add_argument("--steps", type=int, default=200)
    made.add_argument("--warmup", type=int, default=20)
    made.add_argument("--lr", type=float, default=0.05)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--timeout-s", type=float, default=120.0)
    return made


@contextmanager
def group(given: argparse.Namespace) -> Iterator[None]:
    """Join the gloo group of all ranks, one thread each; leave it at the end.

    A file store, since PyTorch's TCP store listens on all interfaces.
    """
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = given.interface
    dist.init_process_group(
        "gloo",
        store=FileStore(given.store, given.world_size),
        rank=given.rank,
        world_size=given.world_size,
        timeout=timedelta(seconds=given.timeout_s),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def batches(num_samples: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Yield the indices of one random batch after another, each epoch in a new order."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(num_samples, generator=generator)
        for start in range(0, num_samples - batch_size + 1, batch_size):
            yield order[start : start + batch_size]


def time_steps(step: Callable[[], float | None], steps: int, warmup: int) -> dict[str, Any]:
    """Take ``warmup`` steps, then ``steps`` timed ones; return seconds and losses.

    Returns:
        ``step_s``, the seconds of each timed step; ``wall_s``, of all of them with the barriers
        around them; ``losses`` of all steps, None where this rank has none.
    """
    losses = [step() for _ in range(warmup)]
    dist.barrier()
    begin = before = time.perf_counter()
    step_s = []
    for _ in range(steps):
        losses.append(step())
        now = time.perf_counter()
        step_s.append(now - before)
        before = now
    dist.barrier()
    return {"step_s": step_s, "wall_s": time.perf_counter() - begin, "losses": losses}


def peak_rss_bytes() -> int:
    """Return the most memory that this process has held, from its own start on."""
    status = Path("/proc/self/status").read_text()
    match = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert match is not None
    return int(match.group(1)) * 1024


def report(peer: str, given: argparse.Namespace, measured: dict[str, Any]) -> None:
    """Print the one JSON line of a rank."""
    ordered: Sequence[float] = sorted(measured["step_s"])
    line = {
        "peer": peer,
        "torch": torch.__version__,
        **{key: value for key, value in vars(given).items() if key != "store"},
        "median_step_s": ordered[len(ordered) // 2],
        "mean_step_s": measured["wall_s"] / len(ordered),
        "peak_rss_bytes": peak_rss_bytes(),
        **measured,
    }
    print(json.dumps(line), flush=True)
