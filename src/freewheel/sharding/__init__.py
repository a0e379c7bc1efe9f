"""Which sample goes to whom: shards of a data set in which every worker sees the same distribution.

``assign`` is all that most people need; it loads numpy and scikit-learn, no torch, and nothing else
of freewheel. What it returns serves any framework. See also ``metrics`` (how alike shards are),
``manifest`` (shards on disk), ``sampler`` (shards in a PyTorch ``DataLoader``), and ``sources``
(files that do not fit in memory).
"""

from __future__ import annotations

from freewheel.sharding.balanced import Balanced
from freewheel.sharding.base import Sharder, ShardingWarning, assign, shard_samples, sharders
from freewheel.sharding.class_cluster import ClassCluster
from freewheel.sharding.distribution_aware import DistributionAware
from freewheel.sharding.manifest import Manifest, load_manifest, save_manifest
from freewheel.sharding.samples import ArrayFeatures, Features, Samples
from freewheel.sharding.simple import Contiguous, Random
from freewheel.sharding.skew import Dirichlet, LabelSorted
from freewheel.sharding.stratified import Stratified

__all__ = [
    "ArrayFeatures",
    "Balanced",
    "ClassCluster",
    "Contiguous",
    "Dirichlet",
    "DistributionAware",
    "Features",
    "LabelSorted",
    "Manifest",
    "Random",
    "Samples",
    "Sharder",
    "ShardingWarning",
    "Stratified",
    "assign",
    "load_manifest",
    "save_manifest",
    "shard_samples",
    "sharders",
]
