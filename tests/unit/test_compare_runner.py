"""Which runs a comparison makes, in which order, and what it does with those that fail.

Runs are made up: a function in the place of ``launch.session.run`` writes the folder of one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from freewheel.compare import execute, runner
from freewheel.compare.arms import read_plan
from freewheel.compare.runner import Outcome, Runner
from freewheel.compare.table import Table
from freewheel.config import Config
from freewheel.errors import ConfigError, NonFiniteError, StoppedError, WorkerError

FILE = """
[data]
factory = "factories:small_data"
batch_size = 8
[model]
name = "mlp"
hidden = [8]
[schedule]
name = "cosine"
warmup = 20
[train]
steps = 100
[link]
rate_mbit = 50
[compare]
seeds = 2
{compare}
[[arm]]
name = "4 bits"
codec.forward = "quantise:4"
codec.backward = "quantise:4"
"""
#: Bytes of a step, by what is coded.
BYTES = {"identity": 800, "quantise:4": 100}


class Runs:
    """Stands in for ``run``: every run is as told, and is remembered."""

    def __init__(self, fail: Callable[[Config], None] | None = None) -> None:
        self.made: list[Config] = []
        self._fail = fail

    def __call__(self, config: Config, origin: Any, quiet: bool) -> None:
        self.made.append(config)
        steps = config.train.steps or 0
        folder = Path(config.run.dir) / f"run-{id(self)}-{len(self.made)}"
        folder.mkdir(parents=True)
        (folder / "config.toml").touch()
        slow = 0.5 / config.layout.micro_batches if config.link.rate_mbit else 0.0
        rows = [
            {
                "process": process,
                "step": step,
                "compute_s": 0.25,
                "wait_s": slow,
                "send_s": 0.0,
                "bytes_sent": BYTES[str(config.codec.forward)] // 2,
                "messages_sent": 1,
            }
            for step in range(1, steps + 1)
            for process in ("stage 0", "stage 1")
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        (folder / "events.jsonl").write_text("")
        if self._fail is not None:
            self._fail(config)
        found = {"final_metrics": {"accuracy": 0.9, "loss": 0.3}}
        (folder / "summary.json").write_text(json.dumps(found))

    @property
    def seeds(self) -> list[int]:
        return [config.run.seed for config in self.made]


def compare(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str = "probe_steps = 0",
    fail: Callable[[Config], None] | None = None,
    **more: Any,
) -> tuple[Outcome, Runs]:
    runs = Runs(fail)
    monkeypatch.setattr(execute, "run", runs)
    monkeypatch.setattr(runner, "score_uncoded", lambda *_: 0.8)
    file = tmp_path / "c.toml"
    file.write_text(FILE.format(compare=text))
    return Runner(read_plan(file), tmp_path / "out", **more).run(), runs


def kind(config: Config) -> str:
    if config.model.factory is not None:
        return config.model.factory.rpartition(":")[2]
    if config.codec.forward != "identity":
        return "arm"
    return "vanilla" if config.train.steps == 100 else "less"


def test_arms_of_a_seed_are_back_to_back_and_every_second_seed_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, runs = compare(tmp_path, monkeypatch)
    assert [(kind(config), config.run.seed) for config in runs.made] == [
        *(("vanilla", 0), ("arm", 0), ("zero_comm", 0), ("frozen_upstream", 0), ("less", 0)),
        *(("frozen_upstream", 1), ("zero_comm", 1), ("arm", 1), ("vanilla", 1), ("less", 1)),
    ]


def test_train_less_has_the_arms_bytes_and_its_schedule_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, runs = compare(tmp_path, monkeypatch)
    less = next(config for config in runs.made if kind(config) == "less")
    assert less.train.steps == 100 * 100 // 800
    assert less.schedule.warmup == 2  # 20 of 100, so 2.4 of 12
    assert less.codec.forward == "identity"
    vanilla = next(config for config in runs.made if kind(config) == "vanilla")
    assert (vanilla.eval.every, less.eval.every) == (5, 1)  # as often: twenty times


def test_floors_are_one_process_at_vanillas_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, runs = compare(tmp_path, monkeypatch)
    floor = next(config for config in runs.made if kind(config) == "zero_comm")
    assert floor.layout.stages == 1
    assert floor.model.settings["config"]["run"] == {"seed": 0}
    assert floor.model.settings["config"]["model"] == {"name": "mlp", "hidden": [8]}
    assert floor.train.steps == 100


def test_what_is_done_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, runs = compare(tmp_path, monkeypatch)
    again, none = compare(tmp_path, monkeypatch)
    assert (len(runs.made), len(none.made)) == (10, 0)
    assert again.units == first.units
    more, new = compare(tmp_path, monkeypatch, "probe_steps = 0\nmargin = 0.02")
    assert new.made == []  # what the table says of runs is not a part of them
    assert more.plan.section.margin == 0.02
    assert not list((tmp_path / "out" / "runs").iterdir())  # of runs that ended well


@pytest.mark.parametrize(
    ("error", "status"),
    [(NonFiniteError("the loss is nan"), "diverged"), (WorkerError("stage 1 died"), "crashed")],
)
def test_a_failed_run_is_a_row_and_is_not_retried_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: str
) -> None:
    def fail(config: Config) -> None:
        if kind(config) == "arm" and config.run.seed == 0:
            raise error

    outcome, runs = compare(tmp_path, monkeypatch, fail=fail)
    assert (outcome.units["4 bits", 0].status, outcome.units["4 bits", 1].status) == (status, "ok")
    assert ("train less (4 bits)", 0) not in outcome.units  # there is no budget to fit
    assert outcome.units["4 bits", 0].run is not None
    assert Path(outcome.units["4 bits", 0].run).exists()  # to look for the reason in
    assert len(runs.made) == 9
    assert compare(tmp_path, monkeypatch)[1].made == []
    retried, again = compare(tmp_path, monkeypatch, retry_failed=True)
    assert [kind(config) for config in again.made] == ["arm", "less"]
    assert retried.units["4 bits", 0].status == "ok"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StoppedError("stopped")])
def test_an_interrupted_run_is_a_row_and_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def stop(config: Config) -> None:
        if kind(config) == "arm":
            raise error

    outcome, _ = compare(tmp_path, monkeypatch, fail=stop)
    assert outcome.interrupted
    statuses = {row.arm.name: dict(row.statuses) for row in Table(outcome).rows}
    assert statuses["vanilla"] == {"ok": 1, "not run": 1}
    assert statuses["4 bits"] == {"interrupted": 1, "not run": 1}
    again, runs = compare(tmp_path, monkeypatch)
    assert not again.interrupted
    assert len(runs.made) == 9


def test_vanilla_is_the_fastest_of_its_layouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, runs = compare(tmp_path, monkeypatch, "probe_steps = 8\nmicro_batches = [1, 2, 8]")
    probes = [config for config in runs.made if config.train.steps == 8]
    assert [(c.layout.schedule, c.layout.micro_batches) for c in probes] == [
        *(("1f1b", 1), ("1f1b", 2), ("1f1b", 8), ("gpipe", 2), ("gpipe", 8))
    ]
    assert {config.run.seed for config in probes}.isdisjoint({0, 1})
    assert outcome.fastest[""].layout == {"schedule": "1f1b", "micro_batches": 8}
    assert outcome.fastest[""].step_s["1f1b x 2"] == 0.5
    stages = [c for c in runs.made if c.train.steps != 8 and c.layout.stages == 2]
    assert {config.layout.micro_batches for config in stages} == {8}
    assert {config.link.rate_mbit for config in runs.made} == {50}


def test_with_links_accuracy_is_unshaped_and_times_are_short_shaped_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "probe_steps = 0\ntime_steps = 30\nlinks = [{ rate_mbit = 20, delay_ms = 5 }]"
    outcome, runs = compare(tmp_path, monkeypatch, text)
    short = [config for config in runs.made if config.train.steps == 30]
    assert [(kind_of_time(c), c.link.rate_mbit, c.link.delay_ms) for c in short] == [
        ("identity", 20, 5),
        ("quantise:4", 20, 5),
    ]
    assert {c.link.rate_mbit for c in runs.made if c.train.steps != 30} == {None}
    assert {c.data.settings["score"] for c in short} == {200}  # evaluation is not what is timed
    walls = Table(outcome).per_seed(outcome.arms[0])["wall_s, 20 Mbit/s, 5 ms"]
    assert walls == pytest.approx([100 * (0.25 + 0.5 / 4)] * 2)


def kind_of_time(config: Config) -> str:
    return str(config.codec.forward)


def test_validation_is_scored_where_one_tunes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, runs = compare(tmp_path, monkeypatch, part="validation")
    assert {config.data.settings["part"] for config in runs.made} == {"validation"}


def test_a_metric_that_no_run_reports_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="'f1' is not among what the run reports: accuracy, loss"):
        compare(tmp_path, monkeypatch, 'probe_steps = 0\nmetric = "f1"')


def test_an_arm_that_cannot_work_stops_everything_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs()
    monkeypatch.setattr(execute, "run", runs)
    (tmp_path / "c.toml").write_text(
        FILE.format(compare="") + '[[arm]]\nname = "no"\nprotocol.name = "asp"\n'
    )
    with pytest.raises(ConfigError, match="asp"):
        Runner(read_plan(tmp_path / "c.toml"), tmp_path / "out")
    assert runs.made == []
