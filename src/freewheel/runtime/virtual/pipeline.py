"""One run of a pipeline in virtual time, from its configuration to its run folder and summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from freewheel.config import Config
from freewheel.errors import CheckpointError, ConfigError, FreewheelError
from freewheel.observe.run_folder import RunFolder
from freewheel.observe.summary import make_summary
from freewheel.runtime.checkpoints.final import save_final
from freewheel.runtime.context import Context
from freewheel.runtime.job import Job
from freewheel.runtime.mail import Mail
from freewheel.runtime.pieces import Pieces
from freewheel.runtime.stages.pipeline import PipelineRole
from freewheel.runtime.virtual.costs import Meter, shares
from freewheel.runtime.virtual.listener import Listener
from freewheel.runtime.virtual.network import VirtualNetwork
from freewheel.simulate.link import LinkSpec
from freewheel.simulate.run import Virtual
from freewheel.streams.base import Source
from freewheel.transport.base import COORDINATOR

#: Samples of the batch whose arithmetic is counted.
_EXAMPLE = 2


def simulate_pipeline(
    config: Config,
    pieces: Pieces,
    virtual: Virtual | None = None,
    say: Callable[[str], None] = lambda _: None,
    threads: int = 1,
) -> tuple[Path, dict[str, Any]]:
    """Run a pipeline in one process and in virtual time, and write its run folder.

    The stages are those of ``freewheel train``, with the same protocol machines and codecs, and
    every message goes through the bytes of a link: parameters, losses, decisions and bytes are
    those of a real run with as many threads a process. Only time is made: a stage's
    forwards and backwards take their share of ``virtual.compute``, by arithmetic, and messages
    take what ``virtual.link`` gives them.

    Args:
        config: what to do; its layout is ``"pipeline"``.
        pieces: data, model, loss, optimizer.
        virtual: ``compute.step_s`` is one full batch through the whole model, on one machine.
        say: is called with lines for a person.
        threads: that PyTorch computes with.

    Returns:
        The run folder and the summary. ``virtual_s`` is the time that the run would have taken;
        ``wall_s`` is null, because no clock measured it.

    Raises:
        ConfigError: the configuration asks for what the simulator does not have.
        FreewheelError: what a stage raised; the run folder says how far it came.

    Example:
        >>> import tempfile
        >>> from freewheel.config import parse_config
        >>> from freewheel.runtime.pieces import Pieces
        >>> from freewheel.runtime.virtual.pipeline import simulate_pipeline
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     config = parse_config({
        ...         "run": {"dir": folder},
        ...         "data": {"name": "synthetic", "batch_size": 8},
        ...         "model": {"name": "mlp", "hidden": [8]},
        ...         "train": {"steps": 2},
        ...     })
        ...     _, summary = simulate_pipeline(config, Pieces(config))
        >>> summary["time"], summary["steps"], summary["virtual_s"] > 0
        ('virtual', 2, True)
    """
    virtual = virtual or Virtual()
    _check(config, virtual)
    start = time.monotonic()
    shared = _Shared(config, pieces.given, pieces.path)
    names = [f"stage {rank}" for rank in range(config.layout.stages)]
    folder = RunFolder.create(config)
    summary: dict[str, Any] = {"status": "failed", "time": "virtual"}
    try:
        with _threads(threads):
            listener = Listener(folder, config, names, say)
            source = shared.source()
            say(
                f"{folder.path}: {config.protocol_name}, {len(names)} stages in virtual time, "
                f"{source.name}"
            )
            done = _train(config, shared, virtual, folder.path, names, listener)
        if listener.saves.error is not None:
            raise CheckpointError(
                f"the run came to its end, but its last checkpoint is not there: "
                f"{listener.saves.error}"
            )
        made = make_summary(
            config,
            source.name,
            done,
            listener.evaluations,
            listener.train_loss,
            max(int(totals["step"]) for totals in done.values()),
            time.monotonic() - start,
            threads,
        )
        virtual_s = round(max(float(totals["wall_s"]) for totals in done.values()), 9)
        summary = {**made, "time": "virtual", "virtual_s": virtual_s, "wall_s": None}
    except BaseException as error:
        summary["error"] = str(error) if isinstance(error, FreewheelError) else repr(error)
        raise
    finally:
        folder.summary(summary)
        folder.close()
    return folder.path, summary


class _Shared(Pieces):
    """Pieces of all stages, whose data is read once."""

    def source(self) -> Source:
        """Return the data, and leave the generator of random numbers as the first call did."""
        known: tuple[Source, Tensor] | None = self.__dict__.get("known")
        if known is None:
            known = super().source(), torch.get_rng_state()
            self.__dict__["known"] = known
        torch.set_rng_state(known[1])
        return known[0]


def _train(
    config: Config,
    pieces: Pieces,
    virtual: Virtual,
    folder: Path,
    names: list[str],
    listener: Listener,
) -> dict[str, Mapping[str, Any]]:
    """Build the stages, train them to the end, and return the totals of each."""
    link = virtual.link or LinkSpec(config.link.rate_mbit, config.link.delay_ms)
    network = VirtualNetwork(link, listener.hear)
    roles, random = {}, {}
    for rank, name in enumerate(names):
        job = Job("stage", rank, "00" * 8, str(folder), COORDINATOR)
        end = network.open(name)
        mail = Mail(end, end.clock, config.run.step_timeout_s, config.run.join_timeout_s)
        with torch.random.fork_rng(devices=[]):
            # as in a process of its own
            torch.set_rng_state(torch.Generator().get_state())
            roles[name] = PipelineRole(Context(job, config, pieces, mail))
            random[name] = torch.get_rng_state()
    done: dict[str, Mapping[str, Any]] = {}

    def work(name: str) -> None:
        done[name] = roles[name].run()
        save_final(folder, name, roles[name].module)

    with _charged(config, pieces, virtual, list(roles.values()), network):
        network.turns.run({name: partial(work, name) for name in names}, random)
    return {name: done[name] for name in names}


@contextmanager
def _charged(
    config: Config,
    pieces: Pieces,
    virtual: Virtual,
    roles: list[PipelineRole],
    network: VirtualNetwork,
) -> Iterator[None]:
    """Let the stages' forwards and backwards take virtual time inside the block."""
    modules = [role.module for role in roles]
    train = pieces.source().train
    example = train.inputs(torch.arange(min(_EXAMPLE, len(train))))
    durations = virtual.compute.of(len(roles))
    batch_size = config.data.batch_size * config.train.accumulate
    handles = []
    for role, share in zip(roles, shares(modules, example), strict=True):
        clock = network.links[role.mail.link.name].clock
        meter = Meter(clock, share, partial(durations.next_s, role.rank), batch_size)
        handles.append(meter.attach(role.module))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Compute with so many threads: their number can change the last bits of a sum."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check(config: Config, virtual: Virtual) -> None:
    """Refuse what is not simulated, rather than leave it out in silence."""
    if config.layout.kind != "pipeline":
        raise ConfigError(
            f"layout.kind = {config.layout.kind!r} has workers and no stages; use "
            f"freewheel.simulate.run.simulate for it"
        )
    plain = {
        "run.device": (config.run.device, "cpu"),
        "link.jitter_ms": (config.link.jitter_ms, 0.0),
    }
    for key, (value, only) in plain.items():
        if value != only:
            raise ConfigError(f"{key} = {value!r} is not simulated; set it to {only!r}")
    workers_only = {
        "deaths and joins": bool(virtual.faults),
        "the work of a server": virtual.server_s > 0,
        "a run without gradients": virtual.cost_only,
        "a budget of each worker": not virtual.shared,
    }
    asked = [what for what, given in workers_only.items() if given]
    if asked:
        raise ConfigError(
            f'{" and ".join(asked)}: simulated for workers only, and layout.kind = "pipeline" has '
            f"stages; leave the option out"
        )
