"""What is trained: models as layers, cut into stages; and a small zoo."""

from __future__ import annotations

from freewheel.models.balance import LayerCost, balance
from freewheel.models.checkpointing import checkpointed
from freewheel.models.costs import measure_costs
from freewheel.models.layers import LayeredModel, LayerSpec
from freewheel.models.lazy import on_meta
from freewheel.models.partition import Partition, partition
from freewheel.models.stage import StageModule

__all__ = [
    "LayerCost",
    "LayerSpec",
    "LayeredModel",
    "Partition",
    "StageModule",
    "balance",
    "checkpointed",
    "measure_costs",
    "on_meta",
    "partition",
]
