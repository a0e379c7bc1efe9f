"""A short run of real processes, and an echo: how fast workers and links are, and how evenly."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

import torch

from freewheel.config import Config, parse_config
from freewheel.errors import ConfigError
from freewheel.launch.session import Origin, run
from freewheel.observe.run_folder import read_rows
from freewheel.runtime.links import open_link
from freewheel.runtime.pieces import Given, Pieces
from freewheel.simulate import Compute, LinkSpec
from freewheel.transport.base import Link, Message

#: A step counts as slow beyond so many times its worker's median.
SLOW = 2.0
#: First steps of a worker that are left out: memory and caches are cold.
_COLD = 2
_ECHOES = 20
_BULK_BYTES = 1 << 20


@dataclass(frozen=True)
class Measured:
    """What was found.

    Args:
        durations_s: step times of each worker, in seconds.
        link: between two processes, one way.
        server_s: work of a server for one push, in seconds.
        num_bytes: of the model's trainable parameters, P in the formulas of protocols.
        took_s: seconds that measuring took.
    """

    durations_s: Sequence[Sequence[float]]
    link: LinkSpec
    server_s: float
    num_bytes: int
    took_s: float

    @property
    def step_s(self) -> float:
        """Median step time of the fastest worker, in seconds."""
        return min(median(each) for each in self.durations_s)

    @property
    def factors(self) -> list[float]:
        """How many times slower than the fastest one each worker is, by medians."""
        return [median(each) / self.step_s for each in self.durations_s]

    @property
    def slow_share(self) -> float:
        """The part of all steps that took more than twice their worker's median."""
        slow = sum(sum(s > SLOW * median(each) for s in each) for each in self.durations_s)
        return slow / sum(map(len, self.durations_s))


@dataclass(frozen=True)
class MeasuredPace(Compute):
    """Step times drawn from those that were measured; worker r is like measured worker r mod M.

    Args:
        durations_s: of each measured worker, at least one step of each.

    Example:
        >>> from freewheel.plan.measure import MeasuredPace
        >>> pace = MeasuredPace(durations_s=((1.0,), (4.0,))).of(num_workers=4)
        >>> [pace.next_s(rank) for rank in range(4)]
        [1.0, 4.0, 1.0, 4.0]
    """

    durations_s: Sequence[Sequence[float]] = field(default=((0.01,),))

    def of(self, num_workers: int) -> _Drawn:  # type: ignore[override]  # draws in another way
        """Return the durations of a run."""
        return _Drawn(self.durations_s, self.seed)


class _Drawn:
    def __init__(self, durations_s: Sequence[Sequence[float]], seed: int) -> None:
        self._durations_s, self._seed = durations_s, seed
        self._random: dict[int, Random] = {}

    def next_s(self, rank: int) -> float:
        """Return how long the worker's next step takes, in seconds."""
        if rank not in self._random:
            self._random[rank] = Random(f"{self._seed}:{rank}")
        return self._random[rank].choice(self._durations_s[rank % len(self._durations_s)])


def measure(
    config: Config, path: Sequence[str], seconds: float, say: Callable[[str], None]
) -> Measured:
    """Train for a while with real processes that do not wait for each other, and time them.

    Args:
        config: the run that is planned.
        path: folders with the user's modules.
        seconds: about how long to measure.
        say: is called with lines for a person.

    Raises:
        ConfigError: it is a pipeline, or the time is not above 0.
    """
    if config.layout.kind == "pipeline":
        raise ConfigError(
            'layout.kind = "pipeline": plan chooses between protocols for workers; set '
            'layout.kind = "server" or "replicas", and compare pipelines with freewheel compare'
        )
    if not seconds > 0:
        raise ConfigError(f"--seconds must be > 0, got {seconds}; 30 is enough for most models")
    start = time.monotonic()
    num_bytes, alone_s, server_s = _alone(config, path)
    link = measure_link(config)
    exchange_s = 2 * config.layout.workers * link.transfer_s(num_bytes)
    steps = int(min(300, max(10, 0.5 * seconds / (alone_s * config.layout.workers + exchange_s))))
    say(f"measuring {steps} steps of {config.layout.workers} workers")
    durations_s = _timed(config, path, steps)
    return Measured(durations_s, link, server_s, num_bytes, time.monotonic() - start)


