"""The networks whose gradients are looked at, at the weights of plain SGD after some epochs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.sharding.shards import FOLDER
from freewheel.models import partition
from freewheel.models.zoo import lenet


def network(kind: str, shape: tuple[int, ...], seed: int) -> nn.Module:
    """Return an untrained network: the zoo's LeNet, or 64 hidden units."""
    torch.manual_seed(seed)
    if kind == "mlp":
        size = int(np.prod(shape))
        return nn.Sequential(nn.Flatten(), nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, 10))
    model = partition(lenet(shape, 10), stages=1).whole()
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return model


def trained(
    task: str,
    inputs: NDArray[np.float32],
    labels: NDArray[np.int64],
    epochs: Sequence[int],
    *,
    seed: int,
    lr: float,
    batch_size: int,
) -> dict[int, nn.Module]:
    """Return the network after each of these numbers of epochs, trained or from the work folder."""
    kind, shape = task.rpartition("_")[2], inputs.shape[1:]
    FOLDER.mkdir(parents=True, exist_ok=True)
    model = network(kind, shape, seed)
    rows, targets = torch.from_numpy(inputs), torch.from_numpy(labels)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    found: dict[int, nn.Module] = {}
    stem = f"{task}-{len(inputs)}-{seed}-{lr}-{batch_size}"
    files = {epoch: FOLDER / f"{stem}-epoch{epoch}.safetensors" for epoch in epochs}
    if not all(file.exists() for file in files.values()):
        for epoch in range(max(epochs) + 1):
            if epoch:
                _one_epoch(model, optimizer, rows, targets, batch_size, generator)
            if epoch in epochs:
                _save(model, files[epoch])
    for epoch, file in files.items():
        found[epoch] = network(kind, shape, seed)
        found[epoch].load_state_dict(load_file(file))
    return found


def _one_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rows: Tensor,
    targets: Tensor,
    batch_size: int,
    generator: torch.Generator,
) -> None:
    for batch in torch.randperm(len(rows), generator=generator).split(batch_size):
        optimizer.zero_grad()
        functional.cross_entropy(model(rows[batch]), targets[batch]).backward()
        optimizer.step()


def _save(model: nn.Module, file: Path) -> None:
    aside = file.with_suffix(".part")
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, aside)
    aside.replace(file)
