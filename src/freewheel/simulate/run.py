"""One simulated run, from its configuration to its run folder and summary."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from freewheel.config import Config
from freewheel.errors import ConfigError
from freewheel.observe.run_folder import RunFolder
from freewheel.protocols import protocols
from freewheel.protocols.arrivals import to_row
from freewheel.protocols.strategy_switch import StrategySwitch
from freewheel.protocols.switching import Switching
from freewheel.simulate.compute import Compute
from freewheel.simulate.engine import Simulation
from freewheel.simulate.faults import Fault
from freewheel.simulate.link import LinkSpec
from freewheel.simulate.records import Recorder
from freewheel.simulate.result import Result
from freewheel.simulate.served_training import ServedTraining
from freewheel.simulate.training import Training, TrainingBatch
from freewheel.simulate.workload import Budget, CostOnly, Workload
from freewheel.streams.base import Source, Split
from freewheel.streams.sampler import Sampler


class Pieces(Protocol):
    """What a configuration names, made on demand; ``freewheel.runtime.pieces`` has it."""

    def source(self) -> Source:
        """Return the data."""
        ...

    def partition(self, source: Source) -> Any:
        """Return the model, in one part."""
        ...

    def loss(self) -> Callable[[Any, Any], Tensor]:
        """Return the loss, a mean over samples."""
        ...

    def metrics(self) -> Callable[[Any, Any], dict[str, tuple[float, float]]]:
        """Return the metrics, as sums and counts."""
        ...

    def optimizer(self, parameters: list[nn.Parameter]) -> Any:
        """Return an optimizer."""
        ...

    def schedule(self, optimizer: Any, total_steps: int) -> Any:
        """Return a schedule, or None."""
        ...


@dataclass(frozen=True)
class Virtual:
    """What a simulated run needs beside its configuration.

    Args:
        compute: how long steps take.
        link: the network; None: that of ``[link]``.
        faults: deaths and joins.
        server_s: seconds of server work for one push.
        detect_s: seconds until a death is noticed.
        shared: all workers take steps from one budget; else each takes its own.
        cost_only: compute no gradients.
    """

    compute: Compute = field(default_factory=Compute)
    link: LinkSpec | None = None
    faults: tuple[Fault, ...] = ()
    server_s: float = 0.0
    detect_s: float = 1.0
    shared: bool = True
    cost_only: bool = False


def simulate(
    config: Config,
    pieces: Pieces,
    steps_of: Callable[[Config, int], int],
    virtual: Virtual | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Path, dict[str, Any]]:
    """Run a configuration in virtual time and write its run folder.

    Args:
        config: what to do; its layout is ``"replicas"`` or ``"server"``.
        pieces: data, model, loss, optimizer.
        steps_of: from the configuration and the number of training samples, the steps of the run.
        virtual: times, link and faults.
        say: is called with lines for a person.

    Returns:
        The run folder and the summary. ``virtual_s`` is the time that the run would have taken;
        ``wall_s`` is null, because no clock measured it.

    Raises:
        ConfigError: the configuration asks for what the simulator does not have.
    """
    virtual = virtual or Virtual()
    start = time.monotonic()
    protocol = protocols.create(config.protocol_name, config.protocol.settings)
    check(config, protocol.layout)
    source = pieces.source()
    steps = steps_of(config, len(source.train))
    num_workers = config.layout.workers
    budget = Budget(steps, num_workers, virtual.shared)
    module = pieces.partition(source).build(0)
    served: dict[str, Any] = {}
    if protocol.layout == "server":
        codec = config.codec
        served = {"push": codec.push, "pull": codec.pull, "watch": protocol.watch}
    training = (ServedTraining if served else Training)(
        module,
        _batches(config, source.train),
        pieces.loss(),
        pieces.optimizer,
        lambda optimizer: pieces.schedule(optimizer, steps),
        budget,
        config.data.batch_size * config.train.accumulate,
        local=protocol.pushes != "gradient",
        clip_norm=config.train.clip_norm,
        seed=config.run.seed,
        **served,
    )
    workload: Workload = training
    if virtual.cost_only:
        workload = CostOnly(budget, training.num_bytes, training.batch_size)
    score = _scorer(config, pieces, scored_part(source), training)
    if isinstance(protocol, StrategySwitch) and training.optimizer is not None:
        protocol.changes().check(training.optimizer)
    validate = None
    if "validation_loss" in getattr(protocol, "needs", ()):
        validate = _validation(config, pieces, source, training, virtual.cost_only)
    folder = RunFolder.create(config)
    every = 0 if virtual.cost_only else config.eval.every
    role = "replica" if config.layout.kind == "replicas" else "worker"
    recorder = Recorder(folder, every, num_workers, score, say, role)
    say(f"{folder.path}: {protocol.name}, {num_workers} workers in virtual time, {source.name}")
    try:
        simulation = Simulation(
            protocol,
            workload,
            num_workers,
            virtual.compute,
            virtual.link or LinkSpec(config.link.rate_mbit, config.link.delay_ms),
            virtual.faults,
            config.layout.servers,
            virtual.server_s,
            virtual.detect_s,
            recorder,
            max(1, steps // config.train.epochs) if config.train.epochs else None,
            validate,
        )
        recorder.run, recorder.lr = simulation, lambda: training.lr
        result = simulation.run()
        recorder.flush()
        final = {} if virtual.cost_only else recorder.evaluate(recorder.steps, result.version)
        _write_arrivals(folder.path, result)
        if not virtual.cost_only:
            _write_final(folder.path, training.trained())
        machine = simulation.server.machine
        switch = machine.facts() if isinstance(machine, Switching) else {}
        if switch:
            say(switch.get("switch") or f"switched at step {switch['switched_at']}")
        summary = {
            **_summary(config, source.name, result, recorder, final),
            **switch,
            "total_s": round(time.monotonic() - start, 6),
        }
        folder.summary(summary)
    finally:
        folder.close()
    return folder.path, summary


def check(config: Config, layout: str) -> None:
    """Refuse what the simulator does not have, rather than leave it out in silence.

    Raises:
        ConfigError: names the setting, its value, and what to do.
    """
    kind = config.layout.kind
    if kind == "pipeline":
        raise ConfigError(
            'layout.kind = "pipeline" has stages, and this simulates workers; `freewheel simulate` '
            "does both, from Python freewheel.runtime.virtual.pipeline.simulate_pipeline does that"
        )
    if kind != layout:
        raise ConfigError(
            f"protocol {config.protocol_name!r} runs in layout {layout!r}, but layout.kind = "
            f"{kind!r}; set layout.kind = {layout!r} or choose another protocol"
        )
    plain: dict[str, tuple[Any, Any]] = {
        "train.autocast": (config.train.autocast, None),
        "run.device": (config.run.device, "cpu"),
        "link.jitter_ms": (config.link.jitter_ms, 0.0),
        "layout.placement": (config.layout.placement, "separate"),
        "stream.name": (config.stream.name, None),
    }
    if kind != "server":
        plain["codec.push"] = (config.codec.push, "identity")
        plain["codec.pull"] = (config.codec.pull, "identity")
    for key, (value, only) in plain.items():
        if value != only:
            how = "leave it out" if only is None else f"set it to {only!r}"
            raise ConfigError(f"{key} = {value!r} is not simulated; {how} for simulate")


def _batches(config: Config, train: Split) -> Callable[[int], Iterator[TrainingBatch]]:
    """Return, for a rank, the batches that the real worker of that rank would take."""
    workers, seed = config.layout.workers, config.run.seed

    def of(rank: int) -> Iterator[TrainingBatch]:
        place, world = (rank, workers) if rank < workers else (0, 1)
        # A newcomer goes through all samples in an order of its own.
        own_seed = seed if rank < workers else seed + 7919 * rank
        size, shuffle = config.data.batch_size, config.data.shuffle
        sampler = Sampler(len(train), size, own_seed, place, world, shuffle)
        while True:
            parts = [sampler.next()]
            while len(parts) < config.train.accumulate and not parts[-1].last_in_epoch:
                parts.append(sampler.next())
            indices = torch.cat([part.indices for part in parts])
            if len(indices):
                yield train.inputs(indices), train.targets(indices), len(indices)
            else:
                yield None, None, 0

    return of


def scored_part(source: Source) -> Split:
    """Return the part that accuracy is reported on: test, or validation where there is no test."""
    return source.test if len(source.test) else source.validation


def _scorer(
    config: Config, pieces: Pieces, split: Split, training: Training
) -> Callable[[], dict[str, float]]:
    loss, metrics = pieces.loss(), pieces.metrics()

    def score() -> dict[str, float]:
        module = training.trained().eval()
        sums: dict[str, tuple[float, float]] = {}
        with torch.no_grad():
            for first in range(0, len(split), config.eval.batch_size):
                indices = torch.arange(first, min(first + config.eval.batch_size, len(split)))
                output, targets = module(split.inputs(indices)), split.targets(indices)
                count = float(len(indices))
                found = {"loss": (float(loss(output, targets)) * count, count)}
                for name, (value, number) in {**found, **metrics(output, targets)}.items():
                    before = sums.get(name, (0.0, 0.0))
                    sums[name] = (before[0] + value, before[1] + number)
        module.train()
        return {name: value / number for name, (value, number) in sums.items() if number > 0}

    return score


def _validation(
    config: Config, pieces: Pieces, source: Source, training: Training, cost_only: bool
) -> Callable[[], float]:
    """Return what measures the loss on the validation part, for a criterion that looks at it."""
    if not len(source.validation) or cost_only:
        why = "--cost-only computes none" if cost_only else f"data {source.name!r} has no such part"
        raise ConfigError(
            f"the criterion looks at validation_loss, and {why}; use loss = "
            '"loss", the training loss, perhaps with smoothing = "ema"'
        )
    score = _scorer(config, pieces, source.validation, training)
    return lambda: score()["loss"]


def _write_arrivals(path: Path, result: Result) -> None:
    with (path / "arrivals.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(to_row(event)) + "\n" for event in result.arrivals)


def _write_final(path: Path, module: nn.Module) -> None:
    (path / "final").mkdir()
    state = {name: value.detach().clone() for name, value in module.state_dict().items()}
    save_file(state, path / "final" / "server-0.safetensors")


def _summary(
    config: Config, dataset: str, result: Result, recorder: Recorder, final: dict[str, float]
) -> dict[str, Any]:
    staleness = cast("dict[int, int]", dict(sorted(result.staleness.items())))
    return {
        "status": "ok",
        "time": "virtual",
        "protocol": config.protocol_name,
        "dataset": dataset,
        "model": config.model.name or config.model.factory,
        "layout": config.layout.kind,
        "seed": config.run.seed,
        "world_size": config.layout.world_size,
        "workers": config.layout.workers,
        "steps": recorder.steps,
        "local_steps": result.steps,
        "updates": result.version,
        "samples": result.samples,
        "final_loss": final.get("loss"),
        "final_accuracy": final.get("accuracy"),
        "final_metrics": final,
        "train_loss": recorder.train_loss,
        "bytes_sent": sum(result.bytes_sent.values()),
        "messages_sent": sum(result.messages_sent.values()),
        "virtual_s": round(result.virtual_s, 9),
        "wall_s": None,
        "compute_s": round(sum(result.compute_s.values()), 6),
        "wait_s": round(sum(result.wait_s.values()), 6),
        "staleness_p50": result.median_staleness(),
        "staleness_max": max(staleness, default=0),
        "staleness": {str(each): count for each, count in staleness.items()},
        "pushes_folded": result.num_folded,
        "pushes_dropped": dict(result.dropped),
        "pushes_lost": result.lost,
    }
