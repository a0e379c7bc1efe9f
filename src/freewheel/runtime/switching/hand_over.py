"""What goes from a replica to a server when all-reduce ends, and the checks that it is the same.

Every worker tells every server what it holds of that server's part; the lowest rank sends it::

    worker -> server   ready   order and fingerprint of the part, buffers to server 0
    worker 0 -> server state   the part, its optimizer's state, the schedule, the protocol's machine
    server -> server 0 held    it has the state, and all members hold the same

and, where the run goes back to all-reduce, when no request is in flight::

    server -> worker   returned  the part, its optimizer's state, the schedule; to worker 0 the
                                 protocol's machine, too

The order in which a part's numbers lie is compared by the parameters' names, and its values by a
fingerprint; members are waited for by rank. So parts in another order, parameters of another
server, a worker that drifted off, or one that has died cannot pass in silence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from freewheel.errors import ModelError
from freewheel.runtime.checkpoints.plain import from_plain, to_plain
from freewheel.runtime.servers.part_optimizer import cut_state
from freewheel.runtime.servers.parts import Part
from freewheel.runtime.servers.served_part import ServedPart
from freewheel.transport.base import Message

#: Numbers of the fingerprint may differ by this part of the norm: machines round differently.
_TOLERANCE = 1e-4


def order_of(module: nn.Module, parameters: Sequence[nn.Parameter], part: Part) -> str:
    """Return a digest of which numbers a part holds, by name, in the order in which they lie.

    Args:
        module: has the names.
        parameters: the trainable ones, in the order that the part counts in.
        part: of one server.

    Example:
        >>> from torch import nn
        >>> from freewheel.runtime.servers.parts import Slice
        >>> from freewheel.runtime.switching.hand_over import order_of
        >>> layer = nn.Linear(2, 1)
        >>> both = list(layer.parameters())
        >>> part = (Slice(0, 0, 1),)
        >>> order_of(layer, both, part) == order_of(layer, both[::-1], part)
        False
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    rows = []
    for piece in part:
        parameter = parameters[piece.parameter]
        rows.append([names[id(parameter)], list(parameter.shape), piece.start, piece.stop])
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def fingerprint(vector: Tensor) -> list[float]:
    """Return the sum, the norm, and a weighted sum that tells positions apart.

    Args:
        vector: ``[P]``, any float dtype.

    Example:
        >>> import torch
        >>> from freewheel.runtime.switching.hand_over import fingerprint
        >>> [round(x, 4) for x in fingerprint(torch.tensor([3.0, 4.0]))]
        [7.0, 5.0, 5.1612]
    """
    values = vector.detach().double()
    ramp = torch.cos(torch.arange(len(values), dtype=torch.float64))
    return [float(values.sum()), float(values.norm()), float(values @ ramp)]


