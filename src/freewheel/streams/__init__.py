"""Where samples come from: data sets by name, the user's own, and the order they are taken in."""

from __future__ import annotations

# Imported for what they file in the registry.
from freewheel.streams import csv_table as csv_table
from freewheel.streams import images as images
from freewheel.streams import pairs as pairs
from freewheel.streams import synthetic as synthetic
from freewheel.streams import text as text
from freewheel.streams.base import DataSpec, Source, Split, SubsetSplit, TensorSplit
from freewheel.streams.batching import check_finite, split_batch
from freewheel.streams.dataset import DatasetSplit
from freewheel.streams.finding import MissingDataError
from freewheel.streams.iterable import IterableBatch, IterableStream
from freewheel.streams.registry import datasets, load
from freewheel.streams.sampler import Batch, RoundSampler, Sampler, ShardSampler
from freewheel.streams.user import from_user

__all__ = [
    "Batch",
    "DataSpec",
    "DatasetSplit",
    "IterableBatch",
    "IterableStream",
    "MissingDataError",
    "RoundSampler",
    "Sampler",
    "ShardSampler",
    "Source",
    "Split",
    "SubsetSplit",
    "TensorSplit",
    "check_finite",
    "datasets",
    "from_user",
    "load",
    "split_batch",
]
