"""What is compared: the file's run, its ``[compare]`` section, and one arm per ``[[arm]]``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from freewheel.compare.settings import CompareSection
from freewheel.config import Config, RunSection, apply_override, parse_config
from freewheel.errors import ConfigError, nearest

Sections = Mapping[str, Any]
Kind = Literal["vanilla", "arm", "control", "floor"]

#: Keys of ``[[arm]]`` beside the sections that it overrides.
_ARM_KEYS = ("name", "about", "zero_comm_hidden")


@dataclass(frozen=True)
class Arm:
    """One row of the table: a way to train, run once for each seed.

    Args:
        name: unique.
        kind: the reference, an arm of the file, a control, or a floor.
        sections: over the file's run.
        about: what it is, in a sentence.
        of: the arm that a control belongs to.
        budget_of: train vanilla on as many steps as the bytes of this arm, at this seed, allow.
        zero_comm_hidden: hidden widths of the head that this arm's protocol gives to stage 0, where
            it gives one other than ``[compare] zero_comm_hidden``.
    """

    name: str
    kind: Kind
    sections: Sections
    about: str = ""
    of: str | None = None
    budget_of: str | None = None
    zero_comm_hidden: tuple[int, ...] | None = None

    @property
    def slug(self) -> str:
        """The name as a part of a path.

        Example:
            >>> from freewheel.compare.arms import Arm
            >>> Arm("train less (4 bits)", "control", {}).slug
            'train-less-4-bits'
        """
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-")


@dataclass(frozen=True)
class Plan:
    """A comparison, as its file says.

    Args:
        name: of the run.
        path: the file.
        base: the sections of the run that all arms share.
        section: ``[compare]``.
        arms: of the file, without vanilla and controls.
    """

    name: str
    path: Path
    base: Sections
    section: CompareSection
    arms: tuple[Arm, ...]

    @property
    def default_folder(self) -> Path:
        """Where results go unless the person says otherwise."""
        run = self.base.get("run", {})
        return Path(run.get("dir", RunSection().dir)) / f"{self.name}-compare"

    def config(self, arm: Arm, seed: int, **more: Mapping[str, Any]) -> Config:
        """Return the configuration of one run.

        Args:
            arm: whose sections go over the file's.
            seed: of the run.
            more: sections over both.
        """
        values = merge(merge(self.base, arm.sections), more)
        values = merge(values, {"run": {"seed": seed}})
        return parse_config(values, origin=f"{self.path}, arm {arm.name!r}")


def merge(base: Sections, over: Sections) -> dict[str, dict[str, Any]]:
    """Return sections with those of ``over`` on top, key by key.

    Where ``over`` names another thing (``name`` or ``factory``), the settings of the thing that the
    section named before do not stay.

    Example:
        >>> from freewheel.compare.arms import merge
        >>> merge({"optimizer": {"name": "adam", "betas": [0.9, 0.99], "lr": 0.1}},
        ...       {"optimizer": {"name": "sgd"}})
        {'optimizer': {'lr': 0.1, 'name': 'sgd'}}
    """
    merged = {name: dict(section) for name, section in base.items()}
    for name, section in over.items():
        kept = merged.get(name, {})
        if any(key in section and section[key] != kept.get(key) for key in ("name", "factory")):
            field = Config.model_fields.get(name)
            known = field.annotation.model_fields if field and field.annotation else kept
            kept = {
                key: value
                for key, value in kept.items()
                if key in known and key not in ("name", "factory")
            }
        merged[name] = {**kept, **section}
    return merged


def read_plan(
    path: Path, seeds: int | tuple[int, ...] | None = None, overrides: Sequence[str] = ()
) -> Plan:
    """Read a comparison.

    Args:
        path: a TOML file: a run, ``[compare]``, and ``[[arm]]`` tables.
        seeds: in place of ``[compare] seeds``.
        overrides: ``"section.key=value"``, for all arms; also of ``compare``.

    Raises:
        ConfigError: no such file, not TOML, an unknown key, two arms of one name, or an arm that is
            no valid run.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from freewheel.compare.arms import read_plan
        >>> text = '[compare]\\nseeds = 2\\n[[arm]]\\nname = "half"\\ntrain.steps = 50\\n'
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "compare.toml"
        ...     _ = path.write_text(text)
        ...     plan = read_plan(path)
        >>> plan.section.seed_list, plan.config(plan.arms[0], seed=1).train.steps
        ((0, 1), 50)
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise ConfigError(
            f"there is no file {str(path)!r}; give the path of a TOML file, such as "
            "examples/compare.toml"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is not valid TOML: {error}") from None
    for override in overrides:
        apply_override(values, override)
    table, arms = values.pop("compare", {}), values.pop("arm", [])
    if seeds is not None:
        table = {**table, "seeds": seeds}
    section = _section(table, path)
    config = parse_config(values, origin=str(path))
    made = tuple(_arm(arm, path) for arm in arms)
    plan = Plan(config.run.name, path, values, section, made)
    _check(plan)
    return plan


def _section(table: Mapping[str, Any], path: Path) -> CompareSection:
    try:
        return CompareSection.model_validate(dict(table))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(["compare", *(str(part) for part in first["loc"])])
        if first["type"] == "extra_forbidden":
            known = nearest(str(first["loc"][-1]), CompareSection.model_fields)
            raise ConfigError(f"{path}: unknown key {where!r}{known}") from None
        text = str(first["msg"]).removeprefix("Value error, ")
        raise ConfigError(f"{path}: {where} = {first['input']!r}: {text}") from None


def _arm(table: Mapping[str, Any], path: Path) -> Arm:
    sections = {key: value for key, value in table.items() if key not in _ARM_KEYS}
    name = table.get("name")
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f'{path}: every [[arm]] needs a name, e.g. name = "4 bits"')
    for key, value in sections.items():
        if not isinstance(value, Mapping):
            known = nearest(key, [*_ARM_KEYS, *Config.model_fields])
            raise ConfigError(
                f"{path}: arm {name!r} sets {key} = {value!r}; an arm holds sections of a run, "
                f'such as codec.forward = "quantise:4"{known}'
            )
    hidden = table.get("zero_comm_hidden")
    return Arm(
        name,
        "arm",
        sections,
        str(table.get("about", "")),
        zero_comm_hidden=None if hidden is None else tuple(hidden),
    )


def _check(plan: Plan) -> None:
    names = ["vanilla", *(arm.name for arm in plan.arms)]
    for name in names:
        if names.count(name) > 1:
            said = "vanilla is always there" if name == "vanilla" else "names are unique"
            raise ConfigError(f"{plan.path}: two arms are named {name!r}; {said}")
    for arm in plan.arms:
        plan.config(arm, seed=0)
