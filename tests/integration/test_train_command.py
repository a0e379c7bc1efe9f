"""``freewheel train`` as a person or a program uses it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import psutil
import pytest

from cli import ROOT, all_gone, freewheel, run_folder, sets, start, tree_of, write_config
from freewheel.config import load_config
from freewheel.observe.run_folder import read_rows

SUMMARY_KEYS = {
    "protocol", "dataset", "model", "seed", "world_size", "steps", "samples", "final_loss",
    "final_accuracy", "final_metrics", "bytes_sent", "messages_sent", "wall_s", "compute_s",
    "wait_s", "status",
}  # fmt: skip


def test_the_quickstart_trains_and_leaves_a_run_folder(tmp_path: Path) -> None:
    result = freewheel(
        "train",
        str(ROOT / "examples/quickstart.toml"),
        "--json",
        *sets(train__steps=30, eval__every=20, run__dir=str(tmp_path), data__limit=1000),
    )
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)  # nothing else on stdout
    assert summary.keys() >= SUMMARY_KEYS
    assert summary["status"] == "ok"
    assert summary["dataset"] in ("fashion_mnist", "digits")
    assert summary["dataset"] in result.stderr, "it says which data set it is"
    assert (summary["world_size"], summary["steps"]) == (2, 30)
    assert "threads_per_process" in summary, "scenario 27"
    assert re.search(r"\d+ threads? each", result.stderr), "scenario 27: printed"
    # an epoch of 1000 takes 15 steps of 64 and one of 40: 30 steps end 104 before the second
    assert summary["samples"] == 1000 + 14 * 64

    folder = run_folder(tmp_path)
    assert load_config(folder / "config.toml").train.steps == 30
    rows = read_rows(folder / "metrics.jsonl")
    assert {(row["process"], row["step"]) for row in rows} == {
        (f"stage {stage}", step) for stage in (0, 1) for step in range(1, 31)
    }
    for key in ("clock", "loss", "metrics", "samples", "bytes_sent", "bytes_received",
                "compute_s", "wait_s", "send_s"):  # fmt: skip
        assert key in rows[0]
    assert sum(row["bytes_sent"] for row in rows) == summary["bytes_sent"]
    assert sum(row["messages_sent"] for row in rows) == summary["messages_sent"] == 30 * 2 * 2
    events = read_rows(folder / "events.jsonl")
    assert [row["step"] for row in events if row["event"] == "evaluated"] == [20, 30]
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert sorted(path.name for path in (folder / "logs").iterdir()) == [
        "stage-0.log",
        "stage-1.log",
    ]


def test_a_person_sees_progress_and_a_table(tmp_path: Path) -> None:
    config = write_config(tmp_path / "run.toml")
    result = freewheel("train", str(config), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(
        r"step \d+/6 .*loss .*samples/s .*waiting \d+%.*/step .*2 alive", result.stderr
    )
    assert "final_accuracy" in result.stdout
    assert "bytes_sent" in result.stdout


@pytest.mark.parametrize("how", ["raise", "kill", "exit"])
def test_scenario_26_one_process_fails_and_all_end(tmp_path: Path, how: str) -> None:
    config = write_config(tmp_path / "run.toml")
    running = start(
        "train",
        str(config),
        *sets(model__factory="factories:failing_model", model__how=how, model__at=9,
              train__steps=1000),
        cwd=tmp_path,
    )  # fmt: skip
    family: list[psutil.Process] = []
    while running.poll() is None and len(family) < 3:
        family = tree_of(running.pid) if running.poll() is None else family
        time.sleep(0.01)
    _, text = running.communicate(timeout=90)
    assert running.returncode == 6
    assert re.search(r"error: stage 1 \(pid \d+\) ", text), text
    if how == "raise":
        assert "RuntimeError: this layer has had enough" in text
        assert "Traceback (most recent call last)" in text
        assert "in forward" in text
    if how == "kill":
        assert re.search(r"died \(signal 9\) at step \d+", text)
    assert not all_gone(family)
    folder = run_folder(tmp_path / "runs")
    assert json.loads((folder / "summary.json").read_text())["status"] == "failed"
    failed = [r for r in read_rows(folder / "events.jsonl") if r["event"] in ("failed", "died")]
    assert failed[0]["process"] == "stage 1"


def test_a_run_listens_on_loopback_only(tmp_path: Path) -> None:
    go = tmp_path / "go"
    config = write_config(tmp_path / "run.toml")
    for kind in ("pipeline", "replicas"):
        go.unlink(missing_ok=True)
        running = start(
            "train",
            str(config),
            *sets(model__factory="factories:waiting_model", model__file=str(go),
                  link__carrier="zeromq", layout__kind=kind, run__dir=str(tmp_path / kind)),
        )  # fmt: skip
        events = tmp_path / kind
        while (
            not list(events.glob("*/events.jsonl"))
            or len(read_rows(next(events.glob("*/events.jsonl")))) < 2
        ):
            assert running.poll() is None
            time.sleep(0.02)
        while len(tree_of(running.pid)) < 3:
            time.sleep(0.02)
        sockets = [
            connection
            for process in tree_of(running.pid)
            for connection in process.net_connections(kind="inet")
        ]
        go.touch()
        _, text = running.communicate(timeout=90)
        assert running.returncode == 0, text
        listening = [s for s in sockets if s.status == psutil.CONN_LISTEN]
        assert len(listening) >= 3
        assert {s.laddr.ip for s in sockets} <= {"127.0.0.1", "::1"}


BAD = {
    "a missing file": (["train", "nowhere.toml"], 2, "there is no file 'nowhere.toml'"),
    "an unknown key": (["--set", "layout.stagse=2"], 2, "did you mean 'stages'?"),
    "an unknown section": (["--set", "layuot.stages=2"], 2, "did you mean 'layout'?"),
    "an unknown model": (["--set", "model.name=lenett"], 2, "did you mean 'lenet'?"),
    "an unknown model setting": (
        ["--set", "model.name=mlp", "--set", "model.hiden=[3]"], 2, "did you mean 'hidden'?"
    ),
    "an unknown data set": (["--set", "data.name=digit"], 2, "did you mean 'digits'?"),
    "a bad cut point": (
        ["--set", "model.name=mlp", "--set", 'layout.cuts=["fc9"]'], 2, "fc9"
    ),
    "more stages than layers": (["--set", "layout.stages=9"], 2, "9"),
    "a data set with no rows": (["--set", "data.num_samples=0"], 3, "no rows"),
    "a protocol of another layout": (["--set", "protocol.name=bsp"], 2, "layout.kind"),
    "a NaN in a batch": (["--set", "data.nan_at=5"], 7, "sample 5"),
    "an address beyond loopback": (["--set", "link.bind=0.0.0.0"], 2, "insecure"),
    "an override without a value": (["--set", "layout"], 2, "section.key=value"),
    "a factory that is not there": (
        ["--set", "model.factory=factories:smal_model"], 2, "did you mean 'small_model'?"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_error(tmp_path: Path, name: str) -> None:
    arguments, code, text = BAD[name]
    if arguments[0] != "train":
        config = write_config(tmp_path / "run.toml")
        if any(a.startswith(("model.name", "data.name")) for a in arguments):
            config.write_text(
                '[data]\nname = "digits"\n[model]\nname = "mlp"\n[train]\nsteps = 2\n'
            )
        arguments = ["train", str(config), *arguments]
    result = freewheel(*arguments, cwd=tmp_path)
    assert result.returncode == code, result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.stderr
    assert text in errors[0]
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_scenario_25_a_port_in_use(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        config = write_config(tmp_path / "run.toml")
        result = freewheel("train", str(config), *sets(link__bind=f"tcp://127.0.0.1:{port}"))
    assert result.returncode == 5
    (line,) = result.stderr.splitlines()
    assert str(port) in line
    assert "use" in line
