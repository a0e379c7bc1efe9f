"""Scores the parameters of one version in a thread of its own, while training goes on."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from freewheel.runtime.context import Context, score_batches, scored_part
from freewheel.runtime.recorder import means
from freewheel.runtime.servers.packing import Packing
from freewheel.runtime.stages.lone import lone_stage
from freewheel.runtime.stages.stage import MetricSums, MicroBatch, add_sums
from freewheel.streams.base import Source

#: Snapshots that may wait; beyond that the server waits for the reader.
_MAX_WAITING = 4


class Reader:
    """A read-only client of the servers: it is given copies, and cannot disturb training.

    Args:
        module: its own.
        packing: of that module.
        source: the data whose test part is scored.
        context: for the loss, the metrics and the batch size.
    """

    def __init__(
        self, module: nn.Module, packing: Packing, source: Source, context: Context
    ) -> None:
        config = context.config
        self.module, self._packing = module, packing
        self._split, self._batch_size = scored_part(source), config.eval.batch_size
        self._stage = lone_stage(context, module)
        self._asked: queue.Queue[tuple[dict[str, Any], Sequence[Tensor], Sequence[Tensor]] | None]
        self._asked = queue.Queue(_MAX_WAITING)
        self._scored: queue.SimpleQueue[dict[str, Any] | BaseException] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def score(
        self, row: dict[str, Any], vectors: Sequence[Tensor], buffers: Sequence[Tensor]
    ) -> None:
        """Ask for a score.

        Args:
            row: what the result will stand beside, e.g. step and version.
            vectors: the parameters, one vector a server.
            buffers: of the module.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
            self._thread.start()
        self._asked.put((row, vectors, buffers))

    def results(self) -> list[dict[str, Any]]:
        """Return the scores that are ready, in order.

        Raises:
            BaseException: what scoring raised.
        """
        found = []
        while not self._scored.empty():
            result = self._scored.get()
            if isinstance(result, BaseException):
                raise result
            found.append(result)
        return found

    def close(self) -> list[dict[str, Any]]:
        """Finish what was asked; return the last scores."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join()
        return self.results()

    def load(self, vectors: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
        """Set the module's parameters and buffers."""
        for server, vector in enumerate(vectors):
            self._packing.unpack(server, vector)
        for own, value in zip(self.module.buffers(), buffers, strict=True):
            own.copy_(value)

    def _run(self) -> None:
        try:
            while (asked := self._asked.get()) is not None:
                row, vectors, buffers = asked
                self._scored.put({**row, **self._score(row["step"], vectors, buffers)})
        except BaseException as error:
            self._scored.put(error)

    def _score(
        self, step: int, vectors: Sequence[Tensor], buffers: Sequence[Tensor]
    ) -> dict[str, Any]:
        start = time.perf_counter()
        self.load(vectors, buffers)
        sums: MetricSums = {}
        for index, indices in enumerate(score_batches(self._split, self._batch_size)):
            inputs, targets = self._split.inputs(indices), self._split.targets(indices)
            part = MicroBatch(len(indices), inputs, targets)
            add_sums(sums, self._stage.evaluate(step, index, part))
        return {"metrics": means(sums), "seconds": time.perf_counter() - start}
