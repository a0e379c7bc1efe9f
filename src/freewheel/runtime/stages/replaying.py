"""Local steps of one stage on the boundary tensors of its last exchanges."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from freewheel.runtime.stages.seeding import backward_from
from freewheel.transport.tree import flatten, unflatten


@dataclass(slots=True)
class Kept:
    """What a stage keeps of one micro-batch that was exchanged.

    Args:
        tree: how ``inputs`` sit in the value that the stage was called with.
        inputs: what came in, detached.
        sent: outputs that went on and required a gradient, detached.
        gradients: what came back for some of them, by place in ``sent``.
        targets: on the last stage.
        share: of the step's samples, which weighs the loss.
    """

    tree: Any
    inputs: list[Tensor]
    sent: list[Tensor]
    gradients: dict[int, Tensor]
    targets: Any
    share: float


class Replaying:
    """Keeps the last exchanges of a stage and trains on them.

    Args:
        call: runs the stage's layers.
        loss: of (output, targets), on the last stage; else None.
        window: exchanges kept.
        similarity: cosine between what a sample would send now and what it sent then, below which
            the gradient that came back is not used.
        seed: of the choice among those kept; the same on all stages, so they choose alike.
    """

    def __init__(
        self,
        call: Callable[[Any], Any],
        loss: Callable[[Any, Any], Tensor] | None,
        window: int,
        similarity: float,
        seed: int,
    ) -> None:
        self._call, self._loss = call, loss
        self._similarity = similarity
        self._kept: deque[list[Kept]] = deque(maxlen=window)
        self._generator = torch.Generator().manual_seed(seed)

    @property
    def num_kept(self) -> int:
        """Exchanges kept."""
        return len(self._kept)

    def keep(self, exchange: list[Kept]) -> None:
        """Take in the micro-batches of one exchange; the oldest one kept goes."""
        self._kept.append(exchange)

    def flush(self) -> None:
        """Forget all, when the data has changed."""
        self._kept.clear()

    def add_gradients(self) -> bool:
        """Add the gradient of one kept exchange to the parameters; return whether there is one."""
        if not self._kept:
            return False
        pick = int(torch.randint(len(self._kept), (1,), generator=self._generator))
        for kept in self._kept[pick]:
            self._one(kept)
        return True

    def _one(self, kept: Kept) -> None:
        # copies, because a first layer may write to its input
        output = self._call(unflatten(kept.tree, [tensor.clone() for tensor in kept.inputs]))
        if self._loss is not None:
            loss = self._loss(output, kept.targets) * kept.share
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            return
        _, tensors = flatten(output)
        now = [tensor for tensor in tensors if tensor.requires_grad]
        chosen = [i for i in kept.gradients if i < len(now)]
        if chosen:
            gradients = [
                _weighed(kept.gradients[i], now[i].detach(), kept.sent[i], self._similarity)
                for i in chosen
            ]
            backward_from([now[i] for i in chosen], gradients)

    def state_dict(self) -> dict[str, Any]:
        """Return all that is kept, for a checkpoint."""
        return {
            "generator": self._generator.get_state(),
            "kept": [
                [
                    {
                        "tree": kept.tree,
                        "inputs": kept.inputs,
                        "sent": kept.sent,
                        "gradients": {str(i): g for i, g in kept.gradients.items()},
                        "targets": list(flatten(kept.targets)),
                        "share": kept.share,
                    }
                    for kept in exchange
                ]
                for exchange in self._kept
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        self._generator.set_state(state["generator"])
        self._kept.clear()
        for exchange in state["kept"]:
            self._kept.append([_kept_of(row) for row in exchange])


def _kept_of(row: dict[str, Any]) -> Kept:
    tree, tensors = row["targets"]
    return Kept(
        row["tree"],
        list(row["inputs"]),
        list(row["sent"]),
        {int(i): gradient for i, gradient in row["gradients"].items()},
        unflatten(tree, list(tensors)),
        float(row["share"]),
    )


def _weighed(gradient: Tensor, now: Tensor, then: Tensor, least: float) -> Tensor:
    """Scale each sample's gradient by the cosine of what it sends now and what it sent then."""
    if gradient.dim() < 2:
        return gradient
    cosine = torch.nn.functional.cosine_similarity(
        now.flatten(1).float(), then.flatten(1).float(), dim=1
    )
    weight = torch.where(cosine >= least, cosine.clamp_min(0.0), torch.zeros_like(cosine))
    shape = (-1, *[1] * (gradient.dim() - 1))
    return gradient * weight.to(gradient.dtype).view(shape)
