"""One stage's side of a cut: tensors go out by one codec and come in by another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from freewheel.codecs import Codec, Key, decode_all, encode_all
from freewheel.runtime.mail import Mail
from freewheel.transport.base import Message


@dataclass(frozen=True, slots=True)
class Parcel:
    """What came through a cut.

    Args:
        tensors: decoded.
        tree: what the sender added; the same for all messages of one form.
        num_samples: as the sender counted them.
        note: a word that came along, most often none.
    """

    tensors: list[Tensor]
    tree: Any
    num_samples: int
    note: Mapping[str, Any]


class Cut:
    """Sends to and receives from one neighbour.

    Args:
        mail: of this process.
        peer: the neighbour's name.
        out: encodes what goes to it.
        into: decodes what comes from it; the same codec as its ``out``.
        device: where decoded tensors go.
        seed: of random rounding.
    """

    def __init__(
        self, mail: Mail, peer: str, out: Codec, into: Codec, device: torch.device, seed: int
    ) -> None:
        self.mail = mail
        self.peer = peer
        self.out = out
        self.into = into
        self.generator = torch.Generator().manual_seed(seed)
        self._device = device
        self._open: list[tuple[Key, int]] = []

    def send(
        self,
        kind: str,
        clock: int,
        index: int,
        num_samples: int,
        tensors: Sequence[Tensor],
        tree: Any,
        samples: Tensor | None,
        note: Mapping[str, Any] | None = None,
    ) -> None:
        """Encode and send tensors of one micro-batch; see ``Message`` for the first four."""
        codec = self._codec(self.out, kind)
        with self.mail.watch.sending():
            if codec.name == "identity":
                payload, specs = tuple(tensor.detach() for tensor in tensors), None
            else:
                keys = _keys(codec, kind, index, len(tensors), samples)
                payload, found, tickets = encode_all(
                    codec, [t.detach() for t in tensors], keys, generator=self.generator
                )
                specs = [[list(shape), str(dtype).removeprefix("torch.")] for shape, dtype in found]
                if codec is self.out:
                    self._open += zip(keys, tickets, strict=True)
            message = Message(
                kind,
                payload,
                {"tree": tree, "specs": specs},
                clock=clock,
                index=index,
                num_samples=num_samples,
                meta=note or {},
            )
        self.mail.send(self.peer, message)

    def receive(self, kind: str, clock: int, index: int, samples: Tensor | None) -> Parcel:
        """Wait for the neighbour's tensors of one micro-batch, and decode them."""
        message = self.mail.receive(kind, self.peer, clock, index)
        specs, tensors = message.tree["specs"], list(message.tensors)
        if specs is not None:
            codec = self._codec(self.into, kind)
            keys = _keys(codec, kind, index, len(specs), samples)
            shapes = [(tuple(shape), getattr(torch, dtype)) for shape, dtype in specs]
            tensors = decode_all(codec, tensors, shapes, keys)
        placed = [tensor.to(self._device) for tensor in tensors]
        return Parcel(placed, message.tree["tree"], message.num_samples, message.meta)

    def tell(self, kind: str, clock: int, word: Mapping[str, Any]) -> None:
        """Send the neighbour a word where no tensor crosses that could carry it."""
        self.mail.send(self.peer, Message(kind, clock=clock, meta=word))

    def hear(self, kind: str, clock: int) -> Mapping[str, Any]:
        """Wait for such a word."""
        return self.mail.receive(kind, self.peer, clock).meta

    def settle(self) -> None:
        """Commit the codec's state: the step has ended, so all that was sent has arrived."""
        for key, ticket in self._open:
            self.out.commit(key, ticket)
        self._open.clear()

    @staticmethod
    def _codec(codec: Codec, kind: str) -> Codec:
        """Return the codec for a message of this kind: scoring leaves the state of training be."""
        while kind == "score" and codec.stateful:
            inner = getattr(codec, "inner", None)
            if not isinstance(inner, Codec):
                break
            codec = inner
        return codec


def _keys(codec: Codec, kind: str, index: int, count: int, samples: Tensor | None) -> list[Key]:
    """Name each tensor of a micro-batch, or each sample of each, for codecs that remember."""
    if samples is not None and getattr(codec, "per", None) == "sample" and codec.stateful:
        numbers = samples.tolist()
        return [_sample_keys(i, numbers) for i in range(count)]
    return [f"{kind}/{index}/{i}" for i in range(count)]


def _sample_keys(tensor: int, numbers: Sequence[int]) -> Key:
    return [(tensor, number) for number in numbers]
