"""Checkpoints: killed, damaged, swapped, on a full disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cli import ROOT, environment
from freewheel.config import parse_config
from freewheel.errors import CheckpointError
from freewheel.runtime.checkpoints.checkpoint import checkpoints, latest, open_checkpoint, save_part
from freewheel.runtime.checkpoints.saves import Saves
from killed_saves import check, save


def test_scenario_24_killed_at_every_point_of_a_save(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "tests/support/killed_saves.py"), str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    for keep in (1, 2):
        of = [row for row in rows if row["keep"] == keep]
        killed = [row for row in of if not row["ended"]]
        assert len(killed) >= 10, "at ten points at least"
        assert [row["ended"] for row in of] == [False] * len(killed) + [True]
        latest_by_point = [row["latest"] for row in killed]
        assert set(latest_by_point) == {20, 30}, "before the rename, and after it"
        assert latest_by_point == sorted(latest_by_point)
        before = [20] if keep == 1 else [10, 20]
        for row in killed:
            # until the new one is there the old ones are; none that is half is ever listed
            assert row["listed"] in (
                [before] if row["latest"] == 20 else [[*before, 30], [*before, 30][-keep:]]
            ), row
        for row in of:
            assert row["left"] == []
            assert row["after"] == [*before, 30][-keep:]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints"
    for step in (10, 20):
        save(folder, step, keep=2)
    return folder


def flip(file: Path) -> None:
    """Change one byte in the middle."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


DAMAGE = {
    "a corrupted file": (lambda p: flip(p / "stage-1.safetensors"), "stage-1.safetensors"),
    "a truncated file": (
        lambda p: os.truncate(p / "stage-1.safetensors", 100), "stage-1.safetensors"
    ),
    "a missing file": (lambda p: (p / "stage-1.json").unlink(), "stage-1.json"),
    "corrupted values": (lambda p: flip(p / "stage-0.json"), "stage-0.json"),
    "two files swapped": (
        lambda p: swap(p / "stage-0.json", p / "stage-0.safetensors"), "stage-0"
    ),
    "the files of another step": (
        lambda p: shutil.copy(p.parent / "step-00000010/stage-0.safetensors", p), "stage-0"
    ),
    "an edited manifest": (
        lambda p: (p / "manifest.json").write_text(
            (p / "manifest.json").read_text().replace('"stages": 2', '"stages": 3')
        ),
        "manifest.json",
    ),
    "half a manifest": (lambda p: os.truncate(p / "manifest.json", 40), "manifest.json"),
    "no manifest": (lambda p: (p / "manifest.json").unlink(), "manifest.json"),
    "another step's folder": (
        lambda p: swap(p, p.parent / "step-00000010"), "step-00000020 holds the checkpoint of step"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_refused_by_name(folder: Path, name: str) -> None:
    damage, text = DAMAGE[name]
    path = folder / "step-00000020"
    damage(path)
    with pytest.raises(CheckpointError) as caught:
        check(folder, latest(folder))
    assert text in str(caught.value)
    assert str(path) in str(caught.value)
    if name == "another step's folder":
        assert checkpoints(folder) == []
        return
    # it says what to do, and that works
    command = str(caught.value).rpartition("freewheel resume ")[2]
    assert open_checkpoint(Path(command)).read("stage-1")[1]["step"] == 10


def test_the_keep_rule_and_a_line_that_was_left(folder: Path) -> None:
    for step in (30, 40):
        save(folder, step, keep=3)
    assert [c.step for c in checkpoints(folder)] == [20, 30, 40]
    # the run went on from step 20: what came after it is of another line
    save(folder, 25, keep=3)
    assert [c.step for c in checkpoints(folder)] == [20, 25]
    save(folder, 25, keep=1)
    assert [c.step for c in checkpoints(folder)] == [25]
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000025"]


def test_no_checkpoint_of_parts_that_are_not_all_there(folder: Path) -> None:
    saves = Saves(folder, parse_config({"checkpoint": {"keep": 5}}), ["stage 0", "stage 1"])
    files = save_part(folder, 30, "stage-0", {"w": torch.ones(2)}, {"step": 30})
    assert not saves.take("stage 0", 30, files)
    assert [c.step for c in checkpoints(folder)] == [10, 20]
    saves.failed("stage 1", 30, "no space")
    assert saves.error == "no space"
    assert not list(folder.glob(".*")), "half of it is dropped"
    both = [save_part(folder, 31, f"stage-{i}", {}, {"step": 31}) for i in (0, 1)]
    assert not saves.take("stage 1", 31, both[1])
    assert saves.take("stage 0", 31, both[0])
    assert saves.error is None
    assert latest(folder).step == 31


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk of 200 kB")
    path = tmp_path / "disk"
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"cannot mount: {made.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_loses_nothing(small_disk: Path) -> None:
    folder = small_disk / "checkpoints"
    for step in (10, 20):
        save(folder, step, keep=2)
    large = {"w": torch.zeros(100_000)}
    with pytest.raises(CheckpointError, match=r"No space left.*untouched.*free some disk"):
        save_part(folder, 30, "stage-0", large, {"step": 30})
    assert check(folder) == {"listed": [10, 20], "latest": 20}
    # the manifest may be what does not fit any more
    saves = Saves(folder, parse_config({}), ["stage 0"])
    files = save_part(folder, 31, "stage-0", {}, {"step": 31})
    block = os.statvfs(small_disk).f_bsize
    (small_disk / "ballast").write_bytes(bytes(os.statvfs(small_disk).f_bfree * block))
    assert not saves.take("stage 0", 31, files)
    assert saves.error is not None
    assert "No space left" in saves.error
    assert check(folder) == {"listed": [10, 20], "latest": 20}
    assert not list(folder.glob(".*"))
    (small_disk / "ballast").unlink()
    save(folder, 32, keep=2)
    assert check(folder) == {"listed": [20, 32], "latest": 32}
