"""The wheel, installed alone into an empty environment, runs the quickstart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from cli import ROOT, run_folder, sets

pytestmark = pytest.mark.timeout(300)


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that sees nothing of this environment's variables for Python."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**environment, "PYTHONNOUSERSITE": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    # without hatchling here, build fetches it into an environment of its own
    alone = ["--no-isolation"] if find_spec("hatchling") else []
    run(sys.executable, "-m", "build", "--wheel", *alone, "--outdir", out, ROOT, cwd=out)
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of commands of an environment that holds the wheel and nothing else.

    What it depends on is borrowed from this environment: a ``.pth`` file puts this environment's
    packages at the end of the path. ``.pth`` files over there, such as that of an editable
    freewheel, are not read, because Python reads those of its own environment only.
    """
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=home)
    packages = Path(
        run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=home)[:-1]
    )
    paths = sysconfig.get_paths()
    borrowed = "\n".join(dict.fromkeys([paths["purelib"], paths["platlib"]]))
    (packages / "borrowed.pth").write_text(borrowed + "\n", encoding="utf-8")
    return home / "bin"


def test_what_is_in_the_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("py.typed", "cli/main.py", "contract/test_protocols.py"):
        assert f"freewheel/{name}" in names
    packages = {name.partition("/")[0] for name in names}
    assert packages == {"freewheel", next(p for p in packages if p.endswith(".dist-info"))}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_is_what_is_imported(installed: Path, tmp_path: Path) -> None:
    text = "import freewheel, freewheel.launch.child as c; print(freewheel.__file__, c.__file__)"
    for file in run(installed / "python", "-c", text, cwd=tmp_path).split():
        assert Path(file).is_relative_to(installed.parent)


def test_the_quickstart_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    out = run(
        installed / "freewheel",
        "train",
        ROOT / "examples" / "quickstart.toml",
        "--json",
        *sets(data__name="digits", train__steps=4, eval__every=0),
        cwd=tmp_path,
    )
    summary = json.loads(out)
    assert (summary["status"], summary["dataset"], summary["steps"]) == ("ok", "digits", 4)
    assert (tmp_path / summary["run"]).samefile(run_folder(tmp_path / "runs"))
