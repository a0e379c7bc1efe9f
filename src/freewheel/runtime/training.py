"""What turns gradients into updates: optimizers, schedules, losses and metrics by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from freewheel.config import LossSection, OptimizerSection, ScheduleSection
from freewheel.errors import ConfigError, nearest
from freewheel.runtime.user_code import blame, call_factory

_SCHEDULERS = torch.optim.lr_scheduler
_LOSSES: dict[str, Callable[..., nn.Module]] = {
    "cross_entropy": nn.CrossEntropyLoss,
    "mse": nn.MSELoss,
    "l1": nn.L1Loss,
    "huber": nn.HuberLoss,
    "bce_with_logits": nn.BCEWithLogitsLoss,
    "nll": nn.NLLLoss,
}


def load_factory(reference: str) -> Callable[..., Any]:
    """Return what ``"module:function"`` names.

    Raises:
        ConfigError: no such module, or no such name in it.

    Example:
        >>> from freewheel.runtime.training import load_factory
        >>> load_factory("math:sqrt")(4.0)
        2.0
    """
    module_name, _, name = reference.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"factory {reference!r}: importing it raised {blame(error)}"
            ) from error
        raise ConfigError(
            f"factory {reference!r}: there is no module {module_name!r} beside the configuration "
            f"file, in the current folder, or installed"
        ) from None
    except Exception as error:
        raise ConfigError(f"factory {reference!r}: importing it raised {blame(error)}") from error
    if not hasattr(module, name):
        known = [key for key in vars(module) if not key.startswith("_")]
        raise ConfigError(
            f"factory {reference!r}: {module_name} has no {name!r}{nearest(name, known)}"
        )
    made: Callable[..., Any] = getattr(module, name)
    return made


_NEED_MORE = {
    "lbfgs": "evaluates the loss several times a step, which a pipeline or its peers cannot",
    "sparseadam": "takes sparse gradients only",
}


def _optimizers() -> dict[str, type[Optimizer]]:
    found = {}
    for key, value in vars(torch.optim).items():
        if isinstance(value, type) and issubclass(value, Optimizer) and value is not Optimizer:
            found[key.lower()] = value
    return found


def make_optimizer(section: OptimizerSection, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Make an optimizer of ``torch.optim``, or the user's.

    Args:
        section: its name (a class of ``torch.optim`` in lower case) or factory, and settings.
        parameters: what it updates; at least one.

    Raises:
        ConfigError: no such optimizer, or settings that it refuses.
    """
    settings = section.settings
    if section.factory is not None:
        what = f"optimizer.factory {section.factory!r}"
        made: Optimizer = call_factory(what, load_factory(section.factory), parameters, **settings)
        return made
    known = _optimizers()
    name = str(section.name)
    if name not in known:
        raise ConfigError(f"unknown optimizer {name!r}{nearest(name, known)}")
    if name in _NEED_MORE:
        raise ConfigError(f"optimizer {name!r} {_NEED_MORE[name]}; use another, such as adam")
    try:
        return known[name](parameters, lr=section.lr, **settings)  # type: ignore[call-arg]  # base
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer {name!r}: {error}") from error


def make_schedule(
    section: ScheduleSection, optimizer: Optimizer, total_steps: int
) -> LRScheduler | None:
    """Make the learning-rate schedule, stepped once after each training step.

    ``constant``; ``cosine`` (down to ``floor`` times the rate, default 0); ``linear`` (the same);
    ``steps`` (times ``gamma``, default 0.1, at each of ``milestones``: fractions of the run).
    ``warmup`` steps come first, rising linearly.

    Raises:
        ConfigError: no such schedule, or settings that it does not have.
    """
    settings = section.settings
    if section.factory is not None:
        return call_schedule(load_factory(section.factory), optimizer, total_steps, **settings)
    name = section.name or "constant"
    allowed = {
        "constant": set[str](),
        "cosine": {"floor"},
        "linear": {"floor"},
        "steps": {"gamma", "milestones"},
    }
    if name not in allowed:
        raise ConfigError(f"unknown schedule {name!r}{nearest(name, allowed)}")
    for key in settings:
        if key not in allowed[name]:
            raise ConfigError(
                f"schedule {name!r} has no setting {key!r}"
                + nearest(key, allowed[name] | {"warmup"})
            )
    if name == "constant" and section.warmup == 0:
        return None

    floor, gamma = float(settings.get("floor", 0.0)), float(settings.get("gamma", 0.1))
    milestones = [float(m) for m in settings.get("milestones", (0.5, 0.75))]

    def factor(step: int) -> float:
        if step < section.warmup:
            return (step + 1) / section.warmup
        done = min(1.0, (step - section.warmup) / max(1, total_steps - section.warmup))
        if name == "cosine":
            return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))
        if name == "linear":
            return floor + (1 - floor) * (1 - done)
        return gamma ** sum(done >= m for m in milestones) if name == "steps" else 1.0

    return _SCHEDULERS.LambdaLR(optimizer, factor)


