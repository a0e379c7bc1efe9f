"""What a stage's forward and backward cost in virtual time: its share of the model's arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.hooks import RemovableHandle

from freewheel.models.tree import map_tensors, tensors_in
from freewheel.runtime.virtual.clock import VirtualClock


class Share(NamedTuple):
    """A stage's parts of the time that a batch takes the whole model."""

    forward: float
    backward: float


def shares(stages: Sequence[nn.Module], example: Any) -> list[Share]:
    """Return each stage's share, by the multiplications and additions of its layers.

    The example goes through all stages, forward and backward; modules, their gradients and the
    random generator are left as they were. Where nothing is counted (no stage multiplies matrices
    or convolves) all stages have equal shares, and a backward twice as much as a forward.

    Args:
        stages: in order.
        example: inputs of the first stage, a batch of any size.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from freewheel.runtime.virtual.costs import shares
        >>> first, last = shares([nn.Linear(4, 8), nn.Linear(8, 4)], torch.ones(2, 4))
        >>> first.forward == last.forward, first.backward / last.backward  # no gradient of inputs
        (True, 0.5)
    """
    counted = []
    value = example
    with torch.random.fork_rng(devices=[]):
        for stage in stages:
            forward, backward, value = _count(stage, value)
            counted.append((forward, backward))
    total = sum(map(sum, counted))
    if not total:
        part = 1.0 / (3 * len(stages))
        return [Share(part, 2 * part) for _ in stages]
    return [Share(forward / total, backward / total) for forward, backward in counted]


def _count(stage: nn.Module, value: Any) -> tuple[int, int, Any]:
    gradients = [(parameter, parameter.grad) for parameter in stage.parameters()]
    modes = [(module, module.training) for module in stage.modules()]
    stage.eval()  # statistics of batches stay as they are, and nothing is dropped out
    try:
        inputs = map_tensors(lambda t: t.detach().requires_grad_(t.requires_grad), value)
        # a first layer may write to its input, which a leaf that requires a gradient forbids
        given = map_tensors(lambda t: t.clone(), inputs)
        with FlopCounterMode(display=False) as counter:
            output = stage(given)
        forward = counter.get_total_flops()
        ends = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
        with FlopCounterMode(display=False) as counter:
            if ends:
                torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
        backward = counter.get_total_flops()
    finally:
        for module, training in modes:
            module.training = training
        for parameter, gradient in gradients:
            parameter.grad = gradient
    return (
        forward,
        backward,
        map_tensors(lambda t: t.detach().requires_grad_(t.requires_grad), output),
    )


class Meter:
    """Charges a clock for each training forward and backward of a stage.

    Scoring is not charged. Neither is what a predictor does.

    Args:
        clock: of the stage's process.
        share: of the whole model's time.
        next_s: draws how long a full batch takes the whole model on this stage's machine; once for
            each forward, with its backward.
        batch_size: samples of a full batch.
    """

    def __init__(
        self, clock: VirtualClock, share: Share, next_s: Callable[[], float], batch_size: int
    ) -> None:
        self._clock, self._share, self._next_s = clock, share, next_s
        self._batch_size = batch_size

    def attach(self, module: nn.Module) -> RemovableHandle:
        """Watch this module until the handle is removed; what it computes is not touched."""
        return module.register_forward_hook(self._forward_done)

    def _forward_done(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not module.training:
            return
        sizes = [len(tensor) for tensor in tensors_in(args) if tensor.dim()]
        part = (sizes[0] if sizes else self._batch_size) / self._batch_size
        seconds = self._next_s() * part
        self._clock.spend(seconds * self._share.forward)
        ends = [t for t in tensors_in(output) if t.requires_grad and t.grad_fn is not None]
        charged = False

        def backward_begins(_: Tensor) -> None:
            nonlocal charged
            if not charged:
                charged = True
                self._clock.spend(seconds * self._share.backward)

        for tensor in ends:
            tensor.register_hook(backward_begins)  # type: ignore[no-untyped-call]  # as torch has it
