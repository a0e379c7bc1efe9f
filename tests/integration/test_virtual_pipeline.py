"""A pipeline in virtual time is the real one, bit for bit, but for its times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from torch import Tensor, nn
from typer.testing import CliRunner

from cli import SUPPORT, freewheel, run_folder
from freewheel.cli.simulate import simulate as simulate_command
from freewheel.config import load_config, parse_config
from freewheel.errors import ConfigError, NonFiniteError
from freewheel.observe.run_folder import read_rows
from freewheel.runtime.checkpoints.final import load_final
from freewheel.runtime.pieces import Given, Pieces
from freewheel.runtime.virtual.costs import shares
from freewheel.runtime.virtual.pipeline import simulate_pipeline
from freewheel.simulate import Compute, Fault, LinkSpec, Stragglers
from freewheel.simulate.run import Virtual

FILE = """
[run]
dir = "{dir}"
threads = 1
[data]
factory = "factories:small_data"
batch_size = 8
[model]
factory = "factories:dropping_model"
[optimizer]
name = "sgd"
lr = 0.05
momentum = 0.9
[schedule]
name = "cosine"
[train]
steps = 40
clip_norm = 1.0
[eval]
every = 10
[layout]
kind = "pipeline"
stages = 2
micro_batches = 2
"""
CASES = {
    "vanilla": "",
    "fixed horizon": """
[codec]
forward = "quantise:8"
backward = "quantise:8"
[protocol]
name = "coast"
real = 4
horizon = 4
[predictor]
name = "velocity"
estimate = "ewma"
""",
    "data-driven": """
[protocol]
name = "coast"
real = 6
horizon = 4
[predictor]
name = "backtest"
candidates = ["velocity", "average"]
margin = 0.0
[monitor]
name = "loss_guard"
min_losses = 2
sigmas = 0.2
""",
    "replay": """
