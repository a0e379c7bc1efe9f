"""A loop's part in a run: its rank, its optimizer, and its end."""

from __future__ import annotations

import atexit
import os
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from torch import nn
from torch.optim import Optimizer

from freewheel.config import Config
from freewheel.errors import EXIT_INTERRUPTED, EXIT_WORKER, ConfigError, LinkError
from freewheel.loop.optimizer import ServedOptimizer, options_of
from freewheel.runtime.context import make_protocol
from freewheel.runtime.job import Job
from freewheel.runtime.mail import Mail
from freewheel.runtime.recorder import Recorder
from freewheel.runtime.servers.coding import codings_of
from freewheel.runtime.servers.exchange import Exchange
from freewheel.runtime.servers.packing import Packing
from freewheel.runtime.servers.part_optimizer import split_for, trained_by
from freewheel.transport.base import Interrupted


class Joined:
    """One training loop among several, or one that is alone.

    Used in a ``with`` statement, whose end is the end of this loop's part; without one the end of
    the script is. After it the model holds the final parameters, the same in all loops.

    Attributes:
        optimizer: to be used in place of the one that was given.
        rank: of this loop, from 0.
        world_size: how many loops there are.
        stopping: whether a person wants the run to end: leave the loop.

    Example:
        >>> import torch
        >>> import freewheel
        >>> model = torch.nn.Linear(2, 1)
        >>> with freewheel.join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as run:
        ...     run.rank, run.world_size
        (0, 1)
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer: Any = optimizer
        self.rank = 0
        self.world_size = 1

    @property
    def stopping(self) -> bool:
        """Whether a person wants the run to end: leave the loop."""
        return False

    def leave(self) -> None:
        """End this loop's part: push what is left, and take the final parameters over."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.leave()


class JoinedWorker(Joined):
    """A loop whose parameters are held by servers.

    Args:
        job: this process's.
        config: the run's.
        mail: to servers and coordinator.
        model: whose parameters travel.
        optimizer: of the user's.
        after: called once the loop has left.
    """

    def __init__(
        self,
        job: Job,
        config: Config,
        mail: Mail,
        model: nn.Module,
        optimizer: Optimizer,
        after: Callable[[], None],
    ) -> None:
        super().__init__(optimizer)
        self.rank, self.world_size = job.rank, config.layout.workers
        self._inner, self._mail, self._after = optimizer, mail, after
        protocol = make_protocol(config)
        self._local = protocol.pushes != "gradient"
        parameters = trained_by(optimizer)
        if not parameters:
            raise ConfigError(
                "the optimizer holds no parameter that requires grad; give it those of the model"
            )
        parts, _ = split_for(None if self._local else optimizer, parameters, config.layout.servers)
        packing = Packing(parameters, parts)
        self._exchange = Exchange(
            mail,
            self.rank,
            model,
            packing,
            protocol.local(self.rank),
            protocol.pushes,
            lambda server: codings_of(config, server, self.rank),
            protocol.watch,
        )
        self._recorder = Recorder(mail, job.began_at)
        self._clock = 0
        self._left = False
        self.optimizer = ServedOptimizer(optimizer, self._step)
        atexit.register(self.leave)
        self._hook = sys.excepthook
        sys.excepthook = self._tell_error
        mail.watch.lap()
        self._guarded(lambda: self._exchange.begin(send_initial=self.rank == 0))
        self._began = time.perf_counter()

    @property
    def stopping(self) -> bool:
        """Whether a person wants the run to end: leave the loop."""
        return self._exchange.stopped

    def leave(self) -> None:
        """End this loop's part: push what is left, and take the final parameters over.

        Waits for the other loops, which end in their own time.
        """
        if self._left:
            return
        self._left = True
        atexit.unregister(self.leave)
        sys.excepthook = self._hook
        self._guarded(lambda: self._exchange.end(self._clock, keep_final=True))
        self._recorder.flush()
        totals = {**self._recorder.final(), "step": self._clock}
        self._mail.tell("done", {**totals, "waited_for": self._exchange.waited_for})
        self._after()

    def _step(self, num_samples: int, loss: float | None) -> None:
        if self._left or self._exchange.stopped:
            self.leave()
            sys.exit(EXIT_INTERRUPTED)  # the person who stopped the run has been told
        version = min(self._exchange.versions)
        if self._local:
            bad = self._exchange.num_bad_gradients()
            if not bad:
                self._inner.step()
        else:
            # a scheduler made before joining asks the optimizer it knows whether it has stepped
            self._inner._opt_called = True  # type: ignore[attr-defined]  # torch sets it likewise
            self._exchange.options = options_of(self._inner)
            bad = self._exchange.add_gradient(num_samples)
        if bad:
            self._exchange.restore_buffers()
        sums = {} if loss is None else {"loss": (loss * num_samples, float(num_samples))}
        evidence = {} if loss is None else {"loss": loss}
        if bad:
            evidence["non_finite"] = bad
        self._clock += 1
        seconds = time.perf_counter() - self._began
        done = self._guarded(
            lambda: self._exchange.step_done(self._clock, num_samples, evidence, seconds)
        )
        rate = float(self._inner.param_groups[0]["lr"])
        about = {"version": version, "staleness": done.staleness}
        self._recorder.step(self._clock, sums, num_samples, rate, 0, **about)
        self._began = time.perf_counter()

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Interrupted:
            self._left = True
            sys.stderr.write("freewheel: the run was ended; its coordinator says why\n")
            sys.exit(EXIT_WORKER)

    def _tell_error(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        """Tell the coordinator what ended this script, before Python shows it."""
        self._left = True
        text = "".join(traceback.format_exception(kind, error, trace))
        said = {"error": f"{kind.__name__}: {error}", "kind": "", "traceback": text}
        try:
            self._mail.tell("failed", {**said, "pid": os.getpid(), "peer": None})
        except (LinkError, Interrupted):
            pass  # nobody is there to hear it
        self._hook(kind, error, trace)
