r"""The variance of workers' models, from a few numbers that each tells of its own.

With :math:`d_i` the change of worker i since all last had the same parameters,

.. math:: V = \overline{\|d_i\|^2} - \|\overline{d_i}\|^2

is the mean squared distance of the models from their mean. The first term is exact from one number
a worker. The second is estimated from something linear in d, whose mean is that of the mean:

======== ============================================== ===========================================
linear   :math:`\langle \xi, d_i \rangle`, :math:`\xi`  :math:`\langle \xi, \bar d \rangle^2` is
         the unit vector of the last synchronised move  never above it: V is never underestimated
sketch   an AMS sketch of d_i                           within about :math:`\sqrt{2/columns}`
======== ============================================== ===========================================

References:
    Theologitis, Frangias, Anestis, Samoladas, Deligiannakis, "Communication-Efficient Distributed
    Deep Learning via Federated Dynamic Averaging", 2025.
    Alon, Matias, Szegedy, "The space complexity of approximating the frequency moments", 1996.
    Cormode, Garofalakis, "Sketching streams through the net: distributed approximate query
    tracking", 2005 (one counter a row, found by a hash).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from freewheel.monitors.base import Evidence, number


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker told.

    Args:
        weight: of the worker in the mean, >= 0, such as its samples.
        evidence: ``sq_norm``, the squared norm of its change, and ``along``, the change along the
            last move, where the worker knows that move.
        sketch: of the change; empty where there is none.
    """

    weight: float
    evidence: Evidence
    sketch: Sequence[float] = ()


def model_variance(shares: Sequence[Share], rows: int = 0) -> float:
    """Return an estimate of the variance of models; infinite where a worker told nothing finite.

    Args:
        shares: one a worker.
        rows: of the sketches; 0 where there are none: then the linear estimate is used.

    Example:
        >>> from freewheel.monitors.model_variance import Share, model_variance
        >>> model_variance([Share(1.0, {"sq_norm": 4.0, "along": 2.0}),
        ...                 Share(1.0, {"sq_norm": 4.0, "along": 0.0})])
        3.0
    """
    total = sum(share.weight for share in shares)
    if not total:
        return 0.0
    weights = [share.weight / total for share in shares]
    squares = [number(share.evidence, "sq_norm") for share in shares]
    mean_square = 0.0
    for weight, square in zip(weights, squares, strict=True):
        if square is None:
            return math.inf
        mean_square += weight * square
    if rows:
        sketches = np.asarray([share.sketch for share in shares], dtype=np.float64)
        mean = np.asarray(weights) @ sketches
        return mean_square - float(np.median((mean.reshape(rows, -1) ** 2).sum(1)))
    alongs = [number(share.evidence, "along") for share in shares]
    # one that does not know the last move, as a newcomer, would make the bound wrong
    known = all(along is not None for along in alongs)
    mean_along = sum(w * (a or 0.0) for w, a in zip(weights, alongs, strict=True)) if known else 0.0
    return mean_square - mean_along**2


class AmsSketch:
    """A short linear summary of long vectors, from which their norm can be estimated.

    Each row adds every value, with a sign of its own, to one of its counters; the squared norm of a
    row is the squared norm of the vector up to a relative error of about ``sqrt(2 / columns)``, and
    the median over rows makes large errors rare.

    Args:
        size: P, of the vectors.
        rows: counters' rows, >= 1, an odd number.
        columns: counters in each, >= 1.
        seed: all that compare sketches need the same.

    Example:
        >>> import torch
        >>> from freewheel.monitors.model_variance import AmsSketch
        >>> sketch, x = AmsSketch(1000, rows=5, columns=250), torch.ones(1000)
        >>> 800 < float((sketch(x) ** 2).sum(1).median()) < 1200
        True
    """

    def __init__(self, size: int, rows: int, columns: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows, self.columns = rows, columns
        self._places = torch.randint(columns, (rows, size), generator=generator)
        self._signs = torch.randint(2, (rows, size), generator=generator, dtype=torch.int8)
        self._signs.mul_(2).sub_(1)

    def __call__(self, vector: Tensor) -> Tensor:
        """Return the counters ``[rows, columns]`` of a vector ``[P]``, in its dtype."""
        counters = vector.new_zeros(self.rows, self.columns)
        return counters.scatter_add_(1, self._places, self._signs * vector)


class VarianceReporter:
    """What a worker tells of its change since the last synchronisation.

    Args:
        rows: of the sketch; 0 for the linear estimate.
        columns: of the sketch.

    Example:
        >>> import torch
        >>> from freewheel.monitors.model_variance import VarianceReporter
        >>> reporter = VarianceReporter()
        >>> reporter.synchronised([torch.zeros(2)])
        >>> reporter.synchronised([torch.tensor([0.0, 2.0])])
        >>> reporter.report([torch.tensor([3.0, 6.0])])
        tensor([25.,  4.])
    """

    def __init__(self, rows: int = 0, columns: int = 0) -> None:
        self._rows, self._columns = rows, columns
        self._sketch: AmsSketch | None = None
        self._synced: list[Tensor] = []
        self._move: list[Tensor] | None = None

    def synchronised(self, state: Sequence[Tensor]) -> None:
        """Take note of the parameters that all have now, in parts; they are kept, not copied."""
        before, self._synced = self._synced, list(state)
        if self._rows or not before:
            return
        move = list(torch._foreach_sub(self._synced, before))
        norm = math.sqrt(sum(float(part @ part) for part in move))
        self._move = list(torch._foreach_div(move, norm)) if norm > 0.0 else None

    def report(self, state: Sequence[Tensor]) -> Tensor:
        """Return what to send, ``[2 + rows * columns]`` in 32 bits: see ``read_report``.

        Args:
            state: the worker's parameters as they are now, in the same parts.
        """
        change = list(torch._foreach_sub(list(state), self._synced))
        square = sum(float(part @ part) for part in change)
        along = math.nan
        if self._move is not None:
            along = sum(float(m @ c) for m, c in zip(self._move, change, strict=True))
        numbers = torch.tensor([square, along], dtype=torch.float32)
        if not self._rows:
            return numbers
        whole = torch.cat(change) if len(change) > 1 else change[0]
        if self._sketch is None:
            self._sketch = AmsSketch(len(whole), self._rows, self._columns)
        return torch.cat([numbers, self._sketch(whole).reshape(-1).float()])


def read_report(report: Tensor) -> tuple[dict[str, float], tuple[float, ...]]:
    """Return the evidence and the sketch of a report.

    Example:
        >>> import torch
        >>> from freewheel.monitors.model_variance import read_report
        >>> read_report(torch.tensor([25.0, float("nan"), 1.0]))
        ({'sq_norm': 25.0}, (1.0,))
    """
    square, along, *sketch = report.tolist()
    evidence = {"sq_norm": square}
    if not math.isnan(along):
        evidence["along"] = along
    return evidence, tuple(sketch)
