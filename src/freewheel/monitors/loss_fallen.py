"""A criterion that training has begun to work: the loss has left where it started."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from freewheel.monitors.base import Evidence, Verdict, criteria, fields_of, next_clock, number


@criteria.register("loss_fallen")
class LossFallen:
    r"""Switch once the mean of the latest losses is well below that of the first ones.

    .. math:: s = \frac{\text{mean of the last } w \text{ losses}}
                       {\text{mean of the first } w \text{ losses}} \le \text{share}

    A new network may sit on a plateau first, where its gradients are mostly noise. What trusts an
    old gradient, or a prediction, does better to wait until it is left. Once fired, it stays so.
    Where the first losses are zero or negative on average it never fires: no share of them is less.

    Args:
        share: of the first losses, in (0, 1).
        window: w, losses in each mean, >= 1.
        loss: name of the evidence.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> from freewheel.monitors.loss_fallen import LossFallen
        >>> rule = LossFallen(share=0.5, window=2)
        >>> [rule.observe(step, {"loss": loss}).verdict for step, loss in
        ...  enumerate([2.0, 2.0, 1.5, 1.0, 0.9])]
        ['unsure', 'unsure', 'unsure', 'stay', 'switch']
    """

    name = "loss_fallen"

    def __init__(self, share: float = 0.8, window: int = 20, loss: str = "loss") -> None:
        if not 0.0 < share < 1.0:
            raise ValueError(f"share must lie in (0, 1), got {share}")
        if window < 1:
            raise ValueError(f"window must be >= 1 losses, got {window}")
        self.share, self.window, self.loss = share, window, loss
        self.reset()

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the evidence that it looks at."""
        return (self.loss,)

    def reset(self) -> None:
        """Forget every loss."""
        self._clock: int | None = None
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=self.window)
        self._fired = False

    def observe(self, clock: int, evidence: Evidence) -> Verdict:
        """Take note of a step and judge; see ``Monitor.observe``."""
        self._clock = next_clock(self.name, clock, self._clock)
        loss = number(evidence, self.loss)
        if loss is not None and len(self._first) < self.window:
            self._first.append(loss)
        elif loss is not None:
            self._last.append(loss)
        if len(self._last) < self.window:
            return Verdict(self.name, "unsure", None, self.share)
        first, last = sum(self._first), sum(self._last)
        share = last / first if first > 0.0 else 1.0
        self._fired = self._fired or share <= self.share
        return Verdict(self.name, "switch" if self._fired else "stay", share, self.share)

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON values for a checkpoint."""
        return {
            "clock": self._clock,
            "first": list(self._first),
            "last": list(self._last),
            "fired": self._fired,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave."""
        clock, first, last, fired = fields_of(self.name, state, "clock", "first", "last", "fired")
        self.reset()
        self._clock, self._fired = clock, bool(fired)
        self._first.extend(float(loss) for loss in first)
        self._last.extend(float(loss) for loss in last)