def agrees(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Return whether two fingerprints are those of the same numbers, but for rounding."""
    allowed = _TOLERANCE * max(abs(ours[1]), 1e-12)
    return all(abs(a - b) <= allowed for a, b in zip(ours, theirs, strict=True))


def state_message(
    vector: Tensor,
    part: Part,
    parameters: Sequence[nn.Parameter],
    optimizer: Optimizer,
    schedule: Any,
    whole: bool,
    facts: Mapping[str, Any],
) -> Message:
    """Return the message that hands a part over.

    Args:
        vector: the part's parameters ``[size]``.
        part: of the server.
        parameters: the trainable ones.
        optimizer: of all of them.
        schedule: of the optimizer, or None.
        whole: the part's tensors keep their shapes.
        facts: further plain values: ``clock``, ``version``, ``members`` and so on.
    """
    pieces = [
        cut_state(
            optimizer.state.get(parameters[piece.parameter], {}),
            parameters[piece.parameter],
            piece.start,
            piece.stop,
            whole,
        )
        for piece in part
    ]
    tensors, meta = _packed(pieces, optimizer, schedule)
    clock = int(facts["clock"])
    return Message("state", (vector, *tensors), clock=clock, meta={**meta, **facts})


def return_message(
    part: ServedPart, schedule: Any, buffers: Sequence[Tensor], facts: Mapping[str, Any]
) -> Message:
    """Return the message that gives a part back to a worker.

    Args:
        part: of this server.
        schedule: of its optimizer, or None.
        buffers: of the model, from server 0; others send none.
        facts: further plain values; ``clock`` is the step of the run.
    """
    optimizer = part.optimizer
    states = [{} if optimizer is None else optimizer.state.get(p, {}) for p in part.pieces]
    tensors, meta = _packed(states, optimizer, schedule)
    meta = {**meta, "num_buffers": len(buffers), **facts}
    tensors = (part.snapshot(), *tensors, *(buffer.clone() for buffer in buffers))
    return Message("returned", tensors, clock=int(facts["clock"]), meta=meta)


def _packed(
    states: Sequence[Mapping[str, Any]], optimizer: Optimizer | None, schedule: Any
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Return the tensors of an optimizer's state, one mapping a piece, and what is said of them."""
    tensors: dict[str, Tensor] = {}
    groups = [] if optimizer is None else optimizer.param_groups
    state = {
        "optimizer": [dict(each) for each in states],
        "groups": [{k: v for k, v in group.items() if k != "params"} for group in groups],
        "schedule": None if schedule is None else schedule.state_dict(),
    }
    plain = to_plain(state, tensors)
    return tuple(tensors.values()), {"state": plain, "names": list(tensors)}


def unpacked(message: Message) -> tuple[Tensor, dict[str, Any], list[Tensor]]:
    """Return what came: the part, the optimizer's state and schedule, and buffers."""
    vector, *rest = message.tensors
    names = message.meta["names"]
    kept = {name: tensor.clone() for name, tensor in zip(names, rest, strict=False)}
    return vector, from_plain(message.meta["state"], kept), rest[len(names) :]


def load_returned(
    optimizer: Optimizer, parameters: Sequence[nn.Parameter], part: Part, state: Mapping[str, Any]
) -> None:
    """Put one server's share of the optimizer's state back where the whole parameters are."""
    for piece, values in zip(part, state["optimizer"], strict=True):
        parameter = parameters[piece.parameter]
        own = optimizer.state[parameter]
        for name, value in values.items():
            flat = isinstance(value, Tensor) and value.shape == (piece.size,)
            if flat and value.shape != parameter.shape:
                if name not in own:
                    own[name] = torch.zeros_like(
                        parameter, dtype=value.dtype, memory_format=torch.contiguous_format
                    )
                own[name].view(-1)[piece.start : piece.stop] = value
            else:
                own[name] = value
    for group, saved in zip(optimizer.param_groups, state["groups"], strict=True):
        group.update(saved)


def load_state(server: str, part: ServedPart, schedule: Any, message: Message) -> None:
    """Make a server's part what a worker handed over.

    Raises:
        ModelError: it is not shaped as this server's part.
    """
    vector, state, _ = unpacked(message)
    if vector.shape != (part.size,) or vector.dtype != part.dtype:
        raise ModelError(
            f"{message.sender} handed over {tuple(vector.shape)} numbers of {vector.dtype} to "
            f"{server}, whose part is ({part.size},) of {part.dtype}; all processes must build the "
            "same model"
        )
    part.load(vector)
    optimizer = part.optimizer
    if optimizer is None:
        return
    for piece, values in zip(part.pieces, state["optimizer"], strict=True):
        if values:
            optimizer.state[piece] = values
    for group, saved in zip(optimizer.param_groups, state["groups"], strict=True):
        group.update(saved)
    if schedule is not None and state["schedule"] is not None:
        schedule.load_state_dict(state["schedule"])


def check_ready(
    server: str, order: str, held: Sequence[float], worker: str, said: Mapping[str, Any]
) -> None:
    """Refuse a worker that holds something else than the server was handed.

    Raises:
        ModelError: with the worker, the server, and what differs.
    """
    if said["order"] != order:
        raise ModelError(
            f"{worker} keeps the parameters of {server} in another order than {server} does, so "
            "that numbers would land in wrong places; all processes must build the same model and "
            "give its parameters to the optimizer in the same order"
        )
    if not agrees(held, said["fingerprint"]):
        raise ModelError(
            f"{worker} has other parameters for {server} than those handed over: sum, norm and "
            f"weighted sum are {_shown(said['fingerprint'])}, and {_shown(held)} were handed over; "
            "replicas must be equal after all-reduce: are gradients averaged on all of them, and "
            "does nothing else change parameters?"
        )


def _shown(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)
