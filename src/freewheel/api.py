"""Training from a Python script: the same runs as ``freewheel train``, with the user's objects."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from freewheel.config import Config, load_config, parse_config
from freewheel.errors import ConfigError
from freewheel.launch.earlier import find_run, without_stale_cuts
from freewheel.launch.roles import work_of
from freewheel.launch.session import CHILD, Origin, run
from freewheel.launch.session import resume as go_on
from freewheel.runtime.checkpoints.final import load_final
from freewheel.runtime.job import Job
from freewheel.runtime.pieces import Given
from freewheel.runtime.updates import MakeOptimizer
from freewheel.runtime.worker import run_worker


@dataclass(frozen=True)
class TrainResult:
    """A finished run.

    Args:
        run_dir: the run folder.
        summary: what ``summary.json`` says.
    """

    run_dir: Path
    summary: Mapping[str, Any]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the trained parameters and buffers of the whole model, by name."""
        return load_final(self.run_dir)


#: Runs the user's script again; what follows is the script and its arguments.
SCRIPT = (sys.executable, "-m", "freewheel.launch.rerun")

_finished: list[str] = []


def train(
    model: Any = None,
    data: Any = None,
    *,
    loss: Callable[[Any, Any], Tensor] | Mapping[str, Any] | None = None,
    optimizer: MakeOptimizer | Mapping[str, Any] | None = None,
    schedule: Callable[..., Any] | Mapping[str, Any] | None = None,
    config: Config | Mapping[str, Any] | str | Path | None = None,
    resume: str | Path | None = None,
    quiet: bool = False,
    **sections: Mapping[str, Any],
) -> TrainResult:
    """Train a model over several processes of this machine.

    The objects may be anything: each process runs the calling script again, up to this call, and
    takes its part from there, so nothing is pickled, a lambda is no obstacle, and the script needs
    no ``if __name__ == "__main__"``. Functions that can be imported from a module are imported
    instead, and the script is not run again.

    Args:
        model: an ``nn.Module``, a list of layers, or a function that makes either; default: what
            ``[model]`` names. Like the next four it may also be a dict of settings for its section:
            ``model={"name": "mlp"}``.
        data: (train, test) data sets or tensor pairs, a ``Source``, or a function that makes them;
            default: what ``[data]`` names.
        loss: maps (output, targets) to the mean loss over the samples; default: ``[loss]``.
        optimizer: makes an optimizer of a list of parameters; default: ``[optimizer]``.
        schedule: makes a learning-rate schedule of an optimizer; default: ``[schedule]``.
        config: a ``Config``, nested values as in TOML, or the path of a TOML file.
        resume: a run folder, to go on with that run from its newest checkpoint, or one of its
            checkpoints; give the same objects as before. The configuration is the run's own, with
            ``sections`` over it.
        quiet: show no progress.
        sections: values for single sections, over ``config``: ``layout={"stages": 3}``.

    Returns:
        The result, once training has ended.

    Raises:
        FreewheelError: what went wrong; see the class for its exit code.

    Example:
        >>> import freewheel
        >>> result = freewheel.train(
        ...     model={"name": "mlp"}, data={"name": "digits"}, train={"steps": 5},
        ...     run={"dir": "/tmp/freewheel-doctest"}, quiet=True)
        >>> result.summary["status"], result.summary["world_size"]
        ('ok', 2)
    """
    objects = {
        "model": model,
        "data": data,
        "loss": loss,
        "optimizer": optimizer,
        "schedule": schedule,
    }
    settings = {name: value for name, value in objects.items() if _is_section(value)}
    given = Given(**{name: value for name, value in objects.items() if name not in settings})
    job, call = Job.from_environment(), len(_finished)
    if job is not None and job.call >= 0:
        if job.call == call:
            sys.exit(run_worker(replace(job, call=-1), work_of(given)))
        return _earlier(job.earlier[call])
    if resume is not None and config is not None:
        raise ConfigError(
            "give resume or config, not both: a run that goes on has its own configuration; change "
            'sections of it with, for example, layout={"stages": 3}'
        )
    earlier = None if resume is None else find_run(Path(resume))
    resolved = _config(earlier.config if earlier else config, {**sections, **settings})
    resolved, given, origin = _origin(resolved, given)
    if earlier is None:
        folder, summary = run(resolved, given, origin, quiet)
    else:
        resolved = without_stale_cuts(resolved, earlier.config)
        folder, summary = go_on(earlier, resolved, given, origin, quiet)
    _finished.append(str(folder.resolve()))
    return TrainResult(folder, summary)


def _config(config: Any, sections: Mapping[str, Mapping[str, Any]]) -> Config:
    if isinstance(config, (str, Path)):
        config = load_config(config)
    if isinstance(config, Config):
        config = config.model_dump(mode="json", exclude_unset=True)
    values: dict[str, Any] = {key: dict(value) for key, value in (config or {}).items()}
    for name, section in sections.items():
        if not isinstance(section, Mapping):
            raise ConfigError(
                f"freewheel.train({name}={section!r}): a section is a dict of settings, for "
                f'example layout={{"stages": 3}}'
            )
        values[name] = {**values.get(name, {}), **section}
    return parse_config(values, origin="freewheel.train")


def _is_section(value: Any) -> bool:
    """Whether a dict holds settings, as in TOML, rather than parts of a data set."""
    return isinstance(value, Mapping) and "train" not in value


def _earlier(run_dir: str) -> TrainResult:
    """Return, in a child, the result of a call that the launcher has already finished."""
    _finished.append(run_dir)
    summary = json.loads((Path(run_dir) / "summary.json").read_text(encoding="utf-8"))
    return TrainResult(Path(run_dir), summary)


def _origin(config: Config, given: Given) -> tuple[Config, Given, Origin]:
    """Decide how children come by the objects: by importing them, or by running the script."""
    references = {
        name: _reference(value) for name, value in vars(given).items() if value is not None
    }
    if all(references.values()):
        values = config.model_dump(mode="json", exclude_unset=True)
        for name, reference in references.items():
            # a loss that is given is the loss itself, not a function that makes it
            key = "function" if name == "loss" else "factory"
            values[name] = {**values.get(name, {}), key: reference}
        return parse_config(values), Given(), Origin(CHILD, tuple(sys.path))
    argv = _script()
    # as a person would start it: without the interpreter
    script = " ".join(argv[len(SCRIPT) :])
    return config, given, Origin(argv, (), len(_finished), tuple(_finished), script)


def _reference(value: Any) -> str | None:
    """Return ``"module:name"`` for what can be imported by it, else None."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        return None
    found = getattr(sys.modules.get(module), name, None)
    return f"{module}:{name}" if found is value else None


def _script() -> tuple[str, ...]:
    """Return the command that runs the calling script again."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is None and file and Path(file).exists() and not _is_test_runner(Path(file).name):
        return (*SCRIPT, file, *sys.argv[1:])
    if spec is not None and not _is_test_runner(spec.name):
        return (*SCRIPT, "-m", spec.name.removesuffix(".__main__"), *sys.argv[1:])
    raise ConfigError(
        "freewheel.train was given objects that other processes cannot import, and there is no "
        "script for them to run (an interactive session, or a test runner); put the model, data "
        "and optimizer into functions of a module, and give those, or call from a script file"
    )


def _is_test_runner(name: str) -> bool:
    return name.partition(".")[0] in ("pytest", "py", "unittest")
