"""The same workers as a loop that joins freewheel: run by ``freewheel launch``."""

from __future__ import annotations

import atexit
import re
import sys
from pathlib import Path

import torch
from torch import nn

import freewheel

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.peers.served import batch, build, parser, seconds_of


def memory_mb(key: str) -> float:
    """Return what Linux says of this process: ``"VmRSS"`` now, ``"VmHWM"`` at most."""
    found = re.search(rf"{key}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1)) / 1024


def main() -> None:
    """Run one worker; write its seconds to a file of its rank.

    A server serves within ``join`` and ends there; it writes the memory that it took beyond the
    model and what was loaded before.
    """
    arguments = parser("a worker of freewheel")
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--adam", action="store_true", help="in place of plain SGD")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    model = build(given.hidden, given.seed)
    optimizer = (torch.optim.Adam if given.adam else torch.optim.SGD)(model.parameters(), lr=0.01)
    join, before_mb = freewheel.join, memory_mb("VmRSS")

    def write_memory() -> None:
        (given.out / "server_mb").write_text(str(memory_mb("VmHWM") - before_mb))

    atexit.register(write_memory)
    with join(model, optimizer) as run:
        atexit.unregister(write_memory)
        served, (inputs, targets) = run.optimizer, batch(run.rank + 1)
        loss_of, first = nn.CrossEntropyLoss(), model[0].weight

        def step() -> None:
            if not given.fixed_gradient or first.grad is None:
                served.zero_grad()
                loss_of(model(inputs), targets).backward()
            served.step()

        seconds = seconds_of(step, given.warmup, given.updates)
    (given.out / str(run.rank)).write_text(str(seconds))


main()
