"""Shards on disk: a file of indices per worker, and a manifest whose hashes vouch for them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from freewheel.errors import ConfigError, DataError
from freewheel.sharding.aside import written_aside
from freewheel.sharding.samples import Indices

FILE = "manifest.json"
FORMAT = "freewheel.shards"
VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """Shards that were read back and found to be what was written.

    Args:
        path: of the manifest file.
        strategy: name of the sharder.
        settings: its settings.
        seed: its seed.
        speeds: of the workers, or None.
        source_name: what was divided.
        source_sha256: hash of its content, empty if it was an array in memory.
        num_samples: samples of the source.
        shards: for each rank the indices of its samples, ascending.
        data: for each rank the files of its materialised samples, relative to the manifest; empty
            unless they were asked for.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from freewheel.sharding import load_manifest, save_manifest
        >>> with tempfile.TemporaryDirectory() as home:
        ...     path = save_manifest(Path(home) / "out", [np.arange(2), np.arange(2, 3)], "random")
        ...     manifest = load_manifest(path)
        >>> manifest.num_workers, manifest.indices(0).tolist()
        (2, [0, 1])
    """

    path: Path
    strategy: str
    settings: Mapping[str, Any]
    seed: int
    speeds: tuple[float, ...] | None
    source_name: str
    source_sha256: str
    num_samples: int
    shards: tuple[Indices, ...]
    data: tuple[Mapping[str, str], ...] = field(default=())

    @property
    def num_workers(self) -> int:
        """Number of shards."""
        return len(self.shards)

    def indices(self, rank: int) -> Indices:
        """Return the indices of the samples of worker ``rank``, ascending.

        Raises:
            ConfigError: there is no such rank.
        """
        if not 0 <= rank < self.num_workers:
            raise ConfigError(
                f"rank must be 0 to {self.num_workers - 1}, got {rank}: {self.path} was made for "
                f"{self.num_workers} workers; shard again with workers = the number you train with"
            )
        return self.shards[rank]

    def check_source(self, num_samples: int, sha256: str = "") -> None:
        """Refuse a data set that is not the one that was divided.

        Args:
            num_samples: samples it has.
            sha256: hash of its content, where known.

        Raises:
            DataError: the number of samples or the hash differs.
        """
        if num_samples != self.num_samples:
            raise DataError(
                f"{self.path} divides {self.num_samples} samples of {self.source_name!r}, but the "
                f"data has {num_samples}; shard this data, or train on the other"
            )
        if sha256 and self.source_sha256 and sha256 != self.source_sha256:
            raise DataError(
                f"{self.path} was made from {self.source_name!r} with SHA-256 "
                f"{self.source_sha256[:12]}..., but the data has {sha256[:12]}...; the data was "
                "changed: shard it again"
            )


def save_manifest(
    directory: str | Path,
    shards: Sequence[Indices],
    strategy: str,
    *,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    speeds: Sequence[float] | None = None,
    source_name: str = "array",
    source_sha256: str = "",
    num_samples: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Write shards that ``assign`` returned; return the path of the manifest.

    The folder appears whole or not at all, and its bytes depend on the arguments alone.

    Args:
        directory: to be made.
        shards: for each worker the indices of its samples.
        strategy: name of the sharder.
        settings: its settings.
        seed: its seed.
        speeds: of the workers.
        source_name: what was divided.
        source_sha256: hash of its content.
        num_samples: samples of the source; by default one more than the largest index.
        overwrite: replace a folder of shards that is there already.

    Raises:
        ConfigError: the folder exists.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from freewheel.sharding import save_manifest
        >>> with tempfile.TemporaryDirectory() as home:
        ...     save_manifest(Path(home) / "out", [np.arange(2), np.arange(2, 3)], "random").name
        'manifest.json'
    """
    with written_aside(Path(directory), overwrite) as aside:
        write_manifest(
            aside,
            shards,
            strategy,
            settings=settings,
            seed=seed,
            speeds=speeds,
            source={"name": source_name, "sha256": source_sha256},
            num_samples=num_samples,
        )
    return Path(directory) / FILE


