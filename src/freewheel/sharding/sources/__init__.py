"""Files to be divided, read in batches: arrays, idx, CSV, Parquet, folders of images."""

from __future__ import annotations

from freewheel.sharding.sources.base import Source
from freewheel.sharding.sources.open import open_source

__all__ = ["Source", "open_source"]
