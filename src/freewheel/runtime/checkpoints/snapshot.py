"""The state of one process of a run: taken for a checkpoint, and put back, in any layout."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from freewheel.config import Config
from freewheel.errors import CheckpointError
from freewheel.runtime.checkpoints.checkpoint import Checkpoint, open_checkpoint
from freewheel.runtime.checkpoints.plain import from_plain, to_plain

if TYPE_CHECKING:
    from freewheel.runtime.role import TrainingRole

#: What must be the same for the state that a process keeps beside its model to make sense.
_BESIDE = ("layout", "codec", "protocol", "predictor", "monitor")
#: What must be the same for saved learning rates and the like to go before those in the file.
_RATES = ("optimizer", "schedule")

#: Tensors by name, and plain values, of one process.
Part = tuple[Mapping[str, Tensor], Mapping[str, Any]]


def about(config: Config) -> dict[str, Any]:
    """Return the sections of the configuration that a checkpoint's manifest holds."""
    return config.model_dump(mode="json", include={*_BESIDE, *_RATES})


def take(role: TrainingRole) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and plain values of a role's whole state.

    The model and the optimizer are kept under the whole model's parameter names, so that a run
    may go on with other stages or another number of replicas. A process that only repeats what
    another holds (``saves_parameters`` is False) leaves them to that one.
    """
    tensors: dict[str, Tensor] = {}
    updater, model = role.updater, role.module.state_dict()
    if not role.saves_parameters:
        parameters = dict(role.module.named_parameters(remove_duplicate=False))
        model = {name: value for name, value in model.items() if name not in parameters}
    mine = role.saves_parameters
    state = {
        "step": role.step,
        "sampler": role.sampler.state_dict(),
        "machine": role.machine.state_dict(),
        "recorder": role.recorder.state_dict(),
        "model": dict(model),
        "optimizer": _optimizer_state(updater.optimizer, role.module) if mine else None,
        "schedule": updater.schedule.state_dict() if mine and updater.schedule else None,
        "random": _random_state(),
        "extra": role.extra_state(),
    }
    return tensors, to_plain(state, tensors)


def restore(role: TrainingRole, path: Path) -> None:
    """Put a checkpoint's state into a role.

    Random state, and what a role keeps beside its model, is taken over where layout, codec and
    protocol are those of the checkpoint; else it starts anew. Learning rate and other settings of
    the optimizer are those of the checkpoint, unless ``[optimizer]`` or ``[schedule]`` changed.

    Args:
        role: newly made.
        path: the checkpoint's folder.

    Raises:
        CheckpointError: it is damaged, or does not fit the model.
    """
    checkpoint = open_checkpoint(path)
    name = role.context.job.name.replace(" ", "-")
    same = _same(checkpoint, role.config, _BESIDE)
    processes = checkpoint.processes()
    # in the same layout a process needs its own state, and parameters where another saved them
    own = [name] if role.saves_parameters else [name, processes[0]]
    parts = [checkpoint.read(process) for process in (own if same else processes)]
    role.step = int(parts[0][1]["step"])
    role.sampler.load_state_dict(parts[0][1]["sampler"])
    load_module(role.module, parts, own_first=same)
    as_saved = _same(checkpoint, role.config, _RATES)
    _load_optimizer(role.updater.optimizer, role.module, parts, as_saved)
    if role.updater.optimizer is not None and role.updater.schedule is not None:
        state = _first(parts, "schedule") or {}
        _load_schedule(role.updater.optimizer, role.updater.schedule, state, role.step, as_saved)
    if same:
        tensors, values = parts[0]
        role.machine.load_state_dict(from_plain(values["machine"], tensors))
        role.load_extra_state(from_plain(values["extra"], tensors))
        role.recorder.load_state_dict(from_plain(values["recorder"], tensors))
        _load_random_state(from_plain(values["random"], tensors))
        return
    torch.manual_seed((role.config.run.seed * 1009 + role.rank) * 1009 + role.step)
    if role.rank == 0:
        shared_out = role.config.layout.kind != "pipeline"
        role.recorder.load_sum([values["recorder"] for _, values in parts], shared_out)


def load_module(module: nn.Module, parts: Sequence[Part], own_first: bool = False) -> None:
    """Put saved parameters and buffers into a module, by their names in the whole model.

    Buffers that several processes have, each its own, become their mean (integers the largest).

    Args:
        module: the whole model, or some of its layers.
        parts: of all processes that were saved.
        own_first: the first part is of this very process, and goes before the others.

    Raises:
        CheckpointError: the model is another one.
    """
    found = {name: _merge(name, parts, own_first) for name in module.state_dict()}
    for name, value in module.state_dict().items():
        saved = found[name]
        if isinstance(value, Tensor) and (
            not isinstance(saved, Tensor) or saved.shape != value.shape
        ):
            what = f"has shape {tuple(saved.shape)}" if isinstance(saved, Tensor) else "has none"
            raise CheckpointError(
                f"the model has {name!r} of shape {tuple(value.shape)}, and the checkpoint {what}; "
                f"use the model that was saved"
            )
    module.load_state_dict(found)


def _merge(name: str, parts: Sequence[Part], own_first: bool) -> Any:
    values = [
        from_plain(values["model"][name], tensors)
        for tensors, values in parts
        if name in values["model"]
    ]
    if len(values) < 2 or own_first or not all(isinstance(value, Tensor) for value in values):
        return values[0] if values else None
    if values[0].is_floating_point():
        return torch.stack([value.double() for value in values]).mean(0).to(values[0].dtype)
    return torch.stack(values).amax(0) if not values[0].is_complex() else values[0]


def _same(checkpoint: Checkpoint, config: Config, sections: Sequence[str]) -> bool:
    now = about(config)
    return all(checkpoint.about.get(section) == now[section] for section in sections)


def _first(parts: Sequence[Part], key: str) -> Any:
    """Return the first part's value that is there."""
    found = ((tensors, values[key]) for tensors, values in parts if values[key] is not None)
    tensors, value = next(found, ({}, None))
    return from_plain(value, tensors)


