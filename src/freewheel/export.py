"""The trained model of a run as one plain PyTorch module, in one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from freewheel.config import Config, load_config
from freewheel.errors import CheckpointError, ConfigError, ModelError
from freewheel.observe.run_folder import read_origin
from freewheel.runtime.checkpoints.checkpoint import checkpoints, latest
from freewheel.runtime.checkpoints.final import load_final
from freewheel.runtime.checkpoints.snapshot import Part, load_module
from freewheel.runtime.pieces import Given, Pieces

#: How often a run in progress may drop the checkpoint that is being read before we give up.
_TRIES = 10


@dataclass(frozen=True, slots=True)
class Exported:
    """What ``export`` wrote.

    Args:
        step: steps that the model was trained for.
        parameters: a safetensors file of the whole ``state_dict``.
        program: what ``torch.export.load`` reads; None where it was not asked for.
    """

    step: int
    parameters: Path
    program: Path | None


def load(
    run: str | Path, model: nn.Module | list[Any] | Callable[[], Any] | None = None
) -> nn.Module:
    """Return the trained model of a run as one plain module, ready to be used.

    A run that has ended gives its final parameters; one that is in progress, was stopped, or
    failed gives those of its newest checkpoint.

    Args:
        run: the run folder.
        model: the model, which is filled, or a function that makes it, where a script made it for
            the run; default: what the run's configuration names.

    Returns:
        The model, of its own class where it is an ``nn.Module``, in ``eval()`` mode, on the CPU.

    Raises:
        ConfigError: this is no run folder, or ``model`` is missing.
        CheckpointError: nothing was saved, or it is damaged, or is of another model.

    Example:
        >>> import freewheel, torch
        >>> result = freewheel.train(
        ...     model={"name": "mlp", "hidden": [8]}, data={"name": "digits"}, train={"steps": 2},
        ...     run={"dir": "/tmp/freewheel-doctest"}, quiet=True)
        >>> freewheel.load(result.run_dir)(torch.zeros(3, 1, 8, 8)).shape
        torch.Size([3, 10])
    """
    return _load(Path(run), model)[0]


def export(
    run: str | Path, out: str | Path, model: Any = None, *, with_program: bool = True
) -> Exported:
    """Write the trained model of a run to files that need nothing of freewheel.

    Args:
        run: the run folder.
        out: a folder, made if need be: ``model.safetensors`` with the whole ``state_dict``, and
            ``model.pt2``, which ``torch.export.load`` reads; any batch size where the model allows.
        model: as for ``load``.
        with_program: False writes the parameters only, and reads no data.

    Raises:
        ConfigError: as ``load``.
        CheckpointError: as ``load``, or ``out`` cannot be written to.
        ModelError: ``torch.export`` cannot trace the model; its parameters are written.
    """
    run, out = Path(run), Path(out)
    made, step = _load(run, model)
    parameters, program = out / "model.safetensors", out / "model.pt2"
    tensors = {name: t.detach().clone().contiguous() for name, t in _tensors(made).items()}
    try:
        out.mkdir(parents=True, exist_ok=True)
        aside = out / "model.safetensors.part"
        save_file(tensors, aside, metadata={"run": run.name, "step": str(step)})
        aside.replace(parameters)
    except OSError as error:
        raise CheckpointError(f"cannot write to {out}: {error}; give another --out") from error
    if with_program:
        _write_program(made, _example(run), program)
    return Exported(step, parameters, program if with_program else None)


def _load(run: Path, model: Any) -> tuple[nn.Module, int]:
    config = _config(run)
    path, script = read_origin(run)
    if model is None and config.model.factory is None and config.model.name is None:
        raise ConfigError(
            f"the model of {str(run)!r} was made by {script or 'a script'}; give it: "
            f"freewheel.load(run, model=...)"
        )
    made = Pieces(config, Given(model=model), (*path, str(Path.cwd()))).whole_model()
    step = _fill(made, run)
    return made.eval(), step


def _config(run: Path) -> Config:
    if not (run / "config.toml").exists():
        raise ConfigError(f"{str(run)!r} is no run folder; give one that `freewheel train` made")
    return load_config(run / "config.toml")


def _fill(module: nn.Module, run: Path) -> int:
    """Put the newest parameters of a run into a module; return the step they are of."""
    done = _steps_at_end(run)
    if done is not None:
        values = load_final(run)
        load_module(module, [(values, {"model": {name: {"$tensor": name} for name in values}})])
        return done
    folder = run / "checkpoints"
    for _ in range(_TRIES):
        checkpoint = latest(folder)
        try:
            parts: list[Part] = [checkpoint.read(process) for process in checkpoint.processes()]
            load_module(module, parts)
            return checkpoint.step
        except CheckpointError:
            # a run in progress saves the next one and drops this one, meanwhile
            if latest(folder).step == checkpoint.step:
                raise
    raise CheckpointError(
        f"{run} saves faster than it can be read; set checkpoint.keep to more than 1"
    )


def _steps_at_end(run: Path) -> int | None:
    """Return the steps of a run that came to its end, if no newer checkpoint is there."""
    try:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    saved = max((c.step for c in checkpoints(run / "checkpoints")), default=-1)
    steps = int(summary.get("steps") or 0)
    has_final = any((run / "final").glob("*.safetensors"))
    return steps if summary.get("status") == "ok" and has_final and steps >= saved else None


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {n: value for n, value in module.state_dict().items() if isinstance(value, Tensor)}


def _example(run: Path) -> Any:
    config = _config(run)
    pieces = Pieces(config, Given(), (*read_origin(run)[0], str(Path.cwd())))
    if config.data.name is None and config.data.factory is None:
        raise ConfigError(
            f"the data of {str(run)!r} were made by a script, and torch.export needs a sample of "
            f"them; the parameters are written: use freewheel.load(run, model=...) and export that"
        )
    train = pieces.source().train
    return train.inputs(torch.arange(min(2, len(train))))


def _write_program(module: nn.Module, example: Any, path: Path) -> None:
    any_size = _map(example, lambda _: {0: torch.export.Dim.AUTO})
    try:
        program = torch.export.export(module, (example,), dynamic_shapes=(any_size,))
    except Exception as error:
        # torch.export fails in many ways, each with a class of its own
        raise ModelError(
            f"torch.export cannot trace the model: {str(error).splitlines()[0]}; its parameters "
            f"are in {path.with_name('model.safetensors')}: load them with freewheel.load"
        ) from error
    aside = path.with_name("aside.pt2")
    torch.export.save(program, aside)
    aside.replace(path)


def _map(tree: Any, function: Callable[[Tensor], Any]) -> Any:
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: _map(value, function) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_map(value, function) for value in tree)
    return None
