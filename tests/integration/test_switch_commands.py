"""The example of Strategy-Switch and ``freewheel plan``, as a person runs them."""

from __future__ import annotations

import json
import math
from pathlib import Path

from cli import ROOT, freewheel, run_folder, sets
from freewheel.observe.report import write_report
from freewheel.observe.run_folder import read_rows

EXAMPLE = str(ROOT / "examples" / "strategy_switch.toml")


def test_the_example_trains_and_says_when_it_switched(tmp_path: Path) -> None:
    options = sets(run__dir=str(tmp_path), train__epochs=4, data__limit=400)
    done = freewheel("train", EXAMPLE, "--json", *options)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    steps = 4 * -(-400 // 64)
    # a fifth of the run at the latest, seen one step later
    assert 1 < summary["switched_at"] <= math.ceil(steps / 5) + 1
    assert summary["switches"] == [{"step": summary["switched_at"], "to": "k_async"}]
    clocks = [worker["clock"] for worker in summary["workers"].values()]
    assert sum(clocks) == 4 * steps
    events = read_rows(run_folder(tmp_path) / "events.jsonl")
    (switched,) = [event for event in events if event["event"] == "switched"]
    assert (switched["step"], switched["to"]) == (summary["switched_at"], "server")
    verdicts = [event for event in events if event["event"] == "verdict"]
    assert {event["monitor"] for event in verdicts} == {"gradient_noise", "fixed_fraction"}
    assert "switch" in [event["verdict"] for event in verdicts[-2:]]
    page = write_report([run_folder(tmp_path)], tmp_path / "report.html")
    assert "gradient_noise, worker 0" in page.read_text(encoding="utf-8")


def test_the_example_in_virtual_time(tmp_path: Path) -> None:
    options = sets(run__dir=str(tmp_path), train__epochs=4, data__limit=400)
    done = freewheel(
        "simulate", EXAMPLE, "--workers", "8", "--stragglers", "2x4", "--json", *options
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["time"] == "virtual"
    assert 1 < summary["switched_at"] <= math.ceil(4 * 4 / 5) + 1
    never = [*options, "--set", 'protocol.criterion={name="maximum", clock=999}']
    done = freewheel("simulate", EXAMPLE, "--json", *never)
    summary = json.loads(done.stdout)
    assert summary["switched_at"] is None
    assert summary["switch"].startswith("never fired: maximum ended at")
    assert "never fired" in done.stderr


def test_plan_says_what_it_measured_and_what_to_run(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    done = freewheel(
        "plan",
        EXAMPLE,
        "--json",
        "--seconds",
        "1",
        "--out",
        str(page),
        *sets(data__limit=200, layout__workers=2),
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert len(plan["measured"]["factors"]) == 2
    assert min(plan["measured"]["factors"]) == 1.0
    assert plan["recommended"] in plan["command"]
    assert plan["protocols"][0]["name"] == "all_reduce"
    assert set(plan["protocols"][0]["rates"]) == {"4", "16", "64", "256"}
    assert "plotly" in page.read_text(encoding="utf-8")
