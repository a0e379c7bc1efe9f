"""Optimizer steps and backwards without torch's compiler: the same numbers, less memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from freewheel.models.stepping import step_of
from freewheel.runtime.stages.seeding import backward_from

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
    "muon": lambda p: torch.optim.Muon(p, lr=0.1),
}


def trained(make: Callable[[list[nn.Parameter]], Optimizer], lean: bool) -> Tensor:
    """Return a matrix after five steps by fixed gradients."""
    generator = torch.Generator().manual_seed(3)
    weight = nn.Parameter(torch.randn(4, 3, generator=generator))
    optimizer = make([weight])
    step = step_of(optimizer) if lean else optimizer.step
    for _ in range(5):
        weight.grad = torch.randn(4, 3, generator=generator)
        step()
    return weight.detach()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_the_optimizer(name: str) -> None:
    torch.testing.assert_close(
        trained(OPTIMIZERS[name], lean=True), trained(OPTIMIZERS[name], lean=False), rtol=0, atol=0
    )


def test_hooks_are_called() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    step, seen = step_of(optimizer), []
    optimizer.register_step_post_hook(lambda *_: seen.append(weight.item()))
    weight.grad = torch.ones(1)
    step()
    assert seen == [0.0]


def test_an_optimizer_of_the_user_steps_as_it_does() -> None:
    class Twice(torch.optim.SGD):
        def step(self, closure: None = None) -> None:  # type: ignore[override]  # torch has overloads
            super().step(closure)
            super().step(closure)

    weight = nn.Parameter(torch.ones(1))
    step = step_of(Twice([weight], lr=1.0))
    weight.grad = torch.ones(1)
    step()
    assert weight.item() == -1.0


def test_a_schedule_sees_that_the_optimizer_went_first() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    step = step_of(optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    weight.grad = torch.ones(1)
    step()
    schedule.step()  # warnings are errors here
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_backward_from_is_backward_with_gradients() -> None:
    def gradients(backward: Callable[[list[Tensor], list[Tensor]], None]) -> list[Tensor | None]:
        generator = torch.Generator().manual_seed(5)
        layer = nn.Linear(3, 4)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        x = torch.randn(2, 3, generator=generator, requires_grad=True)
        hidden = layer(x).tanh()
        given = [torch.randn(2, 4, generator=generator) for _ in range(2)]
        backward([hidden, hidden.exp()], given)
        return [x.grad, *(p.grad for p in layer.parameters())]

    plain = gradients(lambda outputs, given: torch.autograd.backward(outputs, given))
    for ours, theirs in zip(gradients(backward_from), plain, strict=True):
        assert ours is not None
        assert theirs is not None
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_child_loads_no_compiler() -> None:
    code = """
import sys, torch
from torch import nn
from freewheel.runtime.stages.seeding import backward_from
from freewheel.models.stepping import leave_compiler_out
from freewheel.runtime.updates import Updater
leave_compiler_out()
module = nn.Linear(2, 2)
updater = Updater(module, lambda p: torch.optim.Adam(p),
                  lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9))
updater.clear()
backward_from([module(torch.ones(1, 2))], [torch.ones(1, 2)])
updater.apply()
updater.optimizer.load_state_dict(updater.optimizer.state_dict())
print(sorted(name for name in ("torch._dynamo", "sympy") if name in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
