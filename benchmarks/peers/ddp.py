"""One replica of ``DistributedDataParallel`` on gloo: ``python -m benchmarks.peers.ddp``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.models import NUM_SAMPLES, build, samples
from benchmarks.peers.rank import batches, group, parser, report, time_steps


def main(argv: Sequence[str] | None = None) -> int:
    """Run one rank to the end and print its JSON line."""
    given = parser("one replica of DistributedDataParallel").parse_args(argv)
    with group(given):
        model = DistributedDataParallel(
            nn.Sequential(*build(given.model, given.seed)),
            gradient_as_bucket_view=True,
            static_graph=True,
        )
        images, labels = samples(NUM_SAMPLES, given.seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=given.lr, momentum=0.9)
        loss_of = nn.CrossEntropyLoss()
        # Every rank takes its own batch of batch_size, as a replica of freewheel does.
        order = batches(NUM_SAMPLES, given.batch_size * given.world_size, given.seed)

        def step() -> float | None:
            indices = next(order)[given.rank :: given.world_size]
            optimizer.zero_grad()
            loss = loss_of(model(images[indices]), labels[indices])
            loss.backward()
            optimizer.step()
            return float(loss.detach())

        measured = time_steps(step, given.steps, given.warmup)
        report("DistributedDataParallel", given, measured)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
