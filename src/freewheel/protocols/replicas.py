"""What replica machines are told and what they ask for: the replica half of the waist.

``clock`` counts the local steps a worker has finished, ``version`` the updates the servers have
applied. In the layout ``"server"`` a worker's push, its pull, or both in one message are one
request, and the reply to it is sent when the central machine says ``Grant``: permission costs no
message of its own, and a withheld grant is how a protocol makes a worker wait. In the layout
``"replicas"`` the same two actions are a collective, and its end is the grant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

#: The few numbers that monitors report about one step or push, e.g. ``{"loss": 0.31}``. A push is
#: refused when ``"non_finite"`` (how many of its values are NaN or infinite) is above zero;
#: ``"duration_s"`` is how long its steps took.
Evidence = Mapping[str, float]

#: What a push carries: a gradient for the server's optimizer, a change that the worker's own
#: optimizer made (``local - pulled``), the worker's parameters, or nothing: the change that both
#: ends predict, which is folded as a delta.
Kind = Literal["gradient", "delta", "parameters", "predicted"]

#: The ``[layout] kind`` that a protocol runs in.
Layout = Literal["pipeline", "replicas", "server"]


@dataclass(frozen=True, slots=True)
class Push:
    """One push as the central machine knows it; ``(worker, clock)`` names it.

    Args:
        worker: rank of the sender.
        clock: the sender's clock, the steps in this push included.
        based_on: version of the parameters that the first of these steps used.
        num_samples: samples behind it since the sender's previous push.
        kind: what its tensors are.
    """

    worker: int
    clock: int
    based_on: int
    num_samples: int
    kind: Kind = "gradient"


@dataclass(frozen=True, slots=True)
class Granted:
    """Local event: every step that begins at a clock <= ``clock`` may start."""

    clock: int
    version: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Local event: no samples are left at ``clock``; push what was not pushed, then leave."""

    clock: int


@dataclass(frozen=True, slots=True)
class Start:
    """Local action: begin the step that leads from ``clock`` to ``clock + 1``."""

    clock: int


@dataclass(frozen=True, slots=True)
class SendPush:
    """Local action: push what has been computed since the last push, as ``kind``."""

    kind: Kind = "gradient"


@dataclass(frozen=True, slots=True)
class SendPull:
    """Local action: ask for parameters; on arrival ``own = (1 - mix) * own + mix * pulled``."""

    mix: float = 1.0


@dataclass(frozen=True, slots=True)
class SendReport:
    """Local action: send what is measured of this worker now, and no tensor; ask for a grant."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Central event: a worker is there, at ``clock``; all initial ones come before any push."""

    rank: int
    clock: int = 0


@dataclass(frozen=True, slots=True)
class Left:
    """Central event: a worker ended or died; pushes of its that arrived stay valid."""

    rank: int


@dataclass(frozen=True, slots=True)
class Pushed:
    """Central event: a push arrived, ``since_s`` seconds after the sender's last one (or join)."""

    push: Push
    evidence: Evidence
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pulled:
    """Central event: a worker at ``clock`` asks for parameters and pushes nothing."""

    rank: int
    clock: int


@dataclass(frozen=True, slots=True)
class Reported:
    """Central event: a worker at ``clock`` asks for a grant and tells what it measured.

    Args:
        rank: of the worker.
        clock: steps finished.
        num_samples: since its last push.
        evidence: numbers that the protocol's ``watch`` names; none where nothing is measured.
        sketch: of a vector, linear in it, so that the mean of sketches is that of the mean.
    """

    rank: int
    clock: int
    num_samples: int = 0
    evidence: Evidence = field(default_factory=dict)
    sketch: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Reduced:
    """Central event, layout "replicas": the collective of ``clock`` ended; evidence is its mean."""

    clock: int
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Fold:
    """Central action: one update, one version.

    With ``u = sum_i weights[i] * push_i``, the server's optimizer steps with ``u`` as its gradient
    (gradients); ``params += u`` (deltas); ``params = (1 - sum_i weights[i]) * params + u``
    (parameters).
    """

    pushes: tuple[Push, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Central action: a push is not folded, and why; the reason is counted and shown."""

    push: Push
    reason: str


@dataclass(frozen=True, slots=True)
class Grant:
    """Central action: answer ``rank``'s request; steps from clocks <= ``clock`` may start."""

    rank: int
    clock: int


@dataclass(frozen=True, slots=True)
class SwitchTopology:
    """Central action: exchange as ``to`` from each worker's next push on (nothing in flight)."""

    to: Layout
