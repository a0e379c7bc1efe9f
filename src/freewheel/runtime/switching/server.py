"""The role of a server that waits until all-reduce hands over to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from freewheel.config import CheckpointSection
from freewheel.errors import LinkTimeoutError, WorkerError
from freewheel.protocols.base import Action
from freewheel.protocols.changed import Changed
from freewheel.protocols.replicas import Grant, SwitchTopology
from freewheel.protocols.strategy_switch import StrategySwitch
from freewheel.protocols.switching import Switching
from freewheel.runtime.context import Context
from freewheel.runtime.servers.role import ServerRole
from freewheel.runtime.servers.sequencer import Order, Sequencer
from freewheel.runtime.switching.hand_over import (
    check_ready,
    fingerprint,
    load_state,
    order_of,
    return_message,
)
from freewheel.transport.base import Message

#: How long one look for messages lasts; a server that waits for its turn has no deadline.
_LOOK_S = 1.0


class HandedOver(Sequencer):
    """A sequencer whose members are in the midst of a run, and wait for leave to go on.

    Args:
        before: the sequencer of a run that has not begun.
        clock: steps that each member has finished.
        members: their ranks.
        grants: what the protocol's machine granted when it went over: rank and clock.
    """

    def __init__(
        self, before: Sequencer, clock: int, members: Sequence[int], grants: Sequence[Grant]
    ) -> None:
        super().__init__(before.central, len(before.workers), before.record)
        self.workers = before.workers
        self._members, self._grants, self._clock = list(members), list(grants), clock
        #: Whether the protocol has gone back to all-reduce, which makes grants of its own.
        self.back = False
        #: Whether it may: there are samples left.
        self.may_go_back = True

    def welcome(self, now_s: float, all_pull: bool = False) -> list[Order]:
        """Let the members go on, as the protocol's machine has said; all need the parameters."""
        self._now_s = now_s
        for rank in self._members:
            notes = self.workers[rank]
            self.members.add(rank)
            notes.pushed_at_s = now_s
            self._asked(notes, self._clock, True)
        return [order for grant in self._grants for order in self._order(grant, grant.rank)]

    def _order(self, action: Action, cause: int) -> list[Order]:
        if isinstance(action, SwitchTopology):
            if action.to != "replicas" or not self.may_go_back:
                return []
            self.back = True
            held = tuple((rank, self.workers[rank].clock) for rank in sorted(self.members))
            return [Order("return", held, version=self.version)]
        return [] if self.back and isinstance(action, Grant) else super()._order(action, cause)


