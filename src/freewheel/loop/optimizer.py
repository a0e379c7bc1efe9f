"""An optimizer whose steps are pushes to the servers of the run, and pulls from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class ServedOptimizer(Optimizer):
    """Stands in for the optimizer of a loop that has joined a run.

    It shares the parameter groups of the one that it stands for, so that schedulers and the loop
    see and change the same learning rates; what they change goes to the servers with the next
    push. ``step`` returns once the protocol lets the next step begin, with the parameters that it
    begins from. Clip, accumulate and unscale before ``step``, as always: what is pushed is ``grad``
    as it is then.

    Args:
        inner: of the user's; it steps only under protocols whose workers train by themselves.
        step: pushes and pulls; takes samples and loss.

    Example:
        >>> import torch
        >>> from freewheel.loop import ServedOptimizer
        >>> inner, pushed = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1), []
        >>> served = ServedOptimizer(inner, lambda num_samples, loss: pushed.append(num_samples))
        >>> _ = served.step(num_samples=8)
        >>> pushed, served.param_groups[0]["lr"]
        ([8], 0.1)
    """

    def __init__(self, inner: Optimizer, step: Callable[[int, float | None], None]) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner
        self.state = inner.state
        self._push_and_pull = step

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        num_samples: int = 1,
        loss: Tensor | float | None = None,
    ) -> Any:
        """Push the gradient, or what the protocol's workers push, and pull.

        Args:
            closure: computes the loss and the gradient anew, as in PyTorch.
            num_samples: behind this gradient, a mean over them: protocols that average weigh it so.
            loss: of this step, for the records of the run.

        Returns:
            What ``closure`` returned, or None.
        """
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        told = value if loss is None else loss
        self._push_and_pull(num_samples, None if told is None else float(told))
        return value


def options_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the numbers in each parameter group: learning rate, momentum, and so on.

    Example:
        >>> import torch
        >>> from freewheel.loop.optimizer import options_of
        >>> parameter = torch.zeros(1, requires_grad=True)
        >>> options_of(torch.optim.Adam([parameter], lr=0.5))[0]["betas"]
        [0.9, 0.999]
    """
    found = []
    for group in optimizer.param_groups:
        options: dict[str, Any] = {}
        for name, value in group.items():
            if isinstance(value, Tensor) and value.numel() == 1:
                options[name] = float(value)
            elif isinstance(value, (int, float)):
                options[name] = value
            elif isinstance(value, tuple) and all(isinstance(v, (int, float)) for v in value):
                options[name] = list(value)
        found.append(options)
    return found