def write_manifest(
    folder: Path,
    shards: Sequence[Indices],
    strategy: str,
    *,
    settings: Mapping[str, Any] | None,
    seed: int,
    speeds: Sequence[float] | None,
    source: Mapping[str, Any],
    num_samples: int | None = None,
    data: Sequence[Sequence[str]] = (),
) -> None:
    """Write index files and manifest into a folder that the caller puts in place afterwards.

    Args:
        folder: where to write.
        shards: as for ``save_manifest``.
        strategy: as for ``save_manifest``.
        settings: as for ``save_manifest``; what JSON cannot hold is written as its ``repr``.
        seed: as for ``save_manifest``.
        speeds: as for ``save_manifest``.
        source: anything that tells what was divided; ``name`` and ``sha256`` at least.
        num_samples: as for ``save_manifest``.
        data: for each worker the files of its materialised samples, already in ``folder``.
    """
    entries = []
    for rank, shard in enumerate(shards):
        file = folder / f"shard-{rank:05d}.npy"
        np.save(file, np.asarray(shard, dtype="<i8"), allow_pickle=False)
        entry: dict[str, Any] = {
            "rank": rank,
            "num_samples": len(shard),
            "file": file.name,
            "sha256": file_sha256(file),
        }
        if data:
            entry["data"] = {name: file_sha256(folder / name) for name in data[rank]}
        entries.append(entry)
    largest = max((int(shard.max()) for shard in shards if len(shard)), default=-1)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "strategy": strategy,
        "settings": dict(settings or {}),
        "seed": seed,
        "workers": len(shards),
        "speeds": None if speeds is None else [float(speed) for speed in speeds],
        "num_samples": largest + 1 if num_samples is None else num_samples,
        "source": dict(source),
        "shards": entries,
    }
    (folder / FILE).write_text(json.dumps(manifest, indent=1, default=repr) + "\n")


def load_manifest(path: str | Path) -> Manifest:
    """Read a manifest and its index files, and check every hash and every index.

    Args:
        path: of ``manifest.json``, or of the folder it is in.

    Raises:
        DataError: something is missing, changed, or not a manifest; the file is named.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from freewheel.sharding import load_manifest, save_manifest
        >>> with tempfile.TemporaryDirectory() as home:
        ...     _ = save_manifest(Path(home) / "out", [np.arange(2), np.arange(2, 5)], "random")
        ...     load_manifest(Path(home) / "out").indices(1).tolist()
        [2, 3, 4]
    """
    file = Path(path)
    if file.is_dir():
        file = file / FILE
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise DataError(
            f"there is no manifest at {file}; make one with `freewheel shard`"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read as a manifest: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataError(f"{file} is no manifest of shards: it has no format {FORMAT!r}")
    if found.get("version") != VERSION:
        raise DataError(
            f"{file} has version {found.get('version')!r} and this freewheel reads {VERSION}; "
            "shard again with this version"
        )
    try:
        num_samples = int(found["num_samples"])
        shards = tuple(_read_shard(file, entry, num_samples) for entry in found["shards"])
        data = tuple(_check_data(file, entry) for entry in found["shards"] if "data" in entry)
        return Manifest(
            path=file,
            strategy=found["strategy"],
            settings=found["settings"],
            seed=found["seed"],
            speeds=None if found["speeds"] is None else tuple(found["speeds"]),
            source_name=found["source"]["name"],
            source_sha256=found["source"]["sha256"],
            num_samples=num_samples,
            shards=shards,
            data=data,
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"{file} lacks or misspells {error}; shard again") from error


def _read_shard(manifest: Path, entry: Mapping[str, Any], num_samples: int) -> Indices:
    file = _inside(manifest, entry["file"])
    _check_hash(file, entry["sha256"])
    indices = np.load(file, allow_pickle=False)
    ascending = indices.ndim == 1 and bool((np.diff(indices) > 0).all())
    within = not len(indices) or (indices[0] >= 0 and indices[-1] < num_samples)
    if not (ascending and within and len(indices) == entry["num_samples"]):
        raise DataError(
            f"{file} does not hold {entry['num_samples']} ascending indices below {num_samples}; "
            "shard again"
        )
    found: Indices = indices.astype(np.int64)
    return found


def _check_data(manifest: Path, entry: Mapping[str, Any]) -> Mapping[str, str]:
    for name, expected in entry["data"].items():
        _check_hash(_inside(manifest, name), expected)
    return {Path(name).stem.rpartition("-")[2]: name for name in entry["data"]}


def _inside(manifest: Path, name: str) -> Path:
    if Path(name).name != name:
        raise DataError(f"{manifest} names the file {name!r}, which is not in its folder; refused")
    return manifest.parent / name


def _check_hash(file: Path, expected: str) -> None:
    if not file.is_file():
        raise DataError(f"{file} is missing; the manifest names it: shard again")
    found = file_sha256(file)
    if found != expected:
        raise DataError(
            f"{file} was changed: SHA-256 {found[:12]}..., the manifest says {expected[:12]}...; "
            "restore it or shard again"
        )


def file_sha256(file: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from freewheel.sharding.manifest import file_sha256
        >>> with tempfile.TemporaryDirectory() as home:
        ...     _ = (Path(home) / "empty").write_bytes(b"")
        ...     file_sha256(Path(home) / "empty")[:8]
        'e3b0c442'
    """
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
