"""An optimizer of ``torch.optim`` that updates only one server's part of the parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from freewheel.errors import ConfigError
from freewheel.runtime.servers.parts import Part, check_trainable, split_flat, split_tensors

#: Update each element by its own gradient and state alone: they may cut tensors anywhere.
ELEMENTWISE = frozenset(
    (
        *("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax"),
        *("Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD"),
    )
)
#: Look at a tensor as a whole: they need each tensor on one server.
TENSORWISE = frozenset(("Muon", "Adafactor"))
_IMPOSSIBLE = {
    "LBFGS": "it computes the loss anew in every step, which a server cannot",
    "SparseAdam": "it takes sparse gradients only, which do not travel",
}


def cuts_tensors(optimizer: Optimizer, num_servers: int) -> bool:
    """Return whether an optimizer may be given parts that cut through tensors.

    Args:
        optimizer: as the user made it.
        num_servers: with one, every optimizer sees whole tensors.

    Raises:
        ConfigError: no server can run it, or not several; it is named.

    Example:
        >>> import torch
        >>> from freewheel.runtime.servers.part_optimizer import cuts_tensors
        >>> cuts_tensors(torch.optim.Adam([torch.zeros(2, requires_grad=True)]), 2)
        True
    """
    kind = type(optimizer)
    name = kind.__name__
    ours = kind.__module__.startswith("torch.optim")
    if ours and name in _IMPOSSIBLE:
        raise ConfigError(
            f"optimizer {name} cannot run on a parameter server: {_IMPOSSIBLE[name]}; use one of "
            f"{', '.join(sorted(ELEMENTWISE | TENSORWISE))}"
        )
    if ours and name in ELEMENTWISE:
        return True
    if (ours and name in TENSORWISE) or num_servers == 1:
        return False
    raise ConfigError(
        f"optimizer {name} is not one of torch.optim, so it is not known whether it can be cut "
        f"over {num_servers} servers; use layout.servers = 1, or one of "
        f"{', '.join(sorted(ELEMENTWISE | TENSORWISE))}"
    )


def keep_part(
    optimizer: Optimizer, parameters: Sequence[nn.Parameter], part: Part, whole: bool
) -> list[nn.Parameter]:
    """Let an optimizer update only a part, in memory of its own; its parameter groups stay.

    Args:
        optimizer: of all ``parameters``; changed in place.
        parameters: the model's, in the order of the split.
        part: what is kept.
        whole: keep each tensor's shape; else pieces are flat.

    Returns:
        The new parameters, one a slice, in order.

    Raises:
        ConfigError: the optimizer holds a parameter that is not the model's.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from freewheel.runtime.servers.part_optimizer import keep_part
        >>> from freewheel.runtime.servers.parts import Slice
        >>> weight = nn.Parameter(torch.arange(4.0))
        >>> optimizer = torch.optim.SGD([weight], lr=1.0)
        >>> (piece,) = keep_part(optimizer, [weight], (Slice(0, 1, 3),), whole=False)
        >>> piece.grad = torch.ones(2)
        >>> _ = optimizer.step()
        >>> piece.tolist(), weight.tolist()
        ([0.0, 1.0], [0.0, 1.0, 2.0, 3.0])
    """
    place = {id(parameter): index for index, parameter in enumerate(parameters)}
    pieces = []
    of_parameter: dict[int, list[tuple[nn.Parameter, int, int]]] = {}
    for piece in part:
        whole_value = parameters[piece.parameter].detach()
        value = whole_value if whole else whole_value.reshape(-1)[piece.start : piece.stop]
        kept = nn.Parameter(value.clone(memory_format=torch.contiguous_format))
        pieces.append(kept)
        of_parameter.setdefault(piece.parameter, []).append((kept, piece.start, piece.stop))
    for group in optimizer.param_groups:
        own = []
        for parameter in group["params"]:
            if id(parameter) not in place:
                raise ConfigError(
                    f"the optimizer holds a parameter of shape {tuple(parameter.shape)} that is "
                    "not one of the model's trainable ones; make it of model.parameters()"
                )
            before = optimizer.state.pop(parameter, {})
            for kept, start, stop in of_parameter.get(place[id(parameter)], []):
                own.append(kept)
                if before:
                    optimizer.state[kept] = cut_state(before, parameter, start, stop, whole)
        group["params"] = own
    # An optimizer refuses an empty group only when it is made; one that is emptied does nothing.
    return pieces


def cut_state(
    state: Mapping[str, object], parameter: Tensor, start: int, stop: int, whole: bool
) -> dict[str, object]:
    """Return what an optimizer had noted of a parameter, for a slice of it."""
    found: dict[str, object] = {}
    for name, value in state.items():
        same = isinstance(value, Tensor) and value.shape == parameter.shape
        if isinstance(value, Tensor) and same and not whole:
            found[name] = value.reshape(-1)[start:stop].clone()
        else:
            found[name] = value.clone() if isinstance(value, Tensor) else value
    return found


def trained_by(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters that an optimizer holds and that are trainable, in its order.

    They are what travels: every process must list them in the same order.
    """
    held = (p for group in optimizer.param_groups for p in group["params"])
    return [p for p in held if p.requires_grad]


def split_for(
    optimizer: Optimizer | None, parameters: Sequence[nn.Parameter], num_servers: int
) -> tuple[list[Part], bool]:
    """Return each server's part, and whether its tensors keep their shapes.

    Args:
        optimizer: that the servers run; None where workers have their own.
        parameters: the trainable ones.
        num_servers: parts wanted.

    Raises:
        ConfigError: the optimizer cannot run on servers, or there are more servers than parts.
    """
    check_trainable(parameters)
    sizes = [parameter.numel() for parameter in parameters]
    if optimizer is None or cuts_tensors(optimizer, num_servers):
        return split_flat(sizes, num_servers), False
    return split_tensors(sizes, num_servers), True
