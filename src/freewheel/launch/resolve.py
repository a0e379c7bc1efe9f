"""Finds out, before any process starts, whether a run can work at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from freewheel.codecs import make_codec
from freewheel.config import Config
from freewheel.errors import ConfigError, nearest
from freewheel.launch.preflight import check_counts, check_device, check_fit, check_updates
from freewheel.launch.switching import check_switch, with_servers
from freewheel.protocols import Protocol
from freewheel.protocols.registry import protocols
from freewheel.protocols.strategy_switch import StrategySwitch
from freewheel.runtime.checkpoints.checkpoint import Checkpoint
from freewheel.runtime.context import make_protocol
from freewheel.runtime.length import length_of
from freewheel.runtime.links import is_shaped
from freewheel.runtime.pieces import Given, Pieces


def resolve(
    config: Config, given: Given, path: Sequence[str], checkpoint: Checkpoint | None = None
) -> tuple[Config, str, int]:
    """Check a configuration against the data and the model that it names.

    Args:
        config: as the person wrote it.
        given: objects in place of names in it.
        path: folders with the user's modules.
        checkpoint: where the run goes on from; None for a new one.

    Returns:
        The configuration with the cuts and the model's shapes that it stands for, the data set that
        is really read, and the length of the run in steps.

    Raises:
        FreewheelError: what cannot work.
    """
    protocol = _check_protocol(config)
    collective = config.layout.kind == "replicas" or isinstance(protocol, StrategySwitch)
    if collective and is_shaped(config):
        raise ConfigError(
            "link.rate_mbit, delay_ms and jitter_ms shape the links of stages and servers; an "
            "all-reduce of replicas goes over torch.distributed, which they cannot reach; leave "
            "them out, or use a network that is really slow"
        )
    if config.stream.name is not None:
        raise ConfigError("[stream] is not there yet; train on a data set, see [data]")
    if config.data.shards is not None and config.layout.kind == "pipeline":
        raise ConfigError(
            "data.shards divides samples among workers, and a pipeline takes them all; leave it "
            'out, or set layout.kind = "replicas" or "server"'
        )
    config = with_servers(config, protocol)
    check_device(config.run.device)
    pieces = Pieces(config, given, path)
    pieces.loss(), pieces.metrics()
    check_updates(pieces)
    for codec in (
        config.codec.forward,
        config.codec.backward,
        config.codec.push,
        config.codec.pull,
    ):
        make_codec(codec)
    source = pieces.source()
    check_counts(config, source)
    check_switch(protocol, pieces, len(source.validation))
    partition = pieces.partition(source)
    check_fit(pieces, source, partition)
    cuts = {"cuts": partition.cuts} if config.layout.kind == "pipeline" else {}
    layout = config.layout.model_copy(update=cuts)
    model = config.model.model_copy(update=pieces.shapes(source))
    resolved = config.model_copy(update={"layout": layout, "model": model})
    return resolved, source.name, length_of(resolved, len(source.train), checkpoint)


def _check_protocol(config: Config) -> Protocol:
    made = make_protocol(config)
    kinds = ("replicas", "server") if isinstance(made, StrategySwitch) else (made.layout,)
    if config.layout.kind in kinds:
        return made
    known: dict[str, Any] = {name: protocols.get(name) for name in protocols.names()}
    fitting = [name for name, entry in known.items() if entry.layout == config.layout.kind]
    raise ConfigError(
        f"protocol {made.name!r} is for layout.kind = {made.layout!r}, and this run has "
        f"{config.layout.kind!r}{nearest(made.name, fitting)}"
    )
