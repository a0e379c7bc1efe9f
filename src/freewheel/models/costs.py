"""Measure what each layer of a model costs on an example batch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.errors import ConfigError
from freewheel.models.accept import form_of
from freewheel.models.balance import LayerCost
from freewheel.models.forms import Form
from freewheel.models.tree import map_tensors, tensors_in


def measure_costs(
    model: Any, example: Any, *, seed: int = 0, optimizer_states: int = 2, repeats: int = 3
) -> list[LayerCost]:
    """Run each layer alone, forward and backward, and return what it costs.

    One layer is in memory at a time, where the model is given by builders. Parameters, buffers,
    gradients and the random generator are left as they were.

    Args:
        model: in any of the forms that ``partition`` takes.
        example: an input batch of the size that a stage will see: one micro-batch.
        seed: for layers that are built here.
        optimizer_states: tensors that the optimizer keeps for each parameter: 0 for SGD, 1 with
            momentum, 2 for Adam.
        repeats: timed runs of each layer; the median counts.

    Returns:
        One cost per layer, in order.

    Raises:
        ConfigError: fewer than one repeat or less than no optimizer state.
        ModelError: see ``partition``.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from freewheel.models.costs import measure_costs
        >>> first, _ = measure_costs([nn.Linear(4, 8), nn.Tanh()], torch.ones(2, 4))
        >>> first.name, first.state_bytes, first.cut_bytes
        ('0', 640, 128)
    """
    if repeats < 1 or optimizer_states < 0:
        raise ConfigError(
            f"repeats must be >= 1 and optimizer_states >= 0, got {repeats} and {optimizer_states}"
        )
    form = form_of(model, cut=True, example=example, seed=seed)
    return measure(form, example, optimizer_states=optimizer_states, repeats=repeats)


def measure(
    form: Form, example: Any, *, optimizer_states: int = 2, repeats: int = 3
) -> list[LayerCost]:
    """Do what ``measure_costs`` does with a model whose form is known."""
    costs: list[LayerCost] = []
    value = example
    with torch.random.fork_rng(devices=[]):
        for index, name in enumerate(form.names):
            layer = form.build(index, index + 1)
            cost, value = _measure_layer(name, layer, value, optimizer_states, repeats)
            costs.append(cost)
    return costs


def _measure_layer(
    name: str, layer: nn.Module, value: Any, optimizer_states: int, repeats: int
) -> tuple[LayerCost, Any]:
    """Return what one layer costs, and its output."""
    buffers = [(buffer, buffer.clone()) for buffer in layer.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in layer.parameters()]
    modes = [(module, module.training) for module in layer.modules()]
    layer.train()
    seconds: list[float] = []
    try:
        # The first run warms caches up and tells what is kept for the backward pass.
        kept, output = _kept_bytes(layer, value)
        for _ in range(repeats):
            start = time.perf_counter()
            _forward_backward(layer, value)
            seconds.append(time.perf_counter() - start)
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for parameter, gradient in gradients:
            parameter.grad = gradient
    trained = sum(_bytes([p]) for p in layer.parameters() if p.requires_grad)
    held = _bytes(layer.parameters()) + _bytes(layer.buffers())
    forward = _bytes(tensors_in(output))
    backward = _bytes(t for t in tensors_in(output) if t.requires_grad)
    cost = LayerCost(
        name=name,
        compute_s=statistics.median(seconds),
        state_bytes=held + trained * (1 + optimizer_states),
        activation_bytes=kept,
        cut_bytes=forward + backward,
    )
    return cost, map_tensors(lambda t: t.detach().requires_grad_(t.requires_grad), output)


def _forward_backward(layer: nn.Module, value: Any) -> Any:
    for parameter in layer.parameters():
        parameter.grad = None
    output = layer(map_tensors(lambda t: t.detach().requires_grad_(t.requires_grad), value))
    ends = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
    if ends:
        torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    return output


def _kept_bytes(layer: nn.Module, value: Any) -> tuple[int, Any]:
    """Return the bytes that autograd keeps, without parameters, and the output."""
    own = {tensor.data_ptr() for tensor in layer.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = _forward_backward(layer, value)
    return sum(kept.values()), output


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
