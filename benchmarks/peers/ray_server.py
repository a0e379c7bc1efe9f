"""A parameter server as a Ray actor, as Ray's own example has it.

Ray is not a dependency of the project; this runs in an environment of its own::

    uv venv benchmarks/work/ray && uv pip install --python benchmarks/work/ray ray torch numpy
    benchmarks/work/ray/bin/python -m benchmarks.peers.ray_server
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
import torch
from torch import nn

from benchmarks.peers.served import batch, build, parser, report, seconds_of


@ray.remote(num_cpus=0)
class Server:
    """Holds the parameters; calls are served one after the other."""

    def __init__(self, hidden: int, seed: int) -> None:
        torch.set_num_threads(1)
        self.model = build(hidden, seed)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def push_and_pull(self, gradients: list[Any]) -> list[Any]:
        """Apply gradients; return the parameters."""
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            # what Ray hands out is read-only memory that both may see
            parameter.grad = torch.from_numpy(gradient.copy())
        self.optimizer.step()
        return [parameter.detach().numpy() for parameter in self.model.parameters()]


@ray.remote(num_cpus=0)
class Worker:
    """Computes gradients on its own batch."""

    def __init__(self, rank: int, hidden: int, seed: int) -> None:
        torch.set_num_threads(1)
        self.model, (self.inputs, self.targets) = build(hidden, seed), batch(rank)

    def run(self, server: Any, warmup: int, updates: int, fixed: bool) -> float:
        """Return the seconds of the timed updates."""
        parameters, loss_of = list(self.model.parameters()), nn.CrossEntropyLoss()

        def step() -> None:
            if not fixed or parameters[0].grad is None:
                self.model.zero_grad()
                loss_of(self.model(self.inputs), self.targets).backward()
            gradients = [parameter.grad.numpy() for parameter in parameters]
            pulled = ray.get(server.push_and_pull.remote(gradients))
            with torch.no_grad():
                for parameter, value in zip(parameters, pulled, strict=True):
                    parameter.copy_(torch.from_numpy(value.copy()))

        return seconds_of(step, warmup, updates)


def main(argv: Sequence[str] | None = None) -> int:
    """Run server and workers to the end; print the JSON line."""
    given = parser("a parameter server as a Ray actor").parse_args(argv)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    server = Server.remote(given.hidden, given.seed)
    workers = [Worker.remote(rank + 1, given.hidden, given.seed) for rank in range(given.workers)]
    running = [
        w.run.remote(server, given.warmup, given.updates, given.fixed_gradient) for w in workers
    ]
    report(ray.get(running), given.updates)
    ray.shutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
