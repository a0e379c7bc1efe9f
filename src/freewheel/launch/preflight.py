"""Tries the pieces of a run on one another before any process starts."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.config import Config
from freewheel.errors import ConfigError, FreewheelError, ModelError
from freewheel.models.partition import Partition
from freewheel.runtime.pieces import Pieces
from freewheel.runtime.user_code import blame
from freewheel.streams.base import Source

#: Numbers in message headers that a step or an evaluation may not outgrow.
MAX_PARTS = 65536
#: Parameters that may be made in memory for a try.
SMALL_BYTES = 32 << 20


def check_device(name: str) -> None:
    """Refuse a device that this machine does not have.

    Raises:
        ConfigError: with what there is.
    """
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("nothing can be computed there")
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError(
            f'run.device = {name!r} cannot be used: {why}; use "cpu", or see `freewheel doctor` '
            f"for what this machine has"
        ) from None


def check_counts(config: Config, source: Source) -> None:
    """Refuse more micro-batches, or more batches to score, than message headers can count."""
    parts = min(config.layout.micro_batches, config.data.batch_size) * config.train.accumulate
    if parts > MAX_PARTS:
        raise ConfigError(
            f"a step may have at most {MAX_PARTS} micro-batches, and layout.micro_batches times "
            f"train.accumulate make {parts}; lower one of them"
        )
    batches = -(-len(source.test) // config.eval.batch_size)
    if batches > MAX_PARTS:
        raise ConfigError(
            f"an evaluation may have at most {MAX_PARTS} batches, and {len(source.test)} samples "
            f"at eval.batch_size = {config.eval.batch_size} make {batches}; raise it"
        )


def check_updates(pieces: Pieces) -> None:
    """Make the optimizer and its schedule once, for one parameter that is nobody's.

    Raises:
        ConfigError: they cannot be made, or cannot be stepped without a closure.
    """
    optimizer = pieces.optimizer([nn.Parameter(torch.zeros(2, 2))])
    pieces.schedule(optimizer, 10)


def check_fit(pieces: Pieces, source: Source, partition: Partition) -> None:
    """Run two samples through the model and the loss.

    A large model of layers made by builders is made without memory for this; modules that are there
    already are copied, so that the try leaves no trace.

    Raises:
        ModelError: the model does not take the inputs, or the loss not its outputs and targets.
    """
    count = min(2, len(source.train))
    inputs = source.train.inputs(torch.arange(count))
    targets = source.train.targets(torch.arange(count))
    try:
        with torch.device("meta"):
            whole = partition.whole()
    except Exception:
        return  # one that reads values as it is built is tried in the run itself
    on_meta = all(p.is_meta for p in whole.parameters())
    small = sum(p.numel() * p.element_size() for p in whole.parameters()) <= SMALL_BYTES
    try:
        if on_meta and small:
            # torch loads much for the meta device: what is small is sooner tried in memory
            with torch.random.fork_rng(devices=[]):
                model, on_meta = partition.whole(), False
        else:
            model = whole if on_meta else copy.deepcopy(whole)
        given = _moved(inputs) if on_meta else copy.deepcopy(inputs)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            output = model.eval()(given)
    except FreewheelError:
        raise
    except Exception as error:
        if _is_about_meta(error):
            return
        raise ModelError(
            f"the model does not take the data's inputs ({_shape(inputs)}): {blame(error)}; make "
            f"the first layer fit them, or the data fit the model"
        ) from None
    _check_loss(pieces, output, _moved(targets) if on_meta else targets, targets)


def _check_loss(pieces: Pieces, output: Any, targets: Any, shown: Any) -> None:
    try:
        loss = pieces.loss()(output, targets)
    except FreewheelError:
        raise
    except Exception as error:
        if _is_about_meta(error):
            return
        raise ModelError(
            f"the loss does not take the model's output ({_shape(output)}) with the data's targets "
            f"({_shape(shown)}): {blame(error)}; choose a loss for such targets, or make them fit"
        ) from None
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
        raise ModelError(
            f"the loss must be one number in a tensor, the mean over the samples; got {what}; "
            f"give a function of (output, targets), or an object such as nn.CrossEntropyLoss()"
        )


def _is_about_meta(error: Exception) -> bool:
    """Whether an operation has no form without memory, which says nothing of the model."""
    return isinstance(error, NotImplementedError) or "meta" in str(error).lower()


def _moved(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to("meta")
    if isinstance(value, dict):
        return {key: _moved(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item) for item in value)
    return value


def _shape(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__