[codec]
forward = "delta+quantise:4"
backward = "error_feedback+top_k:0.5"
[protocol]
name = "replay"
every = 4
""",
}
DECISIONS = ("alone", "verdict", "rollback")

app = typer.Typer()
app.command()(simulate_command)


def call(*options: str) -> dict[str, Any]:
    """Run ``freewheel simulate`` in this process."""
    done = CliRunner().invoke(app, [*options, "--json"])
    if done.exception is not None:
        raise done.exception
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def decisions(folder: Path) -> list[tuple[Any, ...]]:
    """What was decided, by process, in its order; processes of a real run tell at the same time."""
    events = [event for event in read_rows(folder / "events.jsonl") if event["event"] in DECISIONS]
    times = ("at_s", "virtual_s")
    told = [{k: v for k, v in event.items() if k not in times} for event in events]
    return sorted((e["process"], i, json.dumps(e)) for i, e in _numbered(told))


def _numbered(events: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    count: dict[str, int] = {}
    numbered = []
    for event in events:
        count[event["process"]] = count.get(event["process"], 0) + 1
        numbered.append((count[event["process"]], event))
    return numbered


def losses(folder: Path) -> dict[int, float]:
    rows = read_rows(folder / "metrics.jsonl")
    return {row["step"]: row["loss"] for row in rows if row["loss"] is not None}


@pytest.mark.parametrize("case", CASES)
def test_a_virtual_run_is_the_real_run_of_the_same_file(case: str, tmp_path: Path) -> None:
    """Two processes against none: parameters, losses, scores, decisions, bytes."""
    text = FILE + CASES[case]
    files = [tmp_path / "real.toml", tmp_path / "virtual.toml"]
    for file in files:
        file.write_text(text.format(dir=file.with_suffix("")))
    ended = freewheel("train", str(files[0]), "--json", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    train, simulate = json.loads(ended.stdout), call(str(files[1]), "--link", "10mbit,1ms")
    folders = [run_folder(file.with_suffix("")) for file in files]
    states = [load_final(folder) for folder in folders]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
    assert losses(folders[0]) == losses(folders[1])
    assert len(losses(folders[0])) > 5
    assert decisions(folders[0]) == decisions(folders[1])
    assert bool(decisions(folders[0])) == (case != "vanilla")
    for key in ("final_metrics", "steps", "samples", "train_loss", "messages_sent"):
        assert train[key] == simulate[key], key
    assert simulate["bytes_sent"] == pytest.approx(train["bytes_sent"], rel=0.01)
    assert simulate["evaluation"]["bytes_sent"] == train["evaluation"]["bytes_sent"]
    assert simulate["time"] == "virtual"
    assert simulate["wall_s"] is None


def test_the_data_driven_case_has_both_sorts_of_jump(tmp_path: Path) -> None:
    """So that the comparison above is one of decisions, and not of their absence."""
    file = tmp_path / "run.toml"
    file.write_text(FILE.format(dir=tmp_path / "runs") + CASES["data-driven"])
    config = load_config(file)
    folder, _ = simulate_pipeline(config, Pieces(config, path=(str(SUPPORT),)))
    verdicts = {e["verdict"] for e in read_rows(folder / "events.jsonl") if e["event"] == "verdict"}
    assert verdicts == {"trust", "doubt"}


# --- time, against closed forms ------------------------------------------------------------------

WIDTH, BATCH = 32, 8


def linear() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, WIDTH) for _ in range(4)]


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, WIDTH, generator=generator), torch.randint(
        0, WIDTH, (64,), generator=generator
    )


def timed(
    folder: Path, virtual: Virtual, steps: int = 10, **layout: Any
) -> tuple[Path, dict[str, Any]]:
    config = parse_config(
        {
            "run": {"dir": str(folder)},
            "data": {"batch_size": BATCH},
            "train": {"steps": steps},
            "layout": {"kind": "pipeline", "stages": 2, "micro_batches": 1, **layout},
        }
    )
    given = Given(linear, lambda: (data(), data()), nn.CrossEntropyLoss())
    return simulate_pipeline(config, Pieces(config, given), virtual)


def test_compute_alone_takes_the_time_of_one_machine(tmp_path: Path) -> None:
    _, summary = timed(tmp_path, Virtual(Compute(step_s=0.5)))
    # with one micro-batch no two stages ever compute at a time
    assert summary["virtual_s"] == pytest.approx(10 * 0.5)
    assert summary["compute_s"] == pytest.approx(10 * 0.5)


def test_a_slow_link_adds_two_crossings_to_each_step(tmp_path: Path) -> None:
    link = LinkSpec(rate_mbit=1.0, delay_ms=20.0)
    _, summary = timed(tmp_path, Virtual(Compute(step_s=0.0), link), steps=10)
    # forward and backward: a batch of floats each, and less than 5% of it in headers
    crossing = 0.020 + BATCH * WIDTH * 4 * 8 / 1e6
    assert summary["virtual_s"] == pytest.approx(10 * 2 * crossing, rel=0.05)
    assert summary["virtual_s"] > 10 * 2 * crossing


def test_micro_batches_overlap(tmp_path: Path) -> None:
    """GPipe with M micro-batches and equal stages: (M + 1) / (2 M) of one machine's time."""
    micro, steps = 4, 10
    _, summary = timed(
        tmp_path,
        Virtual(Compute(step_s=1.0)),
        steps=steps,
        micro_batches=micro,
        schedule="gpipe",
    )
    first, last = shares(
        [nn.Sequential(*linear()[:2]), nn.Sequential(*linear()[2:])], data()[0][:2]
    )
    slow = max(first.forward, last.forward), max(first.backward, last.backward)
    # forwards fill the pipeline once, backwards drain it once
    forward = first.forward / micro + slow[0] * (micro - 1) / micro + last.forward / micro
    backward = last.backward / micro + slow[1] * (micro - 1) / micro + first.backward / micro
    assert summary["virtual_s"] == pytest.approx(steps * (forward + backward), rel=1e-6)


def test_a_straggler_slows_its_stage_alone(tmp_path: Path) -> None:
    _, summary = timed(tmp_path, Virtual(Compute(1.0, Stragglers(1, 4.0))))
    last = shares([nn.Sequential(*linear()[:2]), nn.Sequential(*linear()[2:])], data()[0][:2])[1]
    assert summary["virtual_s"] == pytest.approx(10 * (1.0 + 3 * (last.forward + last.backward)))