def _alone(config: Config, path: Sequence[str]) -> tuple[int, float, float]:
    """Return the bytes of the parameters, seconds of one step, and of one update of a server."""
    pieces = Pieces(config, Given(), path)
    source = pieces.source()
    module, loss = pieces.partition(source).build(0), pieces.loss()
    count = min(config.data.batch_size, len(source.train))
    inputs = source.train.inputs(torch.arange(count))
    targets = source.train.targets(torch.arange(count))
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        loss(module(inputs), targets).backward()  # type: ignore[no-untyped-call]  # torch's own
        times.append(time.perf_counter() - begun)
    parameters = [p for p in module.parameters() if p.requires_grad]
    num_bytes = sum(p.numel() * p.element_size() for p in parameters)
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    begun = time.perf_counter()
    for _ in range(5):
        flat.add_(flat, alpha=1e-9)
        flat.clone()
    server_s = (time.perf_counter() - begun) / 5
    return num_bytes, min(times) * config.train.accumulate, server_s


def _timed(config: Config, path: Sequence[str], steps: int) -> list[list[float]]:
    """Return the step times of each worker in a short asynchronous run."""
    values = config.model_dump(exclude_unset=True)
    values["layout"] = {
        "kind": "server",
        "workers": config.layout.workers,
        "servers": config.layout.servers,
        "placement": "colocated" if config.layout.kind == "replicas" else config.layout.placement,
    }
    values["protocol"] = {"name": "asp", "rescale": "lr_over_n"}
    values["train"] = {"steps": steps + _COLD, "accumulate": config.train.accumulate}
    for key in ("eval", "checkpoint", "monitor", "predictor", "schedule"):
        values.pop(key, None)
    with tempfile.TemporaryDirectory(prefix="freewheel-plan-") as folder:
        values["run"] = {**values.get("run", {}), "dir": folder}
        made, _ = run(parse_config(values), origin=Origin(path=tuple(path)), quiet=True)
        rows = read_rows(Path(made) / "metrics.jsonl")
    found: list[list[float]] = [[] for _ in range(config.layout.workers)]
    for row in rows:
        if row["step"] > _COLD and row["samples"]:
            found[int(row["process"].split()[1])].append(max(1e-6, float(row["compute_s"])))
    missing = [rank for rank, times in enumerate(found) if not times]
    if missing:
        raise ConfigError(
            f"worker {missing[0]} took no step with samples: the data has too few for "
            f"layout.workers = {config.layout.workers}; use fewer workers or a smaller batch"
        )
    return found


def measure_link(config: Config) -> LinkSpec:
    """Return rate and delay between two links of this machine, as ``[link]`` shapes them."""
    first, second = (open_link(name, bytes(8), config) for name in ("worker 0", "server 0"))
    first.connect({"server 0": second.address})
    second.connect({"worker 0": first.address})

    def echo() -> None:
        for _ in range(_ECHOES + 2):
            message = second.receive(kind="ping", sender="worker 0")
            second.send("worker 0", Message("pong", (torch.zeros(1),), clock=message.clock))

    beside = threading.Thread(target=echo, daemon=True)
    beside.start()
    try:
        small = torch.zeros(1)
        times = [_ping(first, small, clock) for clock in range(_ECHOES)]
        delay_s = median(times) / 2
        large = torch.zeros(_BULK_BYTES // 4)
        bulk_s = min(_ping(first, large, clock) for clock in range(2)) - 2 * delay_s
    finally:
        beside.join(5.0)
        first.close()
        second.close()
    rate_mbit = _BULK_BYTES * 8 / max(bulk_s, 1e-6) / 1e6
    return LinkSpec(rate_mbit, delay_s * 1e3)


def _ping(link: Link, tensor: torch.Tensor, clock: int) -> float:
    begun = time.perf_counter()
    link.send("server 0", Message("ping", (tensor,), clock=clock))
    link.receive(kind="pong", sender="server 0")
    return time.perf_counter() - begun
