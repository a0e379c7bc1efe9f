"""``freewheel compare`` with real processes, and the floors against plain PyTorch."""

from __future__ import annotations

import copy
import json
import signal
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import comparison
from browser import browser, find_chromium
from cli import all_gone, freewheel, start, tree_of
from freewheel.compare import floors
from freewheel.compare.data import scored_sections
from freewheel.compare.floors import floor_sections
from freewheel.compare.report import write_all
from freewheel.compare.table import Table
from freewheel.compare.uncoded import score_uncoded
from freewheel.config import parse_config
from freewheel.runtime.checkpoints.final import save_final
from freewheel.runtime.pieces import Given, Pieces
from in_threads import run_pipeline
from plain import train_plain

RUN: dict[str, Any] = {
    "data": {"name": "digits", "batch_size": 32},
    "model": {"name": "mlp", "hidden": [16]},
    "optimizer": {"name": "adam", "lr": 0.01},
    "schedule": {"name": "cosine"},
    "train": {"steps": 12},
    "run": {"seed": 3},
}


def train_floor(factory: str, **settings: Any) -> Any:
    vanilla = parse_config(RUN)
    made = {"factory": f"freewheel.compare.floors:{factory}", **settings}
    sections = {**RUN, **floor_sections(made, vanilla)}
    sections["run"] = {**RUN["run"], **sections["run"]}
    return run_pipeline(Given(), **sections)


def plainly(model: nn.Module) -> list[float]:
    source = Pieces(parse_config(RUN)).source()
    every = torch.arange(len(source.train))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=0.01)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
    x, y = source.train.inputs(every), source.train.targets(every)
    loss = nn.functional.cross_entropy
    return train_plain(model, x, y, loss, optimizer, 12, 32, schedule=cosine, seed=3)


def test_frozen_upstream_is_vanilla_with_all_stages_but_the_last_as_they_began() -> None:
    pieces = Pieces(parse_config(RUN))
    partition = pieces.partition(pieces.source())
    upstream, last = partition.build(0), partition.build(1)
    began = copy.deepcopy(upstream.state_dict())
    for parameter in upstream.parameters():
        parameter.requires_grad_(False)
    expected = plainly(nn.Sequential(upstream, last))
    outcome = train_floor("frozen_upstream")
    assert outcome.losses == pytest.approx(expected, rel=1e-5)
    for name, value in began.items():
        assert torch.equal(outcome.state[f"stage0.{name}"], value)
    assert outcome.totals[0]["traffic"]["train"]["bytes_sent"] == 0


def test_zero_comm_trains_stage_0_with_a_head_of_its_own() -> None:
    pieces = Pieces(parse_config(RUN))
    upstream = pieces.partition(pieces.source()).build(0)
    outcome = train_floor("zero_comm", hidden=[7])
    first = {k: v for k, v in outcome.state.items() if k.startswith("stage0.")}
    assert any(not torch.equal(first[f"stage0.{k}"], v) for k, v in upstream.state_dict().items())
    assert outcome.state["head.1.weight"].shape == (7, 16)
    assert outcome.state["head.3.weight"].shape == (10, 7)
    assert outcome.totals[0]["traffic"]["train"]["bytes_sent"] == 0