def test_the_same_command_gives_the_same_numbers(tmp_path: Path) -> None:
    virtual = Virtual(Compute(0.01, jitter=0.5, seed=3), LinkSpec(10.0, 1.0))
    once, twice = (timed(tmp_path, virtual, micro_batches=2)[1] for _ in range(2))
    assert {**once, "total_s": 0} == {**twice, "total_s": 0}


def test_shares_add_up_and_leave_the_modules_alone() -> None:
    stages = [nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)), nn.Linear(8, 3)]
    before = [{k: v.clone() for k, v in stage.state_dict().items()} for stage in stages]
    example, random = torch.randn(4, 4), torch.get_rng_state()
    found = shares(stages, example)
    assert torch.equal(torch.get_rng_state(), random)
    assert sum(map(sum, found)) == pytest.approx(1.0)
    # multiply-adds: 4 x 8 forward and for the weights; 8 x 3 three times, as gradients go on
    assert found[0].forward / found[1].forward == pytest.approx(32 / 24)
    assert found[0].backward / found[1].backward == pytest.approx(32 / 48)
    for stage, state in zip(stages, before, strict=True):
        assert all(torch.equal(stage.state_dict()[k], v) for k, v in state.items())
        assert all(parameter.grad is None for parameter in stage.parameters())
        assert stage.training


def test_without_arithmetic_all_stages_share_alike() -> None:
    assert shares([nn.Tanh(), nn.Tanh()], torch.ones(2)) == [(1 / 6, 2 / 6)] * 2


# --- what is written, and what is refused --------------------------------------------------------


def test_rows_and_events_have_virtual_times(tmp_path: Path) -> None:
    folder, summary = timed(tmp_path, Virtual(Compute(0.1)))
    rows = read_rows(folder / "metrics.jsonl")
    assert {row["process"] for row in rows} == {"stage 0", "stage 1"}
    assert all("at_s" not in row for row in rows)
    assert max(row["virtual_s"] for row in rows) == pytest.approx(summary["virtual_s"])
    assert json.loads((folder / "summary.json").read_text())["virtual_s"] == summary["virtual_s"]
    (scored,) = [e for e in read_rows(folder / "events.jsonl") if e["event"] == "evaluated"]
    assert scored["virtual_s"] <= summary["virtual_s"]


def test_a_stage_that_raises_ends_the_run_and_says_so(tmp_path: Path) -> None:
    config = parse_config(
        {
            "run": {"dir": str(tmp_path)},
            "data": {"factory": "factories:small_data", "nan_at": 5, "batch_size": 8},
            "model": {"factory": "factories:small_model"},
            "train": {"steps": 6},
        }
    )
    with pytest.raises(NonFiniteError, match="inputs of step"):
        simulate_pipeline(config, Pieces(config, path=(str(SUPPORT),)))
    summary = json.loads((run_folder(tmp_path) / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "inputs of step" in summary["error"]


def test_the_command_refuses_workers_for_a_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(FILE.format(dir=tmp_path))
    with pytest.raises(ConfigError, match=r"use --set layout\.stages=4"):
        call(str(file), "--workers", "4")


@pytest.mark.parametrize(
    ("sections", "virtual", "text"),
    [
        ({"layout": {"kind": "replicas"}}, Virtual(), "has workers and no stages"),
        ({"link": {"jitter_ms": 1.0}}, Virtual(), "link.jitter_ms = 1.0 is not simulated"),
        ({}, Virtual(faults=(Fault("death", 0, 1.0),)), "deaths and joins"),
        ({}, Virtual(cost_only=True), "without gradients"),
        ({}, Virtual(server_s=1.0, shared=False), "server and a budget of each worker"),
    ],
)
def test_what_is_not_simulated_is_refused(
    sections: dict[str, Any], virtual: Virtual, text: str
) -> None:
    config = parse_config(sections)
    with pytest.raises(ConfigError, match=text):
        simulate_pipeline(config, Pieces(config), virtual)
