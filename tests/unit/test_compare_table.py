"""The table of made-up units: every cell from arithmetic."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from comparison import ARM, FILE, FROZEN, LESS, LINEAR, VANILLA, curve, outcome_of, plan_of, unit
from freewheel.compare.arms import read_plan
from freewheel.compare.cells import columns, notes
from freewheel.compare.controls import with_controls
from freewheel.compare.plots import pareto
from freewheel.compare.report import write_all
from freewheel.compare.runner import Outcome
from freewheel.compare.show import show
from freewheel.compare.table import Row, Table


def rows_of(table: Table) -> dict[str, Row]:
    return {row.arm.name: row for row in table.rows}


def test_a_row_is_arithmetic(tmp_path: Path) -> None:
    table = Table(outcome_of(tmp_path))
    assert table.target == pytest.approx(0.91)
    row = rows_of(table)[ARM]
    assert row.metric is not None
    assert row.metric.value == pytest.approx(0.91)
    assert row.difference is not None
    assert (row.difference.value, row.difference.low) == pytest.approx((-0.01, -0.01))
    assert row.recovered is not None
    assert row.floor == FROZEN  # the higher of the two
    assert row.recovered.value == pytest.approx((0.91 - 0.62) / (0.92 - 0.62))
    assert row.byte_ratio is not None
    assert row.byte_ratio.value == pytest.approx(8.0)
    cost = row.costs[""]
    assert cost.wall_s is not None
    assert cost.speedup is not None
    assert (cost.wall_s.value, cost.speedup.value) == pytest.approx((5.0, 2.0))
    assert cost.bound == pytest.approx(10.0 / 4.5)
    # 0.92 at step 50 is the first at 0.91 or above
    assert row.to_target_bytes is not None
    assert cost.to_target_s is not None
    assert (row.to_target_bytes.value, cost.to_target_s.value) == pytest.approx((500_000, 2.5))
    assert row.reached == 3
    assert row.updates == {"stage 0": 100.0, "stage 1": 100.0}


def test_floors_have_no_costs_and_recover_nothing(tmp_path: Path) -> None:
    row = rows_of(Table(outcome_of(tmp_path)))[LINEAR]
    assert (row.num_bytes, row.byte_ratio, row.recovered, dict(row.costs)) == (None, None, None, {})


def test_an_arm_that_failed_is_a_row(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path)
    bad = replace(outcome.units[ARM, 1], status="diverged", error="the loss at step 7 is nan")
    outcome.units[ARM, 1] = bad
    del outcome.units[LESS, 1]
    table = Table(outcome)
    row, less = rows_of(table)[ARM], rows_of(table)[LESS]
    assert dict(row.statuses) == {"ok": 2, "diverged": 1}
    assert row.metric is not None
    assert (row.metric.n, row.num_ok, row.num_seeds) == (2, 2, 3)
    assert dict(less.statuses) == {"ok": 2, "not run": 1}
    by_head = {column.head: column.cells for column in columns(table)}
    assert by_head["seeds"][1] == "2 of 3"
    assert "4 bits: 1 diverged of 3: the loss at step 7 is nan" in notes(table)
    for seed in range(3):
        outcome.units[ARM, seed] = replace(bad, seed=seed)
    row = rows_of(Table(outcome))[ARM]
    assert (row.metric, row.difference, row.num_ok) == (None, None, 0)


def test_a_target_that_few_reach_says_how_many(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path)
    late = {**outcome.units[ARM, 2].measured, "curve": [[100, 0.6, 1, 1.0]]}
    outcome.units[ARM, 2] = replace(outcome.units[ARM, 2], measured=late)
    by_head = {column.head: column.cells for column in columns(Table(outcome))}
    assert by_head["bytes to 91.00%"][:3] == ["6.00 MB", "500 kB (2 of 3)", "not reached"]


def test_less_is_better_for_bits(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, 'metric = "bits_per_byte"\nmargin = "5%"')
    for seed in range(3):
        way = curve(3.0, 2.2, 2.08, 2.0, bytes_a_step=80_000, s_a_step=0.1)
        for made in (
            unit(VANILLA, seed, 2.0, curve=way),
            unit(ARM, seed, 2.1, curve=way),
            unit(LINEAR, seed, 3.0),
            unit(FROZEN, seed, 2.5),
        ):
            outcome.units[made.arm, seed] = made
    table = Table(outcome)
    row = rows_of(table)[ARM]
    assert table.target == pytest.approx(2.1)
    assert row.floor == FROZEN  # the better one: 2.5 bits
    assert row.recovered is not None
    assert row.recovered.value == pytest.approx(0.8)
    assert row.to_target_bytes is not None
    assert row.to_target_bytes.value == pytest.approx(75 * 80_000)


def test_a_floor_within_the_margin_is_said(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path)
    assert not any("proves nothing" in note for note in notes(Table(outcome)))
    for seed in range(3):
        outcome.units[FROZEN, seed] = unit(FROZEN, seed, 0.915)
    assert any("proves nothing" in note for note in notes(Table(outcome)))


def test_an_arm_that_is_cut_elsewhere_has_no_floor_here(tmp_path: Path) -> None:
    path = tmp_path / "d.toml"
    path.write_text(FILE.format(compare="") + 'layout.cuts = ["act1"]\n')
    plan = read_plan(path)
    outcome = replace(outcome_of(tmp_path), plan=plan, arms=with_controls(plan))
    assert rows_of(Table(outcome))[ARM].recovered is None


def test_time_over_a_link_is_predicted_from_kinds_of_steps(tmp_path: Path) -> None:
    link = "links = [{ rate_mbit = 100.0 }]"
    outcome, name = outcome_of(tmp_path, link), "100 Mbit/s"
    kinds = {**outcome.units[ARM, 0].measured, "kinds": {"sync": 40, "coast": 60}}
    outcome.units[ARM, 0] = replace(outcome.units[ARM, 0], measured=kinds)

    def seconds(arm: str, seed: int, **kinds: float) -> None:
        found = {kind: {"wall_s": s, "free_s": s / 2} for kind, s in kinds.items()}
        short = unit(arm, seed, None, step_seconds=found)
        outcome.times[name, arm, seed] = short

    seconds(VANILLA, 0, sync=0.3)
    seconds(VANILLA, 1, sync=0.5)
    seconds(ARM, 0, sync=0.2, coast=0.1)
    table = Table(outcome)
    per_seed = {arm: table.per_seed(rows_of(table)[arm].arm) for arm in (VANILLA, ARM, LESS)}
    assert per_seed[VANILLA][f"wall_s, {name}"] == pytest.approx([40.0] * 3)
    assert per_seed[VANILLA][f"s_to_target, {name}"] == pytest.approx([30.0] * 3)
    assert per_seed[ARM][f"wall_s, {name}"] == pytest.approx([40 * 0.2 + 60 * 0.1, 20.0, 20.0])
    assert per_seed[LESS][f"free_s, {name}"] == pytest.approx([20.0] * 3)  # vanilla's steps
    assert any("predicted" in note for note in notes(table))


def test_a_kind_of_step_that_was_not_timed_has_no_predicted_time(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, "links = [{ rate_mbit = 100.0 }]")
    table = Table(outcome)
    assert rows_of(table)[ARM].costs["100 Mbit/s"].wall_s is None


def test_the_front_joins_what_no_other_beats(tmp_path: Path) -> None:
    front = pareto(Table(outcome_of(tmp_path)), "bytes")["data"][0]
    # train less costs as much as 4 bits and reaches less
    assert front["x"] == pytest.approx([1_000_000, 8_000_000])
    assert front["y"] == pytest.approx([91.0, 92.0])


def test_all_files_are_written(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path)
    outcome.units[ARM, 1] = replace(outcome.units[ARM, 1], status="crashed", error="<b>died</b>")
    write_all(Table(outcome), tmp_path / "out", "freewheel compare c.toml")
    out = tmp_path / "out"
    found = json.loads((out / "results.json").read_text())
    arms = {arm["name"]: arm for arm in found["arms"]}
    assert arms[ARM]["metrics"]["accuracy"]["values"] == pytest.approx([0.89, None, 0.93])
    assert arms[ARM]["metrics"]["accuracy"]["mean"] == pytest.approx(0.91)
    assert arms[ARM]["failures"] == ["<b>died</b>"]
    assert {"machine", "versions", "load", "seeds", "settings", "headline"} < set(found)
    lines = list(csv.DictReader((out / "units.csv").read_text().splitlines()))
    assert len(lines) == 5 * 3
    assert {line["status"] for line in lines} == {"ok", "crashed"}
    assert len(list(csv.DictReader((out / "results.csv").read_text().splitlines()))) == 5
    page = (out / "results.html").read_text()
    assert "<b>died</b>" not in page
    assert "https://" not in page.split("<script>")[0]
    assert "| 4 bits | 2 of 3 |" in (out / "results.md").read_text()
    assert str(tmp_path) not in (out / "results.json").read_text()


@pytest.mark.parametrize("width", [60, 80, 240])
def test_the_terminal_shows_every_arm_at_any_width(tmp_path: Path, width: int) -> None:
    text = StringIO()
    show(Table(outcome_of(tmp_path)), tmp_path, Console(file=text, width=width))
    shown = text.getvalue()
    assert shown.count("frozen upstream") >= (1 if width == 240 else 3)
    assert max(map(len, shown.splitlines())) <= width


def test_nothing_measured_yet_is_a_table_of_dashes(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    table = Table(Outcome(plan, with_controls(plan), interrupted=True))
    assert table.target is None
    assert all(row.statuses == {"not run": 3} for row in table.rows)
    write_all(table, tmp_path / "out", "freewheel compare c.toml")
    assert any("start the same command again" in note for note in notes(table))
