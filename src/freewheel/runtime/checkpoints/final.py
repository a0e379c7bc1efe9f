"""Parameters and buffers at the end of a run, one safetensors file a process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from freewheel.errors import CheckpointError


def save_final(run_dir: Path, process: str, module: nn.Module) -> None:
    """Write a module's state under its whole-model names to ``final/``.

    Args:
        run_dir: the run folder.
        process: role and rank.
        module: its parameters and buffers; what two names share is written under both.

    Raises:
        CheckpointError: the disk is full, or cannot be written to.
    """
    file = run_dir / "final" / f"{process.replace(' ', '-')}.safetensors"
    seen: set[int] = set()
    values: dict[str, Tensor] = {}
    for name, tensor in module.state_dict().items():
        value = tensor.detach().cpu().contiguous()
        # safetensors refuses two names for one memory
        values[name] = value.clone() if value.data_ptr() in seen else value
        seen.add(value.data_ptr())
    aside = file.with_suffix(".part")
    try:
        file.parent.mkdir(exist_ok=True)
        save_file(values, aside)
        aside.replace(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot write {file}: {error}; checkpoints that were saved are untouched: free some "
            f"disk, then go on with: freewheel resume {run_dir}"
        ) from error


def drop_other_finals(run_dir: Path, processes: Sequence[str]) -> None:
    """Remove what other processes wrote at the end of the run, before it went on without them.

    Args:
        run_dir: the run folder.
        processes: role and rank of those that there are now.
    """
    own = {f"{name.replace(' ', '-')}.safetensors" for name in processes}
    for file in (run_dir / "final").glob("*"):
        if file.name not in own:
            file.unlink(missing_ok=True)


def load_final(run_dir: Path) -> dict[str, Tensor]:
    """Return the whole model's state at the end of a run, by name.

    Raises:
        CheckpointError: the run has none, because it did not reach its end.
    """
    files = sorted((run_dir / "final").glob("*.safetensors"))
    if not files:
        raise CheckpointError(
            f"run {str(run_dir)!r} has no final parameters; its status is in summary.json"
        )
    values: dict[str, Tensor] = {}
    for file in files:
        values.update(load_file(file))
    return {name: torch.as_tensor(value) for name, value in values.items()}
