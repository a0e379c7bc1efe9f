"""One stage of ``torch.distributed.pipelining`` on gloo: ``python -m benchmarks.peers.pipelining``.

GPipe or 1F1B over two ranks; 1F1B takes as many micro-batches as stages or more.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from benchmarks.peers.models import NUM_SAMPLES, build, samples
from benchmarks.peers.rank import batches, group, parser, report, time_steps

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one rank to the end and print its JSON line."""
    arguments = parser("one stage of torch.distributed.pipelining")
    arguments.add_argument("--schedule", choices=tuple(SCHEDULES), default="1f1b")
    arguments.add_argument("--micro-batches", type=int, default=4)
    given = arguments.parse_args(argv)
    if given.schedule == "1f1b" and given.micro_batches < given.world_size:
        arguments.error(f"1f1b needs at least {given.world_size} micro-batches; use gpipe")
    first, last = given.rank == 0, given.rank == given.world_size - 1
    with group(given):
        module = build(given.model, given.seed)[given.rank]
        images, labels = samples(NUM_SAMPLES, given.seed)
        optimizer = torch.optim.SGD(module.parameters(), lr=given.lr, momentum=0.9)
        stage = PipelineStage(module, given.rank, given.world_size, torch.device("cpu"))
        schedule = SCHEDULES[given.schedule](
            stage, given.micro_batches, loss_fn=nn.CrossEntropyLoss()
        )
        order = batches(NUM_SAMPLES, given.batch_size, given.seed)

        def step() -> float | None:
            indices = next(order)
            inputs = (images[indices],) if first else ()
            target = labels[indices] if last else None
            losses: list[torch.Tensor] | None = [] if last else None
            optimizer.zero_grad()
            schedule.step(*inputs, target=target, losses=losses, return_outputs=False)
            optimizer.step()
            return float(torch.stack(losses).detach().mean()) if losses else None

        measured = time_steps(step, given.steps, given.warmup)
        report("torch.distributed.pipelining", given, measured)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
