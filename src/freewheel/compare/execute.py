"""Runs one configuration in real processes and keeps what came of it as a unit."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from freewheel.compare.measure import measure
from freewheel.compare.units import Status, Unit, Units, key_of
from freewheel.config import Config
from freewheel.errors import ConfigError, FreewheelError, NonFiniteError, StoppedError
from freewheel.launch.session import CHILD, Origin, run

#: More of what is read from a run folder before it may be removed.
Extra = Callable[[Path], Mapping[str, Any]]


class Stopped(KeyboardInterrupt):
    """The person stopped a run; ``unit`` says how far it came."""

    def __init__(self, unit: Unit) -> None:
        super().__init__()
        self.unit = unit


class Executor:
    """Runs units, each once.

    Args:
        out: the folder of the comparison; runs go to ``out/runs/KEY``.
        path: folders with the user's modules.
        metric: what is judged.
        units: those done before.
        say: told of each unit as it ends.
        keep_runs: keep the run folders of units that ended well, too.
    """

    def __init__(
        self,
        out: Path,
        path: tuple[str, ...],
        metric: str,
        units: Units,
        say: Callable[[Unit], None],
        keep_runs: bool = False,
    ) -> None:
        self._out = out
        self._origin = Origin(CHILD, path)
        self._metric = metric
        self._units = units
        self._say = say
        self._keep = keep_runs

    def run(
        self, config: Config, arm: str, what: str = "train", extra: Extra | None = None
    ) -> Unit:
        """Run a configuration, or find it among those done.

        Args:
            config: of the run; its ``run.dir`` and ``run.name`` are set here.
            arm: whose run it is.
            what: what it is run for.
            extra: gives more to keep in ``measured``.

        Raises:
            ConfigError: the run reports no such metric.
            Stopped: the person stopped it; the unit is kept as interrupted.
        """
        config, key = self._placed(config)
        done = self._units.done(key)
        if done is not None:
            return replace(done, arm=arm)
        unit = Unit(key, arm, what, config.run.seed, "ok", load=round(os.getloadavg()[0], 2))
        start = time.monotonic()
        try:
            run(config, origin=self._origin, quiet=True)
        except (KeyboardInterrupt, StoppedError):
            unit = replace(unit, status="interrupted")
            raise Stopped(self._keep_unit(config, unit, start, None)) from None
        except FreewheelError as error:
            status: Status = "diverged" if isinstance(error, NonFiniteError) else "crashed"
            unit = replace(unit, status=status, error=str(error))
        return self._keep_unit(config, unit, start, extra)

    def _placed(self, config: Config) -> tuple[Config, str]:
        key = key_of(config)
        place = {"dir": str(self._out / "runs" / key), "name": "run"}
        return config.model_copy(update={"run": config.run.model_copy(update=place)}), key

    def _keep_unit(self, config: Config, unit: Unit, start: float, extra: Extra | None) -> Unit:
        folder = _newest(Path(config.run.dir))
        measured: dict[str, Any] = {}
        if folder is not None:
            measured = measure(folder, self._metric)
            if unit.status == "ok":
                measured |= extra(folder) if extra is not None else {}
        reached = measured.get("metric")
        if unit.status == "ok" and reached is None and unit.what == "train":
            raise ConfigError(
                f"compare.metric = {self._metric!r} is not among what the run reports: "
                f"{', '.join(measured.get('metrics', {})) or 'nothing'}; name one of these, or add "
                "it to eval.metrics"
            )
        keep = self._keep or unit.status != "ok"
        unit = replace(
            unit,
            measured=measured,
            took_s=round(time.monotonic() - start, 2),
            run=str(folder) if keep and folder is not None else None,
        )
        self._units.put(unit)
        if not keep:
            shutil.rmtree(config.run.dir, ignore_errors=True)
        self._say(unit)
        return unit


def _newest(folder: Path) -> Path | None:
    runs = [path for path in folder.glob("*") if (path / "config.toml").exists()]
    return max(runs, key=lambda path: path.stat().st_mtime, default=None)
