"""A model's parameters as the flat vectors that travel: one a server, in the order of its part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from freewheel.runtime.servers.parts import Part, check_trainable, size_of
from freewheel.runtime.servers.served_part import Buffers


class Packing:
    """Copies between a module's tensors and the flat vectors, in one call each.

    The module keeps its own memory, so that it computes as it would alone.

    Args:
        parameters: the trainable ones.
        parts: of each server; together they hold every element once.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from freewheel.runtime.servers.packing import Packing
        >>> from freewheel.runtime.servers.parts import split_flat
        >>> weight = nn.Parameter(torch.arange(6.0))
        >>> packing = Packing([weight], split_flat([6], 2))
        >>> [vector.tolist() for vector in packing.pack([weight.detach() * 2])]
        [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
        >>> packing.unpack(1, torch.tensor([7.0, 8.0, 9.0]))
        >>> weight.tolist()
        [0.0, 1.0, 2.0, 7.0, 8.0, 9.0]
    """

    def __init__(self, parameters: Sequence[nn.Parameter], parts: Sequence[Part]) -> None:
        check_trainable(parameters)
        self.parameters = list(parameters)
        self.parts = list(parts)
        self._slices = [piece for part in parts for piece in part]
        self._whole = all(s.size == parameters[s.parameter].numel() for s in self._slices)
        self.sizes = [size_of(part) for part in parts]
        self.num_elements = sum(self.sizes)
        self._buffers = Buffers(self.num_elements, parameters[0].dtype)
        self._zeros: dict[int, Tensor] = {}
        # A parameter in another memory order than its elements has a contiguous stand-in.
        self._stand_ins = {
            index: torch.empty_like(p, memory_format=torch.contiguous_format).detach()
            for index, p in enumerate(self.parameters)
            if not p.is_contiguous()
        }
        self._targets = [
            [
                self._stand_ins.get(s.parameter, self.parameters[s.parameter].detach()).view(-1)[
                    s.start : s.stop
                ]
                for s in part
            ]
            for part in parts
        ]
        self._target_sizes = [[s.size for s in part] for part in parts]

    def pack(self, tensors: Sequence[Tensor | None]) -> list[Tensor]:
        """Return one vector a server, views of one new memory.

        Args:
            tensors: shaped as the parameters; None stands for zeros.
        """
        out = self._buffers.take()
        flats = [
            self._zeros_of(index) if tensor is None else tensor.detach().reshape(-1)
            for index, tensor in enumerate(tensors)
        ]
        if self._whole:
            pieces = [flats[s.parameter] for s in self._slices]
        else:
            pieces = [flats[s.parameter][s.start : s.stop] for s in self._slices]
        torch.cat(pieces, out=out)
        return list(torch.split(out, self.sizes)) if len(self.sizes) > 1 else [out]

    def pack_parameters(self) -> list[Tensor]:
        """Return the parameters themselves, one vector a server."""
        return self.pack(self.parameters)

    def unpack(self, server: int, vector: Tensor, mix: float = 1.0) -> None:
        """Move the parameters of one server's part to a vector: ``own = (1 - mix) own + mix v``."""
        values = list(torch.split(vector, self._target_sizes[server]))
        with torch.no_grad():
            if self._stand_ins:
                self._fill_stand_ins()
            if mix == 1.0:
                torch._foreach_copy_(self._targets[server], values)
            else:
                torch._foreach_lerp_(self._targets[server], values, mix)
            for index, stand_in in self._stand_ins.items():
                self.parameters[index].copy_(stand_in)

    def _fill_stand_ins(self) -> None:
        for index, stand_in in self._stand_ins.items():
            stand_in.copy_(self.parameters[index])

    def _zeros_of(self, index: int) -> Tensor:
        if index not in self._zeros:
            self._zeros[index] = torch.zeros_like(
                self.parameters[index], memory_format=torch.contiguous_format
            ).view(-1)
        return self._zeros[index].detach()