def call_schedule(
    make: Callable[..., LRScheduler], optimizer: Optimizer, total_steps: int, **settings: Any
) -> LRScheduler:
    """Call a user's schedule, with ``total_steps`` where it has a parameter of that name."""
    if "total_steps" in inspect.signature(make).parameters:
        settings = {"total_steps": total_steps, **settings}
    return make(optimizer, **settings)


def make_loss(section: LossSection) -> Callable[[Any, Any], Tensor]:
    """Make the loss: the mean over the samples.

    ``cross_entropy`` takes outputs [B, C] with targets [B], or [B, T, C] with [B, T].

    Raises:
        ConfigError: no such loss, or settings that it refuses.
    """
    if section.function is not None:
        return load_factory(section.function)
    if section.factory is not None:
        what = f"loss.factory {section.factory!r}"
        made: Callable[[Any, Any], Tensor] = call_factory(
            what, load_factory(section.factory), **section.settings
        )
        return made
    name = str(section.name)
    if name not in _LOSSES:
        raise ConfigError(f"unknown loss {name!r}{nearest(name, _LOSSES)}")
    if section.settings.get("reduction", "mean") != "mean":
        raise ConfigError(
            f'loss.reduction must be "mean", got {section.settings["reduction"]!r}: batches are '
            f"weighed by their samples; scale optimizer.lr in its place"
        )
    try:
        module = _LOSSES[name](**section.settings)
    except TypeError as error:
        raise ConfigError(f"loss {name!r}: {error}") from error

    def loss(output: Any, targets: Any) -> Tensor:
        if name in ("cross_entropy", "nll") and isinstance(output, Tensor) and output.dim() == 3:
            output, targets = output.flatten(0, 1), targets.flatten()
        # a loss in half precision loses digits: autocast computes it in float32 all the same
        value: Tensor = module(output, targets)
        return value

    return loss


def _accuracy(output: Any, targets: Any) -> tuple[float, float] | None:
    if not isinstance(output, Tensor) or not isinstance(targets, Tensor):
        return None
    if output.dim() < 2 or targets.is_floating_point() or output.shape[:-1] != targets.shape:
        return None
    return float((output.argmax(-1) == targets).sum()), float(targets.numel())


def _mean_absolute_error(output: Any, targets: Any) -> tuple[float, float] | None:
    if not isinstance(output, Tensor) or not isinstance(targets, Tensor):
        return None
    return float((output - targets).abs().sum()), float(targets.numel())


def _bits_per_byte(output: Any, targets: Any) -> tuple[float, float] | None:
    if not isinstance(output, Tensor) or output.dim() != 3:
        return None
    nats = nn.functional.cross_entropy(output.flatten(0, 1).float(), targets.flatten())
    return float(nats) / math.log(2) * targets.numel(), float(targets.numel())


_METRICS: dict[str, Callable[[Any, Any], tuple[float, float] | None]] = {
    "accuracy": _accuracy,
    "mae": _mean_absolute_error,
    "bits_per_byte": _bits_per_byte,
}


def make_metrics(names: Sequence[str]) -> Callable[[Any, Any], dict[str, tuple[float, float]]]:
    """Make a function of (output, targets) that gives (sum, count) for each metric that applies.

    Args:
        names: ``accuracy``, ``mae``, ``bits_per_byte``, or ``"module:function"`` giving
            (sum, count).

    Raises:
        ConfigError: an unknown name.
    """
    functions = {}
    for name in names:
        if ":" in name:
            functions[name.partition(":")[2]] = load_factory(name)
        elif name in _METRICS:
            functions[name] = _METRICS[name]
        else:
            raise ConfigError(f"unknown metric {name!r}{nearest(name, _METRICS)}")

    def score(output: Any, targets: Any) -> dict[str, tuple[float, float]]:
        found = {name: function(output, targets) for name, function in functions.items()}
        return {name: value for name, value in found.items() if value is not None}

    return score
