"""Optimizer steps without torch's compiler, which nothing here uses.

Around every step of a ``torch.optim`` optimizer lie wrappers for the profiler and for
``torch.compile``; they load the whole compiler into each process, which costs a process some 70 MB
and a second, and each step some 50 us.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

#: Where torch keeps what it calls in place of a method that its compiler shall leave alone.
_CACHE = "__dynamo_disable"


def leave_compiler_out() -> None:
    """Let optimizers be made in this process without loading ``torch.compile``'s compiler.

    A model may still be compiled; the compiler is then loaded when that happens. Where torch is
    not as it was when this was written, nothing is changed. Only for processes of our own.

    Example:
        >>> from freewheel.models.stepping import leave_compiler_out
        >>> leave_compiler_out()
    """
    for method in vars(Optimizer).values():
        inner = getattr(method, "__wrapped__", None)
        if inspect.isfunction(method) and inner is not None and not hasattr(inner, _CACHE):
            setattr(inner, _CACHE, inner)


def step_of(optimizer: Optimizer) -> Callable[[], Any]:
    """Return what takes a step of an optimizer: the same numbers, without the wrappers.

    An optimizer that is not of ``torch.optim``, one that is differentiable or whose step was
    replaced, and one with hooks steps as it always does.

    Args:
        optimizer: before a schedule is made for it, which replaces its step.

    Example:
        >>> import torch
        >>> from freewheel.models.stepping import step_of
        >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
        >>> step = step_of(torch.optim.SGD([weight], lr=0.5))
        >>> weight.grad = torch.tensor([1.0])
        >>> step()
        >>> weight.tolist()
        [0.5]
    """
    kind = type(optimizer)
    replaced = "step" in vars(optimizer)
    known = kind.__module__.startswith("torch.optim.") and kind.__name__ != "LBFGS"
    if not known or replaced or optimizer.defaults.get("differentiable", False):
        return lambda: optimizer.step()
    inner = inspect.unwrap(kind.step)

    def step() -> None:
        if _hooked(optimizer):
            optimizer.step()
            return
        # schedules look here whether they are called in the right order
        optimizer._opt_called = True  # type: ignore[attr-defined]  # torch sets it on the fly
        with torch.no_grad():
            inner(optimizer)

    return step


def _hooked(optimizer: Optimizer) -> bool:
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
    )
