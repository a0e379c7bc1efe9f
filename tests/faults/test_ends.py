"""Scenarios 14 and 23: however a run ends, nothing is lost and nothing is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cli import freewheel
from disturbed import LAST, STEPS, command, incident
from freewheel.observe.run_folder import read_rows
from running import Running, curve, final_of, only_run, summary_of

Undisturbed = Callable[[str], Path]
Start = Callable[..., Running]
KINDS = list(LAST)
#: All is over 5 s after the signal; the rest is for machines that are busy with other tests.
AT_ONCE_S = 5.0 * 3


def waiting_run(start: Start, tmp_path: Path, kind: str) -> Running:
    """Return a run in the middle of a step that does not go on by itself."""
    running = start(*command(tmp_path, kind, **incident(tmp_path, kind, "wait", step=5)))
    running.until((tmp_path / "happened.reached").exists)
    assert len(running.family) == 3
    return running


def go_on(tmp_path: Path) -> None:
    """Let the step that waits go on, in this run and those that go on with it."""
    (tmp_path / "happened").touch()


def resumes_to_the_same(tmp_path: Path, expected: Path) -> None:
    """Go on with the run at once, and compare every number with the run that was not disturbed."""
    run_dir = only_run(tmp_path)
    go_on(tmp_path)
    result = freewheel("resume", str(run_dir), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    reference = final_of(expected)
    found = final_of(run_dir)
    assert found.keys() == reference.keys()
    for name, value in reference.items():
        assert torch.equal(found[name], value), name
    assert curve(run_dir) == curve(expected)
    before, after = summary_of(expected), summary_of(run_dir)
    for key in ("status", "steps", "samples", "final_accuracy", "final_loss"):
        assert after[key] == before[key], key


@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_saves_and_stops(
    start: Start, tmp_path: Path, kind: str, undisturbed: Undisturbed
) -> None:
    running = waiting_run(start, tmp_path, kind)
    running.ctrl_c()
    running.until_said("stopping after this step; press Ctrl-C again to stop at once")
    go_on(tmp_path)
    assert running.wait() == 130
    assert running.left_behind() == []
    assert "Traceback" not in running.text
    assert "error" not in running.text
    step = running.text.splitlines()[-1]
    assert step.startswith("stopped at step "), running.text
    assert step.endswith(f"go on with: freewheel resume {only_run(tmp_path).relative_to(tmp_path)}")
    assert f"of {STEPS}, saved in " in step
    run_dir = only_run(tmp_path)
    assert summary_of(run_dir)["status"] == "interrupted"
    assert 5 <= summary_of(run_dir)["steps"] < STEPS
    assert not list(run_dir.glob("rendezvous*"))
    assert not list(run_dir.glob("checkpoints/.*"))
    resumes_to_the_same(tmp_path, undisturbed(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_twice_stops_at_once(start: Start, tmp_path: Path, kind: str) -> None:
    running = waiting_run(start, tmp_path, kind)
    running.ctrl_c()
    running.until_said("stopping after this step")
    running.ctrl_c()
    # the step that is under way would never end
    assert running.wait(AT_ONCE_S) == 130
    assert running.left_behind() == []
    assert "Traceback" not in running.text
    assert running.text.splitlines()[-1] == "interrupted"
    assert summary_of(only_run(tmp_path))["status"] == "interrupted"


@pytest.mark.parametrize("kind", KINDS)
def test_sigterm_ends_in_time_also_in_a_step_that_does_not_end(
    start: Start, tmp_path: Path, kind: str
) -> None:
    running = waiting_run(start, tmp_path, kind)
    running.popen.terminate()
    assert running.wait(AT_ONCE_S) == 130
    assert running.left_behind() == []
    assert "Traceback" not in running.text


@pytest.mark.parametrize("kind", KINDS)
def test_the_launcher_is_killed(
    start: Start, tmp_path: Path, kind: str, undisturbed: Undisturbed
) -> None:
    running = waiting_run(start, tmp_path, kind)
    running.popen.kill()
    assert running.wait() == -signal.SIGKILL
    assert running.left_behind() == []
    assert not list(only_run(tmp_path).glob("rendezvous*"))
    resumes_to_the_same(tmp_path, undisturbed(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_is_killed_and_the_run_restarts(
    tmp_path: Path, kind: str, undisturbed: Undisturbed
) -> None:
    more = {**incident(tmp_path, kind, "kill", step=7), "run__on_death": "restart"}
    result = freewheel(*command(tmp_path, kind, **more), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    run_dir = only_run(tmp_path)
    (restarted,) = [r for r in read_rows(run_dir / "events.jsonl") if r["event"] == "restarted"]
    name = LAST[kind][0]
    pid = next(
        row["pid"]
        for row in read_rows(run_dir / "events.jsonl")
        if row["event"] == "joined" and row["process"] == name
    )
    assert restarted["because"].startswith(f"{name} (pid {pid}) died (signal 9) at step 7;")
    assert restarted["step"] == 6, "the checkpoint before it"
    assert "going on from step 6" in result.stderr
    for key, value in final_of(undisturbed(kind)).items():
        assert torch.equal(final_of(run_dir)[key], value), key
    assert curve(run_dir) == curve(undisturbed(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_that_hangs_is_named_in_time(start: Start, tmp_path: Path, kind: str) -> None:
    more = {**incident(tmp_path, kind, "stop", step=7), "run__step_timeout_s": 3.0}
    if kind == "pipeline":  # in a chain, where one waits for one that waits
        more |= {"layout__stages": 3, "model__who": "stage 2"}
    running = start(*command(tmp_path, kind, **more))
    running.until((tmp_path / "happened").exists)
    assert running.wait() == 6
    assert running.left_behind() == []
    name = "stage 2" if kind == "pipeline" else "replica 1"
    run_dir = only_run(tmp_path)
    events = read_rows(run_dir / "events.jsonl")
    pid = next(r["pid"] for r in events if r["event"] == "joined" and r["process"] == name)
    (error,) = [line for line in running.text.splitlines() if line.startswith("error: ")]
    assert error.startswith(
        f"error: {name} (pid {pid}) did not answer at step 7: it is stopped (SIGSTOP, signal 19)"
    )
    # the one who waited longest began to wait when it first said so, less what it then had waited
    waits = [r for r in events if r["event"] == "waiting" and r["peer"] == name]
    began = max(row["at_s"] - row["seconds"] for row in waits)
    noticed = next(row["at_s"] for row in events if row["event"] == "failed")
    assert noticed - (began + 3.0) <= 2.0


def test_a_run_in_progress_is_not_resumed(start: Start, tmp_path: Path) -> None:
    running = waiting_run(start, tmp_path, "pipeline")
    result = freewheel("resume", str(only_run(tmp_path)), cwd=tmp_path)
    os.kill(running.popen.pid, signal.SIGKILL)
    running.wait()
    assert result.returncode == 2
    assert "another process trains in" in result.stderr
    assert running.left_behind() == []
