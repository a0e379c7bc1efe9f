"""A user's loop with clipping, accumulation, a scheduler and autocast; saves what it ends with.

python loop_script.py OUT [STEPS] [FAIL_AT]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

import factories
import freewheel

ACCUMULATE = 2


def main(out: Path, steps: int, fail_at: int) -> None:
    model = factories.batchnorm_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)
    # made before joining: it moves the rates of the optimizer that it was given
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(inner, T_max=steps)
    (x, y), _ = factories.small_data(96)
    with freewheel.join(model, inner) as run:
        optimizer = run.optimizer
        for step in range(steps):
            if step + 1 == fail_at:
                raise ValueError("this loop has had enough")
            optimizer.zero_grad()
            for part in range(ACCUMULATE):
                start = (step * run.world_size * ACCUMULATE + run.rank * ACCUMULATE + part) * 4
                rows = torch.arange(start, start + 4) % 96
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                (loss / ACCUMULATE).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.7)
            optimizer.step()
            scheduler.step()
        rate = optimizer.param_groups[0]["lr"]
    state = {**model.state_dict(), "rate": torch.tensor(rate)}
    save_file(state, out / f"{run.world_size}-{run.rank}.safetensors")
    print(f"worker {run.rank} of {run.world_size} is done")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int((*sys.argv[2:], "6")[0]), int((*sys.argv[3:], "0")[0]))
