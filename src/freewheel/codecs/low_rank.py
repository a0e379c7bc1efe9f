"""Low-rank matrices by a warm-started power iteration (PowerSGD, between two ends)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

from freewheel.codecs.base import (
    Encoded,
    FloatCodec,
    Key,
    Layout,
    codecs,
    largest_magnitude,
    work_dtype,
)
from freewheel.codecs.grouping import group_shape
from freewheel.codecs.keys import freeze, pack_rows, part_of, unpack_rows
from freewheel.codecs.parse import CodecSpec
from freewheel.codecs.rounding import exponent, restore, scale_by_power
from freewheel.codecs.wrapper import stateless
from freewheel.errors import ConfigError, nearest

_MATRICES = ("sample", "row")


@codecs.register("low_rank")
class LowRank(FloatCodec):
    """Send a matrix X (m, n) as P (m, r) and Q (n, r) with P orthonormal; P Qᵀ arrives.

    Each call does ``num_iterations`` of P = orth(X Q), Q = Xᵀ P, starting from the Q of the last
    call under the same key: for tensors that change slowly this tracks the best rank-r matrix.
    Biased; wants ``error_feedback`` where updates add up.

    Bytes: those of ``factors`` for (m, r) and for (n, r), plus 2, with r at most min(m, n): with
    identity ``4 r (m + n) + 2``. Tensors of fewer than two dimensions pass untouched.

    The state (Q by key) only helps the sender to a better start; nothing that the other end must
    hold, so loss and rollback need no care. It belongs in a checkpoint for exact resumption.

    Non-finite values are refused.

    Args:
        rank: r.
        num_iterations: power iterations a call.
        matrix: rows of X are ``"sample"`` (first dimension) or ``"row"`` (all but the last).
        factors: the codec of P and Q, itself without state.
        seed: of the first start under each key.

    Raises:
        ConfigError: a setting is out of range.

    Example:
        >>> import torch
        >>> from freewheel.codecs import LowRank
        >>> codec, x = LowRank(rank=1), torch.outer(torch.arange(1.0, 9.0), torch.ones(16))
        >>> bool(torch.allclose(codec.decode(codec.encode(x), x.shape, x.dtype), x, rtol=1e-5))
        True
        >>> codec.num_bytes((8, 16), torch.float32)
        98

    References:
        Vogels, Karimireddy and Jaggi, "PowerSGD: Practical low-rank gradient compression for
        distributed optimization", 2019.
    """

    name = "low_rank"
    stateful = True

    def __init__(
        self,
        rank: int = 2,
        num_iterations: int = 1,
        matrix: str = "sample",
        factors: CodecSpec = "identity",
        seed: int = 0,
    ) -> None:
        if rank < 1 or num_iterations < 1:
            raise ConfigError(
                f"rank and num_iterations must be >= 1, got {rank} and {num_iterations}"
            )
        if matrix not in _MATRICES:
            raise ConfigError(f"matrix is unknown: {matrix!r}{nearest(matrix, _MATRICES)}")
        self.rank = rank
        self.num_iterations = num_iterations
        self.matrix = matrix
        self.factors = stateless(factors, "factors")
        self.seed = seed
        self._starts: dict[Hashable, Tensor] = {}

    def reset(self) -> None:
        """Forget every start."""
        self._starts.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the start of each key."""
        return {"starts": pack_rows((key, 0, q) for key, q in self._starts.items())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the start of each key."""
        rows = unpack_rows(part_of(state, "starts", self.name))
        self._starts = {key: q for key, _, q in rows}

    def _factor_shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the shapes of P and Q."""
        m, n = group_shape(shape, self.matrix)
        return (m, min(self.rank, m, n)), (n, min(self.rank, m, n))

    def _layout(self, shape: tuple[int, ...], dtype: torch.dtype) -> Layout:
        work = work_dtype(dtype)
        parts = (part for s in self._factor_shapes(shape) for part in self.factors.layout(s, work))
        return (*parts, ((1,), torch.int16))

    def _encode(self, tensor: Tensor, key: Key, generator: torch.Generator | None) -> Encoded:
        p_shape, q_shape = self._factor_shapes(tuple(tensor.shape))
        x_MN = tensor.to(work_dtype(tensor.dtype)).reshape(p_shape[0], q_shape[0]).contiguous()
        biggest = largest_magnitude(tensor, self.name, key)
        power = exponent(biggest)
        x_MN = scale_by_power(x_MN, -power)
        q_NR = self._starts.get(freeze(key))
        if q_NR is None or q_NR.shape != q_shape:
            start = torch.Generator().manual_seed(self.seed)
            q_NR = torch.randn(q_shape, generator=start, dtype=x_MN.dtype)
        q_NR = q_NR.to(x_MN)
        for _ in range(self.num_iterations):
            p_MR = torch.linalg.qr(x_MN @ q_NR).Q
            q_NR = x_MN.T @ p_MR
        if biggest > 0:  # from Q = 0 the iteration would begin in an arbitrary direction
            self._starts[freeze(key)] = q_NR
        p = self.factors.encode(p_MR, generator=generator)
        q = self.factors.encode(q_NR, generator=generator)
        head = torch.full((1,), power, dtype=torch.int16, device=x_MN.device)
        return Encoded((*p.payload, *q.payload, head))

    def _decode(
        self, encoded: Encoded, shape: tuple[int, ...], dtype: torch.dtype, key: Key
    ) -> Tensor:
        work = work_dtype(dtype)
        p_shape, q_shape = self._factor_shapes(shape)
        *parts, head = encoded.payload
        num_p = len(self.factors.layout(p_shape, work))
        p_MR = self.factors.decode(Encoded(tuple(parts[:num_p])), p_shape, work)
        q_NR = self.factors.decode(Encoded(tuple(parts[num_p:])), q_shape, work)
        # |X| < 1 before scaling, and no entry of P Qᵀ exceeds the norm of a column of X.
        headroom = exponent(float(p_shape[0]))
        return restore((p_MR @ q_NR.T).view(shape), int(head), headroom, dtype)
