"""What a run that goes from all-reduce to servers must be like, found out before it starts."""

from __future__ import annotations

import torch
from torch import nn

from freewheel.config import Config
from freewheel.errors import ConfigError
from freewheel.protocols import Protocol
from freewheel.protocols.strategy_switch import StrategySwitch
from freewheel.runtime.pieces import Pieces


def with_servers(config: Config, protocol: Protocol) -> Config:
    """Return the configuration with the processes that a switch needs: servers beside replicas.

    ``[layout] kind = "replicas"`` is what a switching run begins with; its servers are threads of
    the first workers' processes.

    Raises:
        ConfigError: the run begins with something else, or asks for what it does not have.
    """
    if not isinstance(protocol, StrategySwitch):
        return config
    layout = config.layout
    if protocol.layout != "replicas":
        raise ConfigError(
            f"protocol.first = {protocol.side(0).name!r}: between real processes a switch begins "
            'with all_reduce; set first = "all_reduce", or try this order with freewheel simulate'
        )
    if layout.consistency == "per_server":
        raise ConfigError(
            'layout.consistency = "per_server" leaves no one place that could decide when to '
            'switch; use "global"'
        )
    if layout.server_momentum != "keep":
        raise ConfigError(
            f"layout.server_momentum = {layout.server_momentum!r}: in a run that switches, "
            "protocol.at_switch says what becomes of momentum; use fold_momentum or lower_momentum "
            "there"
        )
    if layout.kind != "replicas":
        return config  # it goes on from a checkpoint, and is resolved already
    changed = layout.model_copy(update={"kind": "server", "placement": "colocated"})
    return config.model_copy(update={"layout": changed})


def check_switch(protocol: Protocol, pieces: Pieces, num_validation: int) -> None:
    """Refuse a switch whose evidence or changes are not to be had.

    Raises:
        ConfigError: the criterion looks at a validation part that is not there, or the changes need
            momentum.
    """
    if not isinstance(protocol, StrategySwitch):
        return
    if "validation_loss" in protocol.needs and not num_validation:
        raise ConfigError(
            "the criterion looks at validation_loss, and the data has no validation part; use "
            'loss = "loss", the training loss, perhaps with smoothing = "ema"'
        )
    protocol.changes().check(pieces.optimizer([nn.Parameter(torch.zeros(2, 2))]))
