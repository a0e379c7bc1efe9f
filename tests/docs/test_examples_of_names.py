"""Each public class and function that a package names in ``__all__`` has a runnable example."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest

import freewheel

PACKAGE = Path(freewheel.__file__).parent

#: Names whose use cannot be shown in their docstring, and why. Interfaces, abstract classes and
#: exceptions need no place here.
WITHOUT = {
    "freewheel.TrainResult": "made by freewheel.train, whose example shows it",
    "freewheel.codecs.decode_all": "the example of encode_all shows both",
    "freewheel.models.LayerCost": "the example of balance shows it",
    "freewheel.models.Partition": "made by partition, whose example shows it",
    "freewheel.predictors.BasePredictor": "a base class; each predictor has an example",
    "freewheel.simulate.Result": "made by Simulation.run, whose example shows it",
    "freewheel.streams.IterableBatch": "made by IterableStream, whose example shows it",
}


def is_interface(thing: object) -> bool:
    return inspect.isclass(thing) and (
        inspect.isabstract(thing)
        or getattr(thing, "_is_protocol", False)
        or issubclass(thing, BaseException)
    )


def public() -> dict[str, object]:
    found = {}
    for file in sorted(PACKAGE.rglob("__init__.py")):
        name = ".".join(["freewheel", *file.parent.relative_to(PACKAGE).parts])
        if "__all__" not in file.read_text(encoding="utf-8"):
            continue
        module = import_module(name)
        for word in module.__all__:
            thing = getattr(module, word)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                found[f"{name}.{word}"] = thing
    return found


PUBLIC = public()


@pytest.mark.parametrize("name", PUBLIC)
def test_has_an_example(name: str) -> None:
    if name not in WITHOUT and not is_interface(PUBLIC[name]):
        assert ">>> " in (PUBLIC[name].__doc__ or ""), f"{name}: add an example to its docstring"


def test_no_exception_is_left_over() -> None:
    assert WITHOUT.keys() <= PUBLIC.keys()
