"""How do updates combine? Weights by samples and by staleness, and the sum on tensors."""

from __future__ import annotations

from freewheel.aggregation.staleness import Rule, rule_of, staleness_rules
from freewheel.aggregation.weights import sample_weights

__all__ = ["Rule", "rule_of", "sample_weights", "staleness_rules"]
