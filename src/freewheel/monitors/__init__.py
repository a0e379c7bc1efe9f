"""WHETHER to trust a prediction, or to switch: each monitor logs its statistic and its verdict.

Example:
    >>> from freewheel.monitors import criteria
    >>> rule = criteria.create("any_of", {"members": ["relative_change", "maximum"]})
    >>> rule.observe(1, {"loss": 2.3}).verdict
    'stay'
"""

from freewheel.monitors import (
    backtest,
    combine,
    deviation,
    expected_gain,
    fraction,
    gradients,
    loss_fallen,
    loss_guard,
    relative_change,
    slope,
    stability,
    stragglers,
)
from freewheel.monitors.base import Monitor, Verdict, criteria, monitors

__all__ = [
    "Monitor",
    "Verdict",
    "backtest",
    "combine",
    "criteria",
    "deviation",
    "expected_gain",
    "fraction",
    "gradients",
    "loss_fallen",
    "loss_guard",
    "monitors",
    "relative_change",
    "slope",
    "stability",
    "stragglers",
]
