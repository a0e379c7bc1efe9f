"""Training whose pushes and pulls are coded, predicted, or measured, as on real links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from freewheel.codecs.coding import Coding, codings
from freewheel.codecs.parse import CodecSpec
from freewheel.monitors.dual_prediction import ServerEnd, WorkerEnd
from freewheel.monitors.model_variance import VarianceReporter, read_report
from freewheel.protocols.replicas import Evidence, Kind
from freewheel.protocols.watch import Predicted, Variance, Watch
from freewheel.simulate.training import Training


@dataclass(frozen=True, slots=True)
class _Pushed:
    """A push as it arrives, and what it weighs on the wire."""

    payload: Any
    num_bytes: int
    rank: int = -1
    clock: int = 0


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a worker that is predicted is sent: its weight in the last fold, a state or nothing."""

    weight: float | None
    told: Tensor | None
    correction: bool = False


class ServedTraining(Training):
    """Does to each vector that crosses what workers and a server do with real links.

    What crosses is the parameters alone, without the zeros between them, so that codecs see what
    they see in a real run with one server.

    Args:
        push: the codec of pushes.
        pull: the codec of pulls.
        watch: of the protocol.
        arguments: those of ``Training``.
        settings: likewise.

    Example:
        >>> import itertools, torch
        >>> from freewheel.protocols import protocols
        >>> from freewheel.simulate import Budget, Simulation
        >>> from freewheel.simulate.served_training import ServedTraining
        >>> batch = (torch.ones(4, 20), torch.zeros(4, 1), 4)
        >>> work = ServedTraining(
        ...     torch.nn.Linear(20, 1), lambda rank: itertools.repeat(batch), torch.nn.MSELoss(),
        ...     lambda parameters: torch.optim.SGD(parameters, lr=0.1), None, Budget(1, 1), 4,
        ...     push="cast:bf16")
        >>> Simulation(protocols.create("asp"), work, 1).run().bytes_received[-1]  # 2 headers
        106
    """

    def __init__(
        self,
        *arguments: Any,
        push: CodecSpec = "identity",
        pull: CodecSpec = "identity",
        watch: Watch | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self._specs, self._watch = (push, pull), watch
        codings(push, pull, 0, 0, 0)  # a codec that cannot be made is refused at once
        self._codings: dict[int, tuple[Coding, Coding]] = {}
        self._ends: dict[int, tuple[WorkerEnd, ServerEnd]] = {}
        self._reporters: dict[int, VarianceReporter] = {}
        self._whole = self._initial_vector()

    def _initial_vector(self) -> Tensor:
        return self.server.packed(self.server.flat)

    def measure(self, rank: int) -> Evidence:
        """Return how far a worker is from what is predicted, where anything is."""
        if not isinstance(self._watch, Predicted):
            return {}
        own = self._own[rank]
        assert own.replica is not None  # who pushes changes has a model of its own
        worker, _ = self._pair(rank)
        squares = worker.stepped(own.replica.packed(own.replica.flat), own.steps)
        names = ("error_norm", "move_norm", "state_norm")
        return {name: math.sqrt(square) for name, square in zip(names, squares, strict=True)}

    def report(self, rank: int) -> tuple[Evidence, tuple[float, ...]]:
        """Return what a worker tells of its change since the last synchronisation."""
        own = self._own[rank]
        assert own.replica is not None  # as above
        current = own.replica.packed(own.replica.flat)
        return read_report(self._reporter(rank).report([current]))

    def take_push(self, rank: int, kind: Kind) -> _Pushed:
        """Return what arrives of a push, and its bytes."""
        own = self._worker(rank)
        nothing = kind == "predicted" or not own.samples or bool(own.bad)
        if isinstance(self._watch, Predicted):
            change = self._pair(rank)[0].ask()
            own.samples = own.bad = 0
            if nothing:
                return _Pushed(None, 0, rank, own.steps)
            arrives, num_bytes = self._sent(self._coding(rank)[0], change)
            self._pair(rank)[0].sent = arrives
            return _Pushed(arrives, num_bytes, rank, own.steps)
        payload = super().take_push(rank, kind)
        if nothing:
            return _Pushed(payload, 0)
        coding = self._coding(rank)[0]
        if not coding.coded:
            return _Pushed(payload, self.num_bytes)
        vector = payload if isinstance(payload, Tensor) else payload.gradient
        arrives, num_bytes = self._sent(coding, self.server.packed(vector))
        flat = self.server.unpacked(arrives)
        return _Pushed(
            flat if isinstance(payload, Tensor) else payload.with_gradient(flat), num_bytes
        )

    def push_bytes(self, payload: Any, kind: Kind) -> int:
        """Return the bytes of a push's tensors."""
        num_bytes: int = payload.num_bytes
        return num_bytes

    def fold(self, payloads: Sequence[Any], weights: Sequence[float], kind: Kind) -> None:
        """Update the server with what arrived, and what was predicted."""
        if not isinstance(self._watch, Predicted):
            super().fold([each.payload for each in payloads], weights, kind)
            return
        changes = []
        for each, weight in zip(payloads, weights, strict=True):
            change = self._pair(each.rank)[1].fold(each.clock, each.payload, weight)
            change = torch.zeros_like(self._whole) if change is None else change
            changes.append(self.server.unpacked(change))
        super().fold(changes, weights, "delta")

    def drop(self, payload: Any) -> None:
        """Let the schedule go on."""
        super().drop(payload.payload if isinstance(payload, _Pushed) else payload)

    def answer(self, rank: int, snapshot: Any, pull: bool) -> tuple[Any, int]:
        """Return what a worker is told, coded, unless its prediction holds; and its bytes."""
        push, coding = self._coding(rank)
        push.settle()
        coding.settle()
        if isinstance(self._watch, Predicted):
            return self._answer_predicted(rank, snapshot if pull else None)
        if not pull or not coding.coded:
            return snapshot, self.num_bytes if pull else 0
        arrives, num_bytes = self._sent(coding, self.server.packed(snapshot))
        return self.server.unpacked(arrives), num_bytes

    def _answer_predicted(self, rank: int, snapshot: Tensor | None) -> tuple[_Answer, int]:
        coding, end, clock = self._coding(rank)[1], self._pair(rank)[1], self._worker(rank).steps
        weight = end.take_weight()
        state = None if snapshot is None else self.server.packed(snapshot)
        if state is None or end.holds(clock, state):
            return _Answer(weight, None), 0
        known = end.both.known(clock) if coding.coded else None
        if known is None:
            end.both.told(clock, state)
            return _Answer(weight, state), self.num_bytes
        arrives, num_bytes = self._sent(coding, state - known)
        end.both.told(clock, end.both.corrected(clock, arrives))
        return _Answer(weight, arrives, correction=True), num_bytes

    def adopt(self, rank: int, snapshot: Any, mix: float) -> None:
        """Take in what was told, or what is predicted."""
        if isinstance(snapshot, _Answer):
            own = self._worker(rank)
            assert own.replica is not None  # as above
            state = self._pair(rank)[0].answered(
                snapshot.weight, snapshot.told, snapshot.correction
            )
            if state is not None:
                own.replica.flat.copy_(self.server.unpacked(state))
            return
        super().adopt(rank, snapshot, mix)
        if isinstance(self._watch, Variance):
            self._reporter(rank).synchronised([self.server.packed(self._own[rank].pulled)])

    def leave(self, rank: int) -> None:
        """Forget the worker."""
        super().leave(rank)
        for of_rank in (self._codings, self._ends, self._reporters):
            of_rank.pop(rank, None)

    def _sent(self, coding: Coding, vector: Tensor) -> tuple[Tensor, int]:
        tensors, _, arrives = coding.round_trip(vector)
        return arrives, sum(tensor.nbytes for tensor in tensors)

    def _coding(self, rank: int) -> tuple[Coding, Coding]:
        if rank not in self._codings:
            self._codings[rank] = codings(*self._specs, self._seed, 0, rank)
        return self._codings[rank]

    def _pair(self, rank: int) -> tuple[WorkerEnd, ServerEnd]:
        if rank not in self._ends:
            assert isinstance(self._watch, Predicted)  # who asks has looked
            predictor, tolerance = self._watch.predictor, self._watch.tolerance
            self._ends[rank] = (
                WorkerEnd(predictor, self._whole),
                ServerEnd(predictor, tolerance, self._whole),
            )
        return self._ends[rank]

    def _reporter(self, rank: int) -> VarianceReporter:
        if rank not in self._reporters:
            assert isinstance(self._watch, Variance)  # as above
            reporter = VarianceReporter(self._watch.rows, self._watch.columns)
            self._reporters[rank] = reporter
            if self._own[rank].pulled is self._initial:
                reporter.synchronised([self._whole])
        return self._reporters[rank]
