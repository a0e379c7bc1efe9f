"""Trace any ``nn.Module`` with ``torch.export`` and find where its submodules end.

Positions are indices into the traced calls, which are in the order of execution.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map

from freewheel.errors import ModelError
from freewheel.models.aliases import forward_written_values
from freewheel.models.lazy import on_meta_device


@dataclass(frozen=True, slots=True)
class Trace:
    """One traced forward pass.

    Args:
        module: the traced module; its ``get_attr`` targets are names of the original.
        calls: the calls in order, without inputs and attributes.
        in_spec: structure of the arguments.
        spread: whether the input is a tuple of several arguments, and not one.
        out_spec: structure of the output value.
        ends: for each submodule that can be cut after, the position after its last call.
        repeated: submodules that are called several times, or whose calls are not in one piece.
    """

    module: GraphModule
    calls: tuple[Node, ...]
    in_spec: TreeSpec
    spread: bool
    out_spec: TreeSpec
    ends: dict[str, int]
    repeated: frozenset[str]


def takes_several(model: nn.Module) -> bool:
    """Whether ``forward`` cannot be called with one argument.

    Example:
        >>> from torch import nn
        >>> from freewheel.models.tracing import takes_several
        >>> takes_several(nn.Bilinear(1, 1, 1)), takes_several(nn.Linear(1, 1))
        (True, False)
    """
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters.values()
    required = [p for p in parameters if p.default is p.empty and p.kind in positional]
    return len(required) > 1


def trace(model: nn.Module, example: Any, *, training: bool) -> Trace:
    """Trace the model on an example batch; batches of other sizes may follow.

    The first dimension of every tensor that has the same length there as the first tensor is taken
    for the batch; other dimensions are fixed.

    Args:
        model: any module; its parameters and buffers are neither copied nor changed.
        example: an input value; a tuple is spread over the arguments of a ``forward`` that needs
            several.
        training: whether to trace it in training mode.

    Raises:
        ModelError: ``torch.export`` cannot trace it.
    """
    was_training = [(module, module.training) for module in model.modules()]
    spread = isinstance(example, tuple) and takes_several(model)
    args = _at_least_two(example if spread else (example,))
    traced_model = _fake(model) if on_meta_device(model) else model
    traced_model.train(training)
    try:
        program = torch.export.export(
            traced_model, args, dynamic_shapes=_dynamic(args), strict=False
        )
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"torch.export cannot trace {type(model).__name__} in "
            f"{'training' if training else 'evaluation'} mode: {reason[0]}; rewrite the line that "
            "the error above points at, or give the model as an nn.Sequential or a list of stages"
        ) from error
    finally:
        for module, mode in was_training:
            module.training = mode
    traced = program.module(check_guards=False)
    if not isinstance(traced, GraphModule):
        raise ModelError(f"torch.export returned a {type(traced).__name__}; upgrade PyTorch")
    forward_written_values(traced.graph)
    calls = tuple(node for node in traced.graph.nodes if node.op.startswith("call_"))
    ends, repeated = _ends(calls)
    in_spec = tree_flatten(args)[1]
    return Trace(traced, calls, in_spec, spread, program.call_spec.out_spec, ends, repeated)


def _ends(calls: Sequence[Node]) -> tuple[dict[str, int], frozenset[str]]:
    """Find each submodule's last position, and those that are called several times."""
    visits: dict[str, set[str]] = {}
    positions: dict[str, list[int]] = {}
    for position, node in enumerate(calls):
        for visit, (path, *_) in node.meta.get("nn_module_stack", {}).items():
            # Size queries are hoisted to the front, under a module that does not exist.
            if path and not visit.startswith("_empty_nn_module_stack"):
                visits.setdefault(path, set()).add(visit)
                positions.setdefault(path, []).append(position)
    repeated = frozenset(
        path
        for path, at in positions.items()
        if len(visits[path]) > 1 or at[-1] - at[0] + 1 != len(at)
    )
    return {path: at[-1] + 1 for path, at in positions.items() if path not in repeated}, repeated


def _fake(model: nn.Module) -> nn.Module:
    """Copy a model from the meta device as if to the CPU, still without memory.

    Traced on the meta device itself, tensors that ``forward`` makes would be without values.
    """
    copied = copy.deepcopy(model)
    with FakeTensorMode(allow_non_fake_inputs=True):
        return copied.to_empty(device="cpu")


def _at_least_two(args: tuple[Any, ...]) -> Any:
    """Double a batch of one: ``torch.export`` would take a length of one for a constant."""
    size = _batch_size(args)
    if size != 1:
        return args
    return tree_map(
        lambda leaf: torch.cat([leaf, leaf]) if _has_length(leaf, 1) else leaf,
        args,
    )


def _dynamic(args: Any) -> Any:
    """Mark the batch dimension of each tensor."""
    size = _batch_size(args)
    return tree_map(
        lambda leaf: {0: torch.export.Dim.DYNAMIC} if _has_length(leaf, size) else None, args
    )


def _batch_size(args: Any) -> int:
    leaves = tree_flatten(args)[0]
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return leaf.shape[0]
    raise ModelError("the example holds no tensor with a batch dimension; give one input batch")


def _has_length(leaf: Any, size: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == size
