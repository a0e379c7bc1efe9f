"""What a run is told: one TOML file, validated section by section.

Unknown keys are errors that name the nearest known key. Sections that name a thing from a registry
(``[protocol]``, ``[model]`` ...) hand their other keys to it, which checks them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from freewheel.errors import ConfigError, nearest

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
#: Where links listen unless they are told otherwise.
LOOPBACK = "127.0.0.1"


class Section(BaseModel):
    """A section whose keys are all known."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Named(BaseModel):
    """A section that names a thing; keys that it does not know are that thing's settings."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The keys that belong to the named thing."""
        return dict(self.model_extra or {})


class Made(Named):
    """A named thing, or one that ``factory = "module:function"`` of the user makes."""

    factory: str | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Made:
        if self.factory is not None and not all(self.factory.partition(":")[::2]):
            raise ValueError(f'factory must look like "module:function", got {self.factory!r}')
        if self.factory is not None and self.name is not None and "name" in self.model_fields_set:
            raise ValueError("give name or factory, not both")
        return self


class RunSection(Section):
    """``[run]``: the run itself."""

    name: str = Field(default="run", pattern=r"^[^/\x00]{1,100}$")
    dir: str = "runs"
    seed: int = Field(default=0, ge=0, lt=2**63)
    device: str = "cpu"
    threads: Positive | None = None
    memory_limit_mb: Positive | None = None
    join_timeout_s: float = Field(default=60.0, gt=0)
    step_timeout_s: float = Field(default=120.0, gt=0)
    on_death: Literal["stop", "restart"] = "stop"
    max_restarts: Count = 3


class DataSection(Made):
    """``[data]``: where samples come from, and how many one replica or pipeline takes a step."""

    batch_size: Positive = 64
    limit: int | None = None
    fallback: str | None = None
    shards: str | None = None
    shuffle: bool = True


class ModelSection(Made):
    """``[model]``: what is trained."""

    init: Literal["whole", "lazy"] = "whole"
    checkpoint_activations: bool = False


class LossSection(Made):
    """``[loss]``: what is made small; ``function = "module:name"`` is a loss of the user's own."""

    name: str | None = "cross_entropy"
    function: str | None = None


class OptimizerSection(Made):
    """``[optimizer]``: a class of ``torch.optim`` in lower case; other keys are its arguments."""

    name: str | None = "sgd"
    lr: float = Field(default=0.05, ge=0)


class ScheduleSection(Made):
    """``[schedule]``: how the learning rate moves, step by step."""

    name: str | None = "constant"
    warmup: Count = 0


class TrainSection(Section):
    """``[train]``: how long, and how a step is made."""

    steps: Positive | None = None
    epochs: Positive | None = None
    accumulate: Positive = 1
    clip_norm: float | None = Field(default=None, gt=0)
    autocast: Literal["bf16"] | None = None

    @model_validator(mode="after")
    def _one_length(self) -> TrainSection:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("give steps or epochs, not both")
        return self


class EvalSection(Section):
    """``[eval]``: every how many steps the test part is scored (0: only at the end)."""

    every: Count = 0
    metrics: tuple[str, ...] = ("accuracy",)
    batch_size: Positive = 500


class LayoutSection(Section):
    """``[layout]``: which processes there are."""

    kind: Literal["pipeline", "replicas", "server"] = "pipeline"
    stages: Positive = 2
    cuts: tuple[str | int, ...] | Literal["default", "even", "balanced"] = "default"
    micro_batches: Positive = 4
    schedule: Literal["gpipe", "1f1b"] = "1f1b"
    workers: Positive = 2
    servers: Positive = 1
    placement: Literal["separate", "colocated"] = "separate"
    consistency: Literal["global", "per_server"] = "global"
    on_worker_death: Literal["go_on", "end"] = "go_on"
    server_momentum: Literal["keep", "fold", "lower"] = "keep"

    @property
    def world_size(self) -> int:
        """Number of processes beside the coordinator."""
        if self.kind == "pipeline":
            return self.stages
        spare = self.servers if self.kind == "server" and self.placement == "separate" else 0
        return self.workers + spare


class CodecSection(Section):
    """``[codec]``: how tensors look on the wire, by direction."""

    forward: str | dict[str, Any] = "identity"
    backward: str | dict[str, Any] = "identity"
    push: str | dict[str, Any] = "identity"
    pull: str | dict[str, Any] = "identity"


