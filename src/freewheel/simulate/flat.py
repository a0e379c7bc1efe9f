"""A module whose trainable parameters lie in one flat tensor."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from freewheel.errors import ModelError

#: Each parameter starts at a multiple of so many elements, as in tensors of their own: kernels may
#: add up in another order where memory is aligned otherwise.
ALIGN = 64


class FlatModule:
    """Makes a module's parameters views of one tensor, so that a copy of them is one copy.

    Args:
        module: changed in place; its trainable parameters must have one dtype.

    Attributes:
        flat: all parameters, ``[size]``, with unused zeros between them.

    Raises:
        ModelError: nothing is trainable, or dtypes differ.

    Example:
        >>> from torch import nn
        >>> from freewheel.simulate.flat import FlatModule
        >>> FlatModule(nn.Linear(3, 2)).num_bytes
        32
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        if not self.parameters:
            raise ModelError("the model has no trainable parameters; there is nothing to train")
        dtypes = sorted({str(p.dtype) for p in self.parameters})
        if len(dtypes) > 1:
            raise ModelError(
                f"the simulator needs trainable parameters of one dtype, got {', '.join(dtypes)}; "
                "convert the model with .to(dtype)"
            )
        starts, size = [], 0
        for parameter in self.parameters:
            starts.append(size)
            size += -(-parameter.numel() // ALIGN) * ALIGN
        self.flat = torch.zeros(size, dtype=self.parameters[0].dtype)
        self._places = [(s, s + p.numel()) for s, p in zip(starts, self.parameters, strict=True)]
        for parameter, view in zip(self.parameters, self._views(self.flat), strict=True):
            view.copy_(parameter.data)
            parameter.data = view

    @property
    def num_bytes(self) -> int:
        """Bytes of the parameters alone."""
        return sum(p.numel() * p.element_size() for p in self.parameters)

    @property
    def buffers(self) -> list[Tensor]:
        """The module's buffers, such as running means."""
        return list(self.module.buffers())

    def packed(self, flat: Tensor) -> Tensor:
        """Return a tensor like ``flat`` without the zeros between parameters, as it travels."""
        return torch.cat([flat[start:stop] for start, stop in self._places])

    def unpacked(self, vector: Tensor) -> Tensor:
        """Return a tensor like ``flat`` from what ``packed`` made."""
        flat = torch.zeros_like(self.flat)
        sizes = [stop - start for start, stop in self._places]
        for (start, stop), part in zip(self._places, torch.split(vector, sizes), strict=True):
            flat[start:stop] = part
        return flat

    def gradient(self) -> tuple[Tensor, tuple[bool, ...]]:
        """Return a copy of the gradient like ``flat``, and which parameters have one."""
        out = torch.zeros_like(self.flat)
        for parameter, view in zip(self.parameters, self._views(out), strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
        return out, tuple(parameter.grad is not None for parameter in self.parameters)

    def set_gradient(self, gradient: Tensor, present: tuple[bool, ...]) -> None:
        """Set gradients from a tensor like ``flat``; None where there is none."""
        for parameter, view, there in zip(
            self.parameters, self._views(gradient), present, strict=True
        ):
            parameter.grad = view if there else None

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [
            flat[start:stop].view(parameter.shape)
            for (start, stop), parameter in zip(self._places, self.parameters, strict=True)
        ]