def _optimizer_state(optimizer: Optimizer | None, module: nn.Module) -> dict[str, Any] | None:
    if optimizer is None:
        return None
    group_of = {
        id(parameter): index
        for index, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
    }
    # a parameter of two names is kept under both: another layout may know it by either
    named = [
        (name, parameter)
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if id(parameter) in group_of
    ]
    return {
        "kind": type(optimizer).__name__,
        "groups": [
            {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ],
        "group_of": {name: group_of[id(parameter)] for name, parameter in named},
        "state": {name: dict(optimizer.state.get(parameter, {})) for name, parameter in named},
    }


def _load_optimizer(
    optimizer: Optimizer | None, module: nn.Module, parts: Sequence[Part], with_rates: bool
) -> None:
    saved = [(tensors, v["optimizer"]) for tensors, v in parts if v["optimizer"] is not None]
    if optimizer is None or not saved:
        return
    kind = saved[0][1]["kind"]
    if kind != type(optimizer).__name__:
        raise CheckpointError(
            f"the checkpoint was saved by {kind}, and this run has {type(optimizer).__name__}; "
            f"resume with the same optimizer"
        )
    names = {
        id(parameter): name for name, parameter in module.named_parameters(remove_duplicate=False)
    }
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            found = next(((t, s) for t, s in saved if name in s["group_of"]), None)
            if found is None:
                continue  # it was frozen when the checkpoint was taken
            tensors, state = found
            if with_rates:
                group.update(from_plain(state["groups"][state["group_of"][name]], tensors))
            values = from_plain(state["state"][name], tensors)
            if values:
                optimizer.state[parameter] = _on(parameter.device, values)


def _load_schedule(
    optimizer: Optimizer, schedule: LRScheduler, saved: dict[str, Any], step: int, as_saved: bool
) -> None:
    """Let a schedule go on after ``step`` steps."""
    if as_saved or not isinstance(schedule, LambdaLR):
        schedule.load_state_dict(saved or schedule.state_dict())
    else:
        schedule.last_epoch = step
    if isinstance(schedule, LambdaLR):
        # the length of the run, and with it the curve, may be another one now
        for group, base, factor in zip(
            optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
        ):
            group["lr"] = base * factor(schedule.last_epoch)


def _on(device: torch.device, values: dict[str, Any]) -> dict[str, Any]:
    # counts of steps stay on the CPU, where PyTorch keeps them
    return {
        key: value.to(device) if isinstance(value, Tensor) and value.dim() > 0 else value
        for key, value in values.items()
    }


def _random_state() -> dict[str, Any]:
    kind, keys, position, has_gauss, cached = np.random.get_state()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [kind, [int(key) for key in keys], position, has_gauss, cached],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _load_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