class SwitchingServerRole(ServerRole):
    """Waits for the hand-over, makes sure that all hold the same, then serves.

    Args:
        context: this process's job, configuration, pieces and mail.
    """

    def __init__(self, context: Context) -> None:
        # checkpoints are the workers' business, while all-reduce is on
        config = context.config.model_copy(update={"checkpoint": CheckpointSection()})
        super().__init__(replace(context, config=config))
        protocol = context.protocol()
        if not isinstance(protocol, StrategySwitch):
            raise TypeError(f"{protocol.name} does not switch")
        self._changes = protocol.changes()
        self._name, self._num_workers = context.job.name, config.layout.workers
        self._total_steps = self.scores.total_steps if self.scores is not None else 0
        #: Steps that may still be granted; known once all-reduce is over, on server 0.
        self._left = 0
        self._changed: Changed | None = None
        self._returned = False
        #: Whether the run's final parameters are here.
        self.saves_final = False

    def run(self) -> dict[str, Any]:
        """Wait, serve; return this process's totals."""
        totals: dict[str, Any] = {**self.recorder.final(), "step": 0}
        while (state := self._wait()) is not None:
            self._take_over(state)
            totals = super().run()
            if self._returned:
                continue
            self.saves_final = self.rank == 0
            central = self.sequencer.central
            if self.rank == 0 and isinstance(central, Switching):
                totals["switch"] = central.facts()
            return totals
        if self.scores is not None:
            self.scores.close()
        return totals

    def _wait(self) -> Message | None:
        """Return the state that was handed over, once all members hold it; None: not needed."""
        state: Message | None = None
        ready: dict[str, Message] = {}
        # server 0 tells the workers to begin, and so waits for the others
        others, held, checked = set(self.others if self.rank == 0 else ()), set[str](), False
        while not (checked and others <= held):
            try:
                message = self.mail.link.receive(timeout_s=_LOOK_S)
            except LinkTimeoutError:
                continue
            if message.kind == "dismiss":
                return None
            if message.kind == "state":
                state = message
            elif message.kind == "ready":
                ready[message.sender] = message
            elif message.kind == "held":
                held.add(message.sender)
            elif message.kind == "part":
                self._hear(message)  # of a score that was asked for before all-reduce came back
            # members are waited for by name: a count would not see who is missing
            if state is not None and not checked and _members(state) <= ready.keys():
                self._check(state, ready)
                checked = True
        if self.rank != 0 and state is not None:
            self.mail.send("server 0", Message("held", clock=state.clock))
        return state

    def _check(self, state: Message, ready: dict[str, Message]) -> None:
        part = self.hands.part
        load_state(self._name, part, self.hands.schedule, state)
        order = order_of(self.module, self.parameters, part.part)
        found = fingerprint(state.tensors[0])
        for worker, message in sorted(ready.items()):
            check_ready(self._name, order, found, worker, message.meta)
            if self.rank == 0:
                self.hands.take_buffers(int(worker.split()[1]), message)

    def _take_over(self, state: Message) -> None:
        """Go on where the replicas stopped, with the changes that the switch asks for."""
        self._returned = False
        meta, clock = state.meta, state.clock
        central, members = self.sequencer.central, list(meta["members"])
        central.load_state_dict(meta["machine"])
        grants = [Grant(rank, at) for rank, at in meta["grants"]]
        self.sequencer = HandedOver(self.sequencer, clock, members, grants)
        self.sequencer.version = int(meta["version"])
        self.hands.go_on_from(clock, int(meta["version"]), self._changes.batches)
        optimizer = self.hands.part.optimizer
        if optimizer is not None:
            self._changed = Changed(
                optimizer, self.hands.schedule, self._changes, self._num_workers
            )
        if self.scores is not None:
            self.scores.is_due(clock)
            self._left = self._num_workers * (self._total_steps - clock)
            to = "server"
            self.mail.tell("event", {"event": "switched", "step": clock, "to": to})

    def _carry_out(self, orders: Sequence[Order]) -> None:
        """Carry orders out; a grant beyond the samples of the run says that this is the end."""
        for order in orders:
            if order.what == "return":
                self._give_back(order)
                continue
            if order.what == "grant" and self.rank == 0:
                self.hands.stopping |= self._left <= 0
                self._left -= self._changes.batches
                if isinstance(self.sequencer, HandedOver):
                    self.sequencer.may_go_back = self._left > 0
            super()._carry_out([order])

    def _give_back(self, order: Order) -> None:
        """Give the part back to all workers, none of which waits for anything else."""
        if self.hands.gone:
            dead = ", ".join(f"worker {rank}" for rank in sorted(self.hands.gone))
            raise WorkerError(
                f"{dead} died under the servers, and all-reduce cannot come back without it; leave "
                "protocol.back out, or go on from the checkpoint of the last hand-over"
            )
        if self._changed is not None:
            self._changed.undo()
            self._changed = None
        step = self.hands.rounds
        buffers = self.hands.mean_buffers() if self.rank == 0 else []
        for rank, _ in order.pushes:
            facts: dict[str, Any] = {"clock": step, "v": order.version}
            if rank == self.rank == 0:
                facts["machine"] = self.sequencer.central.state_dict()
            message = return_message(self.hands.part, self.hands.schedule, buffers, facts)
            self.mail.send(f"worker {rank}", message)
        self._returned = True
        if self.rank == 0:
            self.mail.tell("event", {"event": "switched", "step": step, "to": "replicas"})

    def _finished(self) -> bool:
        return self._returned or super()._finished()

    def _finish(self) -> None:
        if not self._returned:
            super()._finish()


def _members(state: Message) -> set[str]:
    """Return the names of those who take part in the hand-over."""
    return {f"worker {rank}" for rank in state.meta["members"]}
