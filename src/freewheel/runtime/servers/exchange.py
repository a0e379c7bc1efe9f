"""A worker's side of the parameter server: what its protocol's machine asks for, on the wire.

A push and the pull that goes with it are one message to each server, and the reply carries the
parameters and the grant::

    worker -> server   push    (part of the vector, moved buffers)     pulls: index = 1
                       pull    ()
                       report  (what is measured), to server 0 alone
                       leave   (moved buffers)                         wants the end: index = 1
    server -> worker   params  (part of the parameters, mean buffers)
                       grant   nothing: the worker only pushed or reported, or has, or predicts,
                               these parameters
                       farewell (part of the parameters, where asked)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.aggregation.tensors import num_non_finite
from freewheel.errors import LinkTimeoutError, ModelError
from freewheel.monitors.model_variance import VarianceReporter
from freewheel.protocols.base import Action, Deadline, Machine, SetDeadline, StepDone
from freewheel.protocols.replicas import (
    Ended,
    Evidence,
    Granted,
    Kind,
    SendPull,
    SendPush,
    SendReport,
    Start,
)
from freewheel.protocols.watch import Predicted, Variance, Watch
from freewheel.runtime.mail import LONG_WAIT_S, Mail
from freewheel.runtime.memory import keep_freed_memory
from freewheel.runtime.servers.coding import Coding
from freewheel.runtime.servers.packing import Packing
from freewheel.runtime.servers.predicted import PredictedParts
from freewheel.runtime.servers.since import Since
from freewheel.transport.base import Message

PULLS = 1


@dataclass(slots=True)
class Exchanged:
    """What became of a step.

    Args:
        versions: of the parameters that the worker has now, by server.
        staleness: of its push when it was folded; None where it was not, or there was none.
        pushed: whether there was a push.
    """

    versions: list[int]
    staleness: int | None = None
    pushed: bool = False


class Exchange:
    """Pushes and pulls for one worker, as its machine says.

    Args:
        mail: to the servers, ``"server 0"`` and on.
        rank: of this worker.
        module: whose parameters and buffers travel.
        packing: of its trainable parameters.
        machine: the protocol's local one.
        kind: what pushes are.
        codings: makes the codecs of pushes to, and pulls from, a server.
        watch: what the protocol needs measured.
    """

    def __init__(
        self,
        mail: Mail,
        rank: int,
        module: nn.Module,
        packing: Packing,
        machine: Machine,
        kind: Kind,
        codings: Callable[[int], tuple[Coding, Coding]],
        watch: Watch | None = None,
    ) -> None:
        self.mail, self.rank, self.module = mail, rank, module
        self.packing, self.machine, self.kind = packing, machine, kind
        self.servers = [f"server {index}" for index in range(len(packing.parts))]
        self.versions = [0] * len(self.servers)
        self._codings = [codings(server) for server in range(len(self.servers))]
        self.rate: float | None = None
        self.options: list[dict[str, Any]] = []
        self._sent_options: list[dict[str, Any]] = []
        self._buffers = list(module.buffers())
        self._sent_buffers = [buffer.clone() for buffer in self._buffers]
        self._since = Since(list(self.versions))
        self._predicted = PredictedParts(watch, packing) if isinstance(watch, Predicted) else None
        self._reporter: VarianceReporter | None = None
        self._watch = watch
        changes = kind == "delta" and self._predicted is None
        self._pulled = packing.pack_parameters() if changes else []
        # who has been asked, and has not replied
        self._asked = self.servers
        self.stopped = False
        self.waited_for: dict[str, float] = {}
        self._outstanding = False
        self._mix = 1.0
        self._staleness: int | None = None
        self._replies: dict[str, Message] = {}
        self._wakes_at_s: dict[str, float] = {}

    def begin(self, send_initial: bool = False) -> None:
        """Wait until the first step may start.

        Args:
            send_initial: this worker's parameters and buffers are the initial ones of all.
        """
        keep_freed_memory()
        if send_initial:
            for place, vector in enumerate(self.packing.pack_parameters()):
                buffers = self._sent_buffers if place == 0 else []
                self.mail.send(self.servers[place], Message("initial", (vector, *buffers)))
        self._outstanding = True
        self._go_on(())
        if isinstance(self._watch, Variance):
            self._reporter = VarianceReporter(self._watch.rows, self._watch.columns)
            self._reporter.synchronised(self._pulled)

    def add_gradient(self, num_samples: int) -> float:
        """Take the gradient of a step in; return how many of its values are NaN or infinite."""
        gradients = [parameter.grad for parameter in self.packing.parameters]
        vectors = self.packing.pack(gradients)
        absent = frozenset(index for index, g in enumerate(gradients) if g is None)
        self._since.add_gradient(vectors, absent, num_samples)
        return float(num_non_finite(vectors))

    def num_bad_gradients(self) -> float:
        """Return how many values of the gradient are NaN or infinite."""
        gradients = (parameter.grad for parameter in self.packing.parameters)
        return float(num_non_finite([g for g in gradients if g is not None]))

    def step_done(
        self, clock: int, num_samples: int, evidence: Evidence, seconds: float
    ) -> Exchanged:
        """Tell the machine that a step ended; return when the next one may start.

        Args:
            clock: steps finished now.
            num_samples: of this step.
            evidence: means over these samples; ``non_finite`` is a count.
            seconds: that the step took.
        """
        self._since.add_step(num_samples, evidence, seconds)
        self._staleness = None
        self._take_what_came()
        if self._predicted is not None:
            evidence = {**evidence, **self._predicted.measure(clock)}
        actions = self.machine.on(StepDone(clock, evidence, seconds))
        pushed = self._go_on(actions, clock)
        return Exchanged(list(self.versions), self._staleness, pushed)

    def end(self, clock: int, keep_final: bool = False) -> None:
        """Push what is left, leave, and wait until the last worker has left, too.

        Args:
            clock: steps finished.
            keep_final: take over the parameters of the end.
        """
        kind = None
        for action in self.machine.on(Ended(clock)):
            if isinstance(action, SendPush):
                kind = action.kind
        if kind is not None:
            self._request(kind, None, clock)
        moved = tuple(self._moved_buffers())
        for place, server in enumerate(self.servers):
            # A message without tensors would overtake the push.
            tensors = (torch.empty(0), *moved) if place == 0 else (torch.empty(0),)
            self.mail.send(server, Message("leave", tensors, clock=clock, index=int(keep_final)))
        for place, server in enumerate(self.servers):
            message = self._await("farewell", server, float("inf"), None)
            if keep_final and message is not None:
                self._load(place, message, 1.0)

    def restore_buffers(self) -> None:
        """Undo what a step that was not finite did to the module's buffers."""
        for buffer, before in zip(self._buffers, self._sent_buffers, strict=True):
            buffer.copy_(before)

    def _go_on(self, actions: Sequence[Action], clock: int = 0) -> bool:
        """Carry actions out, wait for grants, until a step may start; return whether it pushed."""
        pushed = False
        while True:
            kind, mix, start = self._sort(actions)
            if kind is not None or mix is not None:
                self._request(kind, mix, clock)
                pushed |= kind is not None
            elif any(isinstance(action, SendReport) for action in actions):
                self._report(clock)
            if start:
                if not self._since.steps:
                    self._since.based_on = list(self.versions)
                return pushed
            if not self._outstanding and not self._wakes_at_s:
                raise RuntimeError("the protocol's machine neither starts a step nor asks")
            actions = self._wait_for_grant()

    def _sort(self, actions: Sequence[Action]) -> tuple[Kind | None, float | None, bool]:
        kind, mix, start = None, None, False
        for action in actions:
            if isinstance(action, SendPush):
                kind = action.kind
            elif isinstance(action, SendPull):
                mix = action.mix
            elif isinstance(action, Start):
                start = True
            elif isinstance(action, SetDeadline):
                self._wakes_at_s[action.name] = time.monotonic() + action.after_s
            elif not isinstance(action, SendReport):
                raise RuntimeError(f"a worker cannot do {action}")
        return kind, mix, start

    def _report(self, clock: int) -> None:
        """Tell server 0 what is measured of the parameters now."""
        if self._reporter is None:
            raise RuntimeError("the protocol's machine reports, and names nothing to measure")
        self._outstanding, self._asked = True, self.servers[:1]
        report = self._reporter.report(self.packing.pack_parameters())
        samples = self._since.samples
        self.mail.send(
            self.servers[0], Message("report", (report,), clock=clock, num_samples=samples)
        )

    def _request(self, kind: Kind | None, mix: float | None, clock: int) -> None:
        self._outstanding, self._asked = True, self.servers
        changes = None if self._predicted is None else self._predicted.ask()
        self._mix = 1.0 if mix is None else mix
        index = PULLS if mix is not None else 0
        if kind is None:
            for server in self.servers:
                self.mail.send(server, Message("pull", (torch.empty(0),), clock=clock, index=index))
            return
        since, self._since = self._since, Since(list(self.versions))
        vectors = self._payload(kind, since, changes)
        extra = self._facts(since)
        moved = tuple(self._moved_buffers()) if since.is_finite else ()
        for place in reversed(range(len(self.servers))):
            push = self._codings[place][0]
            if self._predicted is None:
                tensors, said = push.encode(vectors[place])
            else:
                tensors, said, arrives = push.round_trip(vectors[place])
                self._predicted.ends[place].sent = arrives if arrives.numel() else None
            meta = {**extra, **said, "on": since.based_on[place]}
            tensors = (*tensors, *(moved if place == 0 else ()))
            message = Message("push", tensors, kind, clock, index, since.samples, meta)
            self.mail.send(self.servers[place], message)

    def _payload(
        self, kind: Kind, since: Since, changes: list[Tensor] | None = None
    ) -> list[Tensor]:
        if not since.samples or not since.is_finite or kind == "predicted":
            return [torch.empty(0, dtype=self.packing.parameters[0].dtype)] * len(self.servers)
        if kind == "gradient":
            return since.mean_gradient()
        if changes is not None:
            return changes
        own = self.packing.pack_parameters()
        return own if kind == "parameters" else list(torch._foreach_sub(own, self._pulled))

    def _facts(self, since: Since) -> dict[str, Any]:
        facts = since.facts()
        if self.options != self._sent_options:
            facts["options"] = self._sent_options = self.options
        return facts

    def _moved_buffers(self) -> list[Tensor]:
        """Return all buffers where one has changed since they were last sent, else none."""
        same = all(map(torch.equal, self._buffers, self._sent_buffers))
        if same:
            return []
        self._sent_buffers = [buffer.detach().clone() for buffer in self._buffers]
        return self._sent_buffers

    def _take_what_came(self) -> None:
        """Adopt replies that came while a step was computed."""
        while self._outstanding and len(self._replies) < len(self._asked):
            try:
                message = self.mail.link.receive(kind="params", timeout_s=0.0)
            except LinkTimeoutError:
                return
            self._replies[message.sender] = message
        if self._outstanding:
            self.machine.on(self._adopt())

    def _wait_for_grant(self) -> Sequence[Action]:
        """Wait for all servers' replies, or for a deadline of the machine."""
        began_s = time.monotonic()
        for server in self._asked:
            while self._outstanding and server not in self._replies:
                due_s = min(self._wakes_at_s.values(), default=float("inf"))
                found = self._await(None, server, due_s, began_s)
                if found is None:
                    return self._wake()
                self._replies[server] = found
        if not self._outstanding:
            time.sleep(max(0.0, min(self._wakes_at_s.values()) - time.monotonic()))
            return self._wake()
        return self.machine.on(self._adopt())

    def _wake(self) -> list[Action]:
        now_s = time.monotonic()
        actions: list[Action] = []
        for name in [name for name, at_s in self._wakes_at_s.items() if at_s <= now_s]:
            del self._wakes_at_s[name]
            actions += self.machine.on(Deadline(name))
        return actions

    def _adopt(self) -> Granted:
        replies = [self._replies[server] for server in self._asked]
        for push, _ in self._codings:
            push.settle()
        self._replies = {}
        self._outstanding = False
        for place, reply in enumerate(replies):
            self.versions[place] = reply.meta["v"]
            if self._predicted is not None:
                self._take_buffers(self._predicted.answered(place, reply, self._codings[place][1]))
            elif reply.kind == "params":
                self._load(place, reply, self._mix)
        self._staleness = replies[0].meta.get("s")
        self.stopped |= any(reply.meta.get("end", False) for reply in replies)
        self.rate = replies[0].meta.get("lr", self.rate)
        if self._pulled and any(reply.kind == "params" for reply in replies):
            self._pulled = self.packing.pack_parameters()
            if self._reporter is not None:
                self._reporter.synchronised(self._pulled)
        return Granted(min(reply.clock for reply in replies), min(self.versions))

    def _load(self, place: int, message: Message, mix: float) -> None:
        pull = self._codings[place][1]
        size, dtype = self.packing.sizes[place], self.packing.parameters[0].dtype
        vector, buffers = pull.decode(message.tensors, message.meta, size, dtype)
        if vector.numel():
            self.packing.unpack(place, vector, mix)
        self._take_buffers(buffers)

    def _take_buffers(self, buffers: Sequence[Tensor]) -> None:
        for own, sent, value in zip(self._buffers, self._sent_buffers, buffers, strict=False):
            own.copy_(value)
            sent.copy_(value)

    def _await(
        self, kind: str | None, server: str, until_s: float, began_s: float | None
    ) -> Message | None:
        """Wait for a server's reply, None once ``until_s`` has passed.

        Whom the server waited for is noted once it is known; ``began_s`` None waits without end.
        """
        start = time.perf_counter()
        message = None
        while message is None:
            now_s = time.monotonic()
            if now_s >= until_s:
                break
            waited = 0.0 if began_s is None else now_s - began_s
            if waited > self.mail.timeout_s:
                raise LinkTimeoutError(
                    f"worker {self.rank} waited {waited:.0f} s for a reply from {server}; "
                    f"run.step_timeout_s allows {self.mail.timeout_s:g}. See that process's log, "
                    "or raise the limit if a step may take longer."
                )
            try:
                message = self.mail.link.receive(
                    kind=kind, sender=server, timeout_s=min(LONG_WAIT_S, until_s - now_s)
                )
            except LinkTimeoutError:
                continue
        if message is not None and message.kind == "refused":
            raise ModelError(
                f"{server} refused the push of worker {self.rank} at step {message.clock}: "
                f"{message.meta['why']}"
            )
        cause = self.rank if message is None else message.meta.get("for", self.rank)
        whom = server if cause == self.rank else f"worker {cause}"
        seconds = time.perf_counter() - start
        self.mail.watch.add_wait(whom, seconds)
        self.waited_for[whom] = self.waited_for.get(whom, 0.0) + seconds
        return message
