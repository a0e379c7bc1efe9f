"""The tiny form of every benchmark runs to its end and writes results of the right form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.figures import recompute
from benchmarks.harness import ROOT, read_settings
from benchmarks.netlab import unavailable

NAMES = sorted(settings.parent.name for settings in ROOT.glob("*/benchmark.toml"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_tiny_form_runs(name: str, tmp_path: Path) -> None:
    _, _, settings = read_settings(ROOT / name / "benchmark.toml", tiny=True)
    if settings.get("needs_root") and (reason := unavailable()):
        pytest.skip(reason)
    out = tmp_path / "results.json"
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--tiny", "--out", str(out)],
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    assert results["tiny"] is True
    assert results["arms"]
    assert [arm["failures"] for arm in results["arms"] if arm["failures"]] == []
    assert results["headline"]
    for entry in results["headline"].values():
        assert entry["reached"] is not None
        assert recompute(entry, results["arms"]) == entry
