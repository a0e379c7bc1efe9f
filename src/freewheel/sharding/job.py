"""From a file or folder to a folder of shards, without ever holding the features in memory."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freewheel.errors import ConfigError, DataError
from freewheel.sharding.aside import check_target, written_aside
from freewheel.sharding.base import shard_samples, sharders
from freewheel.sharding.manifest import file_sha256, write_manifest
from freewheel.sharding.materialise import write_data
from freewheel.sharding.metrics import Dispersion, gradient_dispersion
from freewheel.sharding.report import make_report, write_report
from freewheel.sharding.samples import Features, Indices, Samples
from freewheel.sharding.shares import cut
from freewheel.sharding.sources import Source, open_source
from freewheel.sharding.strata import make_strata

#: Told what is being done, how many samples are done, and of how many (None if not known).
Watcher = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Job:
    """What to divide, how, and where to write it.

    Args:
        source: a file or folder that ``open_source`` knows, or a source that is open.
        out: folder to be made.
        strategy: name of a sharder.
        workers: how many.
        seed: of everything random.
        settings: of the sharder.
        speeds: measured speed of each worker, or None.
        features: array or columns that hold the features.
        labels: array, file or column that holds the labels.
        image_size: pixels each way that images are scaled to.
        divide_by: features are divided by this first, such as 255 for pixels.
        embedding: ``"pca"``, ``"raw"``, a model's file, or None for the sharder's default.
        standardise: bring features to unit variance; None means for tables only.
        model: file of a model whose gradients are compared, or None.
        materialise: write each worker's samples too, not only their indices.
        overwrite: replace a folder of shards that is there already.
    """

    source: Path | Source
    out: Path
    strategy: str = "balanced"
    workers: int = 12
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    speeds: Sequence[float] | None = None
    features: str | None = None
    labels: str | None = None
    image_size: int = 32
    divide_by: float = 1.0
    embedding: str | None = None
    standardise: bool | None = None
    model: Path | None = None
    materialise: bool = False
    overwrite: bool = False


def run_job(job: Job, watch: Watcher = lambda _what, _done, _total: None) -> dict[str, Any]:
    """Shard a source: write index files, manifest, report, and data if asked for.

    The folder appears whole or not at all. Memory holds the labels, one batch of rows, and what the
    strategy needs, not the features.

    Args:
        job: what to do.
        watch: told of progress.

    Returns:
        What ``report.json`` says.

    Raises:
        ConfigError: a setting is wrong, or the folder is there already.
        DataError: the source is missing, empty or broken.
        ModelError: a model cannot be used.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from freewheel.sharding.job import Job, run_job
        >>> with tempfile.TemporaryDirectory() as home:
        ...     source = Path(home) / "data.npz"
        ...     np.savez(source, features=np.eye(4), labels=np.array([0, 0, 1, 1]))
        ...     report = run_job(Job(source, Path(home) / "out", "stratified", workers=2))
        >>> report["labels"]["counts"]
        [[1, 1], [1, 1]]
    """
    check_target(job.out, job.overwrite)
    if not 0 < abs(job.divide_by) < np.inf:
        raise ConfigError(f"features are divided by {job.divide_by}; it must not be 0")
    sharders.get(job.strategy)
    job.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".freewheel-shard-", dir=job.out.parent) as scratch:
        source = _opened(job, Path(scratch), watch)
        whole = source.samples()
        tracked = None
        if whole.features is not None:
            tracked = _Tracked(whole.features, job.divide_by, watch)
        samples = Samples(whole.num_samples, whole.labels, tracked)
        settings = _settings(job, source)
        sharder = sharders.create(job.strategy, settings)
        with written_aside(job.out, job.overwrite) as folder:
            shards = shard_samples(sharder, samples, job.workers, job.seed, job.speeds)
            data = write_data(folder, samples, shards) if job.materialise else []
            shown = {**settings, **({"embedding": job.embedding} if job.embedding else {})}
            origin: dict[str, Any] = {
                "name": source.path.name,
                "kind": source.kind,
                "sha256": source.sha256(),
                "divide_by": job.divide_by,
            }
            if source.labels_path is not None:
                labels_sha256 = file_sha256(source.labels_path)
                origin |= {"labels": source.labels_path.name, "labels_sha256": labels_sha256}
            write_manifest(
                folder,
                shards,
                job.strategy,
                settings=shown,
                seed=job.seed,
                speeds=job.speeds,
                source=origin,
                num_samples=samples.num_samples,
                data=data,
            )
            report = make_report(
                samples,
                shards,
                kind=settings.get("kind", "auto"),
                bins=settings.get("bins", 10),
                standardise=source.table if job.standardise is None else job.standardise,
                gradients=_gradients(job, samples, shards, settings),
                strategy=job.strategy,
                settings=shown,
                seed=job.seed,
                source=source.path.name,
            )
            write_report(folder, report)
    return report


def _opened(job: Job, scratch: Path, watch: Watcher) -> Source:
    if isinstance(job.source, Source):
        if job.features is not None or job.labels is not None:
            raise ConfigError(
                f"{str(job.source.path)!r} has inputs and targets of its own; leave out the names "
                "of features and labels"
            )
        return job.source
    return open_source(
        job.source,
        scratch,
        features=job.features,
        labels=job.labels,
        image_size=job.image_size,
        progress=lambda done, total: watch("reading", done, total),
    )


def _settings(job: Job, source: Source) -> dict[str, Any]:
    settings = dict(job.settings)
    known = inspect.signature(sharders.get(job.strategy)).parameters
    if job.standardise is not None:
        settings.setdefault("standardise", job.standardise)
    elif source.table and "standardise" in known:
        settings.setdefault("standardise", True)
    if job.embedding in ("pca", "raw"):
        settings["embedding"] = job.embedding
    elif job.embedding is not None:
        from freewheel.sharding.model_file import load_model, model_features

        settings["embedding"] = model_features(load_model(job.embedding))
    return settings


def _gradients(
    job: Job, samples: Samples, shards: Sequence[Indices], settings: Mapping[str, Any]
) -> tuple[Dispersion, Dispersion] | None:
    if job.model is None:
        return None
    if samples.labels is None or samples.features is None:
        raise DataError("gradient dispersion needs features and labels; leave out the model")
    from torch.nn import functional

    from freewheel.sharding.model_file import load_model

    strata = make_strata(samples.labels, samples.num_samples, settings.get("kind", "auto"))
    losses = {
        "classes": functional.cross_entropy,
        "regression": lambda outputs, targets: functional.mse_loss(outputs.reshape(-1), targets),
        "multilabel": functional.binary_cross_entropy_with_logits,
    }
    targets: NDArray[Any] = strata.codes.astype(np.int64)
    if strata.targets is not None:
        targets = strata.targets.astype(np.float32)
        targets = targets[:, 0] if strata.kind == "regression" else targets
    order = np.random.default_rng(job.seed).permutation(samples.num_samples)
    used = min(samples.num_samples, sum(len(shard) for shard in shards))
    sizes = np.array([len(shard) for shard in shards])
    random = cut(order, sizes if used == sizes.sum() else sizes * used // sizes.sum())
    ours, other = gradient_dispersion(
        load_model(job.model), losses[strata.kind], samples.features, targets, [shards, random]
    )
    return ours, other


class _Tracked:
    """Features in a fixed scale, telling of every batch that is read."""

    def __init__(self, features: Features, divide_by: float, watch: Watcher) -> None:
        self._features, self._divide_by, self._watch = features, divide_by, watch
        self._passes = 0

    @property
    def num_samples(self) -> int:
        return self._features.num_samples

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return self._features.sample_shape

    def batches(self, num_rows: int) -> Iterator[NDArray[Any]]:
        self._passes += num_rows > 1
        done = 0
        for batch in self._features.batches(num_rows):
            yield batch if self._divide_by == 1.0 else batch / self._divide_by
            done += len(batch)
            if num_rows > 1:  # a single row only shows what shape a model gives
                self._watch(f"pass {self._passes}", done, self.num_samples)
