"""docs/configuration.md says what config.py says: each section, key, default, choice and bound."""

from __future__ import annotations

import inspect
import re
import typing
from typing import Any

import annotated_types
import pytest
import tomli_w
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from freewheel.config import Config, Named
from freewheel.models.zoo import models
from freewheel.runtime import training
from freewheel.streams.registry import datasets
from tests.docs.pages import ROOT, code, section, tables

PAGE = ROOT / "docs" / "configuration.md"
SECTIONS: dict[str, type[BaseModel]] = {
    name: typing.cast("type[BaseModel]", field.annotation)
    for name, field in Config.model_fields.items()
}


def text_of(name: str) -> str:
    """Return the part of the page whose heading names ``[name]``."""
    parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M)
    found = [part for part in parts if f"`[{name}]`" in part.splitlines()[0]]
    assert len(found) == 1, f"{len(found)} headings of {PAGE.name} name `[{name}]`"
    return found[0]


def rows_of(name: str) -> dict[str, tuple[str, str]]:
    return {code(key): (default, meaning) for key, default, meaning in tables(text_of(name))[0]}


def written(value: Any) -> str:
    """Return a value as TOML has it."""
    if value is None:
        return "unset"
    value = list(value) if isinstance(value, tuple) else value
    text = tomli_w.dumps({"x": value}).removeprefix("x = ")
    return "`" + " ".join(text.split()).replace("[ ", "[").replace(", ]", "]") + "`"


def inside(annotation: Any) -> list[Any]:
    """Return an annotation and all that stands inside it."""
    return [annotation, *(part for arg in typing.get_args(annotation) for part in inside(arg))]


def choices(field: FieldInfo) -> set[str]:
    literals = [a for a in inside(field.annotation) if typing.get_origin(a) is typing.Literal]
    return {value for literal in literals for value in typing.get_args(literal)}


def bounds(field: FieldInfo) -> set[str]:
    """Return the bounds of a number in words: ``">= 1"``."""
    found = set()
    for held in [*field.metadata, *inside(field.annotation)]:
        for one in getattr(held, "metadata", [held]):
            if isinstance(one, annotated_types.Ge):
                found.add(f">= {one.ge}")
            if isinstance(one, annotated_types.Gt):
                found.add(f"> {one.gt}")
    return found


@pytest.mark.parametrize("name", SECTIONS)
def test_keys_and_defaults(name: str) -> None:
    said = {key: default for key, (default, _) in rows_of(name).items()}
    assert said == {key: written(f.default) for key, f in SECTIONS[name].model_fields.items()}


@pytest.mark.parametrize("name", SECTIONS)
def test_choices_and_bounds(name: str) -> None:
    for key, field in SECTIONS[name].model_fields.items():
        meaning = rows_of(name)[key][1]
        missing = [c for c in choices(field) if f'"{c}"' not in meaning]
        missing += [bound for bound in bounds(field) if bound not in meaning.replace("`", "")]
        assert not missing, f"[{name}] {key} does not say {missing}"


def test_the_bounds_of_the_models_are_seen() -> None:
    field = SECTIONS["run"].model_fields
    assert bounds(field["threads"]) == {">= 1"}
    assert bounds(field["step_timeout_s"]) == {"> 0"}
    assert choices(SECTIONS["layout"].model_fields["cuts"]) == {"default", "even", "balanced"}


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_that_takes_more_keys_says_so(name: str) -> None:
    if issubclass(SECTIONS[name], Named):
        assert "setting" in text_of(name) or "arguments" in text_of(name) or name == "schedule"


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("data", datasets.names()),
        ("model", models.names()),
        ("loss", sorted(training._LOSSES)),
        ("schedule", ["constant", "cosine", "linear", "steps"]),
        ("eval", sorted(training._METRICS)),
    ],
)
def test_every_name_is_listed(section: str, names: list[str]) -> None:
    for name in names:
        assert f"`{name}`" in text_of(section), f"[{section}] does not list {name}"


def test_settings_of_the_models_are_those_of_the_functions() -> None:
    rows = {code(name): settings for name, settings, _ in tables(text_of("model"))[1]}
    assert rows.keys() == set(models.names())
    for name, said in rows.items():
        known = inspect.signature(models.get(name)).parameters
        expected = [
            f"`{key}`" if p.default is None else f"`{key} = {written(p.default).strip('`')}`"
            for key, p in known.items()
            if key not in ("input_shape", "num_classes")
        ]
        assert said == ", ".join(expected)


def used_by_train() -> str:
    """Return the code that could read a configuration."""
    folders = ("runtime", "launch", "models", "streams", "transport", "cli")
    files = [f for d in folders for f in sorted((ROOT / "src" / "freewheel" / d).rglob("*.py"))]
    return "".join(file.read_text(encoding="utf-8") for file in files)


def test_what_is_not_used_yet_is_what_no_code_reads() -> None:
    text, said = used_by_train(), section(PAGE, "Not used yet")
    unread = set()
    for name, model in SECTIONS.items():
        if not re.search(rf"config\.{name}\b", text):
            unread.add(f"[{name}]")
            continue
        # settings of Named sections go to a registry, with name and factory beside them
        keys = [key for key in model.model_fields if key not in ("name", "factory")]
        unread |= {f"{name}.{key}" for key in keys if not re.search(rf"\.{key}\b", text)}
    assert set(re.findall(r"`(\[\w+\]|\w+\.\w+)`", said)) == unread
