"""The same workers as a loop that joins freewheel: run by ``freewheel launch``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import freewheel

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.peers.served import batch, build, parser, seconds_of


def main() -> None:
    """Run one worker; write its seconds to a file of its rank."""
    arguments = parser("a worker of freewheel")
    arguments.add_argument("--out", type=Path, required=True)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    model = build(given.hidden, given.seed)
    with freewheel.join(model, torch.optim.SGD(model.parameters(), lr=0.01)) as run:
        optimizer, (inputs, targets) = run.optimizer, batch(run.rank + 1)
        loss_of, first = nn.CrossEntropyLoss(), model[0].weight

        def step() -> None:
            if not given.fixed_gradient or first.grad is None:
                optimizer.zero_grad()
                loss_of(model(inputs), targets).backward()
            optimizer.step()

        seconds = seconds_of(step, given.warmup, given.updates)
    (given.out / str(run.rank)).write_text(str(seconds))


main()
