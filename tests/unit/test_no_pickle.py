"""Nothing in the package reads or writes pickles: not on the wire, not on disk."""

from __future__ import annotations

import ast
from pathlib import Path

import freewheel

PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
#: These pickle what they are given, whatever it is.
CALLS = {
    ("torch", "save"),
    ("torch", "load"),
    ("zmq", "send_pyobj"),
    ("socket", "send_pyobj"),
    ("socket", "recv_pyobj"),
    ("dist", "broadcast_object_list"),
    ("dist", "all_gather_object"),
    ("dist", "send_object_list"),
}


def test_no_module_uses_pickle() -> None:
    files = sorted(Path(freewheel.__file__).parent.rglob("*.py"))
    assert len(files) > 50
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] not in PICKLES, f"{file}:{node.lineno} imports {name}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in CALLS, f"{file}:{node.lineno}"
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), f"{file}:{node.value.lineno}"
                assert node.value.value is False, f"{file}:{node.value.lineno}"