@pytest.mark.parametrize(
    ("run", "shape"),
    [
        ({"data": {"name": "digits"}, "model": {"name": "lenet"}}, (10, 128)),
        (
            {
                "data": {"factory": "language:text"},
                "model": {"name": "tinygpt", "width": 8, "heads": 2, "layers": 2},
            },
            (17, 8),
        ),
    ],
    ids=["images", "language"],
)
def test_the_head_takes_what_stage_0_sends(
    run: dict[str, Any], shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def text() -> Any:
        tokens = torch.randint(0, 17, (6, 5), generator=torch.Generator().manual_seed(1))
        return {"train": (tokens, tokens), "task": "language", "num_classes": 17}

    module = types.ModuleType("language")
    module.text = text  # type: ignore[attr-defined]  # a module made here
    monkeypatch.setitem(sys.modules, "language", module)
    model = floors.zero_comm(run)
    (head,) = [m for m in model.head.modules() if isinstance(m, nn.Linear)]
    assert head.weight.shape == shape


def test_runs_may_be_scored_on_validation() -> None:
    config = parse_config(RUN)
    sections = scored_sections(config, "validation", limit=40)
    merged = parse_config({**RUN, **sections})
    found, source = Pieces(merged).source(), Pieces(config).source()
    some = torch.arange(40)
    assert len(found.test) == 40
    assert torch.equal(found.test.inputs(some), source.validation.inputs(some))
    assert torch.equal(found.train.targets(some), source.train.targets(some))
    assert merged.data.batch_size == 32


def test_final_parameters_are_scored_as_plain_pytorch_does(tmp_path: Path) -> None:
    config = parse_config(RUN)
    pieces = Pieces(config)
    source = pieces.source()
    partition = pieces.partition(source)
    (tmp_path / "final").mkdir()
    for rank in range(2):
        save_final(tmp_path, f"stage {rank}", partition.build(rank))
    model = nn.Sequential(partition.build(0), partition.build(1))
    every = torch.arange(len(source.test))
    with torch.no_grad():
        output, targets = model(source.test.inputs(every)), source.test.targets(every)
    right = float((output.argmax(1) == targets).float().mean())
    assert score_uncoded(config, tmp_path, (), "accuracy") == pytest.approx(right)
    loss = float(nn.functional.cross_entropy(output, targets))
    assert score_uncoded(config, tmp_path, (), "loss") == pytest.approx(loss, rel=1e-5)


#: Resolves once the page has drawn every plot.
DRAWN = """new Promise((done) => {
  const look = () => document.documentElement.dataset.drawn ? done(true) : setTimeout(look, 20);
  look();
})"""
#: For each plot: whether it drew a line or a mark with some extent.
MARKS = """[...document.querySelectorAll(".plot.js-plotly-plot")].map((plot) =>
  [...plot.querySelectorAll(".plot path")].some((mark) => mark.getBBox().width > 0))"""

FILE = """
[run]
name = "small"
[data]
factory = "factories:small_data"
batch_size = 8
[model]
factory = "factories:small_model"
[train]
steps = 6
[eval]
every = 2
[compare]
seeds = 1
probe_steps = 0
controls = ["train_less"]
[[arm]]
name = "8 bits"
codec.forward = "quantise:8"
codec.backward = "quantise:8"
"""


def results(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    found = json.loads((folder / "results.json").read_text())
    return found, {arm["name"]: arm for arm in found["arms"]}


@pytest.mark.timeout(240)
def test_a_comparison_ends_with_a_table_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """A control at an arm's bytes has no more of them; what is done is not done again."""
    (tmp_path / "c.toml").write_text(FILE)
    command = ("compare", "c.toml", "--out", "out")
    done = freewheel(*command, cwd=tmp_path, timeout_s=200)
    assert done.returncode == 0, done.stderr
    assert "train less (8 bits)" in done.stdout
    arms = results(tmp_path / "out")[1]
    assert list(arms) == ["vanilla", "8 bits", "train less (8 bits)"]
    vanilla, bits, less = (
        {key: value["values"][0] for key, value in arm["metrics"].items()} for arm in arms.values()
    )
    assert less["bytes"] <= bits["bytes"] < vanilla["bytes"]
    assert 0 <= bits["uncoded"] <= 1
    assert vanilla["uncoded"] is None
    assert less["steps"] == int(6 * bits["bytes"] / vanilla["bytes"])
    again = freewheel(*command, cwd=tmp_path)
    assert again.returncode == 0
    assert "3 runs are done already" in again.stderr
    assert not [line for line in again.stderr.splitlines() if "seed 0:" in line]
    assert results(tmp_path / "out")[1] == arms


@pytest.mark.timeout(240)
def test_a_stopped_comparison_leaves_a_table_and_no_process(tmp_path: Path) -> None:
    """Ctrl-C in the middle of an arm: exit code 130, a row that says so, nobody left behind."""
    gate = tmp_path / "gate"
    text = FILE.replace('"factories:small_model"', f'"factories:waiting_model"\nfile = "{gate}"')
    (tmp_path / "c.toml").write_text(text.partition("[[arm]]")[0])
    runs = tmp_path / "out" / "runs"
    with start("compare", "c.toml", "--out", "out", cwd=tmp_path) as command:
        assert command.stderr is not None
        for line in command.stderr:
            if "runs are done already" in line:
                break
        while not list(runs.glob("*/*/logs")):
            assert command.poll() is None, command.stderr.read()
        family = tree_of(command.pid)
        command.send_signal(signal.SIGINT)
        assert command.wait(60) == 130, command.stderr.read()
        assert "go on with: freewheel compare c.toml --out out" in command.stderr.read()
    assert all_gone(family) == []
    rows = {row["arm"]: row for row in results(tmp_path / "out")[0]["rows"]}
    assert rows["vanilla"]["statuses"] == {"interrupted": 1}


@pytest.mark.chromium
@pytest.mark.skipif(find_chromium() is None, reason="there is no chromium on this machine")
def test_the_page_draws_all_its_plots_and_the_console_is_clean(tmp_path: Path) -> None:
    links = "links = [{ rate_mbit = 20, delay_ms = 5 }]"
    outcome = comparison.outcome_of(tmp_path, links)
    for arm in (comparison.VANILLA, comparison.ARM):
        seconds = {"step_seconds": {"sync": {"wall_s": 0.2, "free_s": 0.1}}}
        short = comparison.unit(arm, 0, None, **seconds)
        outcome.times["20 Mbit/s, 5 ms", arm, 0] = short
    write_all(Table(outcome), tmp_path / "out", "freewheel compare c.toml")
    with browser(tmp_path / "profile") as chromium:
        for width in (1280, 400):
            chromium.open(tmp_path / "out" / "results.html", width, 900)
            assert chromium.evaluate(DRAWN)
            marks = chromium.evaluate(MARKS)
            assert len(marks) == 5  # two Pareto pictures, differences, two of curves
            assert all(marks)
            wide = chromium.evaluate("document.documentElement.scrollWidth")
            assert wide <= width
            assert chromium.complaints() == []
            assert {url.partition(":")[0] for url in chromium.requests()} <= {"file", "data"}