class LinkSection(Section):
    """``[link]``: the network between processes; ``rate_mbit`` and ``delay_ms`` make a slow one.

    ``bind`` is an address, the name of a network interface (each process takes that interface's
    address), or ``tcp://ADDRESS:PORT`` for the coordinator; all others take free ports.
    ``carrier`` is ``"zeromq"`` (TCP), ``"local"`` (sockets and shared memory of one Linux host), or
    ``"auto"``: local where ``bind`` is left at loopback.
    """

    bind: str = LOOPBACK
    carrier: Literal["auto", "local", "zeromq"] = "auto"
    insecure: bool = False
    rate_mbit: float | None = Field(default=None, gt=0)
    delay_ms: float = Field(default=0.0, ge=0)
    jitter_ms: float = Field(default=0.0, ge=0)


class CheckpointSection(Section):
    """``[checkpoint]``: when the state of the run is saved, and how many saves are kept."""

    every: Count = 0
    every_s: float = Field(default=0.0, ge=0)
    keep: Positive = 2


class Config(Section):
    """A whole run, resolved.

    Example:
        >>> from freewheel.config import Config
        >>> Config().layout.stages
        2
    """

    run: RunSection = RunSection()
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    loss: LossSection = LossSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    train: TrainSection = TrainSection()
    eval: EvalSection = EvalSection()
    layout: LayoutSection = LayoutSection()
    protocol: Named = Named()
    codec: CodecSection = CodecSection()
    predictor: Named = Named()
    monitor: Named = Named()
    stream: Named = Named()
    checkpoint: CheckpointSection = CheckpointSection()
    link: LinkSection = LinkSection()

    @property
    def protocol_name(self) -> str:
        """The protocol asked for, or the layout's own."""
        own = {"pipeline": "vanilla", "replicas": "all_reduce", "server": "bsp"}
        return self.protocol.name or own[self.layout.kind]


def parse_config(values: Mapping[str, Any], origin: str = "configuration") -> Config:
    """Validate plain values.

    Args:
        values: nested, as TOML gives them.
        origin: what to call it in errors.

    Raises:
        ConfigError: an unknown key (naming the nearest), or a value that breaks a rule.

    Example:
        >>> from freewheel.config import parse_config
        >>> parse_config({"layout": {"stages": 3}}).layout.stages
        3
    """
    try:
        return Config.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(f"{origin}: " + "; ".join(_explain(e) for e in error.errors())) from None


def _explain(error: Mapping[str, Any]) -> str:
    where = [str(part) for part in error["loc"]]
    if error["type"] == "extra_forbidden":
        known = Config.model_fields
        if len(where) > 1:
            section = Config.model_fields[where[0]].annotation
            known = section.model_fields if section is not None else known
        return f"unknown key {'.'.join(where)!r}{nearest(where[-1], known)}"
    text = str(error["msg"]).removeprefix("Value error, ")
    # pydantic goes on, below the key, with the kinds of value that it tried
    where = where[:2]
    if error["type"] == "model_type" or text.startswith("Input should be a valid dictionary"):
        text = "a section is a table of settings"
    return f"{'.'.join(where)} = {error['input']!r}: {text}" if where else text


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file and apply ``key=value`` overrides.

    Args:
        path: the file.
        overrides: for example ``"layout.stages=3"``; the value is read as TOML, else as a string.

    Raises:
        ConfigError: no such file, not TOML, or invalid.
    """
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {str(path)!r}; give the path of a TOML file, "
            "such as examples/quickstart.toml"
        ) from None
    except IsADirectoryError:
        raise ConfigError(f"{str(path)!r} is a folder; give the path of a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is not valid TOML: {error}") from None
    for override in overrides:
        apply_override(values, override)
    return parse_config(values, origin=str(path))


def apply_override(values: dict[str, Any], override: str) -> None:
    """Set one value in the sections of a file, in place.

    Args:
        values: sections, as TOML gives them.
        override: ``"section.key=value"``; the value is read as TOML, else as a string.

    Raises:
        ConfigError: it does not look like that.

    Example:
        >>> from freewheel.config import apply_override
        >>> values = {"layout": {"stages": 2}}
        >>> apply_override(values, "layout.stages=3")
        >>> values
        {'layout': {'stages': 3}}
    """
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts):
        raise ConfigError(
            f"override {override!r} must look like section.key=value, e.g. layout.stages=3"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for part in parts[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ConfigError(f"override {override!r}: {part!r} is a value, not a section")
    values[parts[-1]] = value
