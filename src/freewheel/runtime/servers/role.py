"""The role of a server in a run that a configuration describes."""

from __future__ import annotations

import copy

from freewheel.runtime.context import Context
from freewheel.runtime.length import length_of
from freewheel.runtime.servers.packing import Packing
from freewheel.runtime.servers.part_optimizer import split_for, trained_by
from freewheel.runtime.servers.reader import Reader
from freewheel.runtime.servers.scores import Scores
from freewheel.runtime.servers.server import Server


class ServerRole(Server):
    """Serves the model that the configuration names; server 0 scores it.

    Args:
        context: this process's job, configuration, pieces and mail.
    """

    def __init__(self, context: Context) -> None:
        config, pieces = context.config, context.pieces
        layout, source = config.layout, pieces.source()
        module = pieces.partition(source).build(0).to(config.run.device)
        if layout.placement == "colocated":
            # the worker in this process may have been given the very same object
            module = copy.deepcopy(module)
        trainable = [p for p in module.parameters() if p.requires_grad]
        optimizer = pieces.optimizer(trainable)
        protocol = context.protocol()
        steps = length_of(config, len(source.train))
        scores = None
        if context.job.rank == 0:
            own = optimizer if protocol.pushes == "gradient" else None
            parameters = trained_by(optimizer)
            packing = Packing(parameters, split_for(own, parameters, layout.servers)[0])
            reader = Reader(module, packing, source, context)
            scores = Scores(reader, context.mail, layout.servers, config.eval.every, steps)
        super().__init__(
            context.job,
            config,
            context.mail,
            protocol,
            module,
            optimizer,
            lambda made: pieces.schedule(made, steps),
            scores,
        )
