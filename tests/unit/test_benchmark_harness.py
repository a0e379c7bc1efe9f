"""The form of benchmarks: intervals, interleaving, resuming, figures, the page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks import render
from benchmarks.figures import Figure, compute, recompute
from benchmarks.harness import (
    RESULTS,
    ROOT,
    Benchmark,
    interleave,
    read_settings,
)
from benchmarks.intervals import OF_ONE, OF_TWO, t_interval


def bench(folder: Path, seeds: Sequence[int] = (0, 1, 2), **settings: Any) -> Benchmark:
    work, out = folder / "x.jsonl", folder / "x.json"
    return Benchmark("x", settings, seeds=seeds, work=work, out=out, about="An example.")


def arm(name: str, values: Sequence[float | None]) -> dict[str, Any]:
    return {
        "name": name,
        "metrics": {"t": {"values": list(values)}},
        "seeds": list(range(len(values))),
        "failures": [],
    }


def test_mean_interval_is_scipys() -> None:
    values = np.array([3.0, 4.5, 4.0, 6.0])
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert t_interval(values) == pytest.approx((expected.low, expected.high))


def test_difference_is_the_paired_t_test() -> None:
    ours, theirs = np.array([1.0, 2.5, 3.0, 4.2]), np.array([0.8, 2.6, 2.0, 3.0])
    expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    reached, interval = OF_TWO["mean_difference"](ours, theirs)
    assert reached == pytest.approx(np.mean(ours - theirs))
    assert interval == pytest.approx((expected.low, expected.high))


def test_bootstrap_agrees_with_scipys() -> None:
    values = np.random.default_rng(3).normal(10.0, 2.0, 40)
    expected = stats.bootstrap(
        (values,), np.median, method="percentile", n_resamples=10_000, rng=np.random.default_rng(1)
    ).confidence_interval
    _, interval = OF_ONE["median"](values)
    assert interval == pytest.approx((expected.low, expected.high), abs=0.15)


def test_paired_ratio_of_proportional_arms_has_no_width() -> None:
    values = np.array([1.0, 5.0, 2.0, 9.0])
    reached, interval = OF_TWO["ratio_of_medians"](2 * values, values)
    assert reached == pytest.approx(2.0)
    assert interval == pytest.approx((2.0, 2.0))
    assert OF_TWO["ratio_of_sds"](3 * values, values)[0] == pytest.approx(3.0)
    assert OF_TWO["relative_difference"](0.9 * values, values)[0] == pytest.approx(0.1)


def test_one_seed_has_no_interval() -> None:
    assert OF_ONE["mean"](np.array([7.0])) == (7.0, None)
    assert OF_ONE["median"](np.array([7.0])) == (7.0, None)


def test_interleaved_all_arms_of_a_seed_together_in_turning_order() -> None:
    order = list(interleave(["a", "b", "c"], [5, 6]))
    assert order == [("a", 5), ("b", 5), ("c", 5), ("c", 6), ("b", 6), ("a", 6)]


def test_results_have_the_form_and_figures_come_from_arms(tmp_path: Path) -> None:
    run = bench(tmp_path, size=4)
    run.run({"ours": lambda seed: {"t": seed + 1}, "theirs": lambda seed: {"t": 2 * (seed + 1)}})
    figure = Figure(0.4, "at_most", "ratio_of_medians", "t", "ours", "theirs")
    run.write({"ours to theirs": figure})
    results = json.loads((tmp_path / "x.json").read_text())

    asked = {"command", "date", "machine", "versions", "load", "seeds", "arms", "headline"}
    assert asked <= set(results)
    assert {"cores", "cpu_model", "memory_gib"} <= set(results["machine"])
    assert {"before", "after"} <= set(results["load"])
    assert [one["name"] for one in results["arms"]] == ["ours", "theirs"]
    assert results["arms"][1]["metrics"]["t"]["values"] == [2, 4, 6]
    assert results["arms"][1]["metrics"]["t"]["median"] == 4
    entry = results["headline"]["ours to theirs"]
    assert (entry["asked"], entry["reached"], entry["holds"]) == (0.4, 0.5, False)
    assert recompute(entry, results["arms"]) == entry


def test_finished_units_are_not_run_again_and_half_a_line_is(tmp_path: Path) -> None:
    def first(seed: int) -> dict[str, float]:
        if seed == 2:
            raise KeyboardInterrupt
        return {"t": 10.0 + seed}

    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path).run({"a": first})
    with (tmp_path / "x.jsonl").open("a") as file:
        file.write('{"arm": "a", "seed": 2, "sett')  # killed in the middle of a line

    ran: list[int] = []

    def second(seed: int) -> dict[str, float]:
        ran.append(seed)
        return {"t": 20.0 + seed}

    again = bench(tmp_path)
    again.run({"a": second})
    assert ran == [2]
    assert again.arms()[0]["metrics"]["t"]["values"] == [10.0, 11.0, 22.0]

    third = bench(tmp_path)
    third.run({"a": second})
    assert ran == [2]


def test_what_another_machine_published_is_taken_over_when_asked(tmp_path: Path) -> None:
    def failing(seed: int) -> dict[str, float]:
        if seed == 1:
            raise RuntimeError("no")
        return {"t": float(seed)}

    first = bench(tmp_path, size=3)
    first.run({"a": failing})
    first.write({})
    first.work.unlink()
    taken: list[int] = []

    def count(seed: int) -> dict[str, float]:
        taken.append(seed)
        return {"t": -1.0}

    same, other = {"size": 3}, {"size": 4}
    for settings, expected in ((same, [1]), (other, [0, 1, 2])):
        again = Benchmark(
            "x", settings, seeds=(0, 1, 2), work=tmp_path / "y.jsonl", out=first.out, go_on=True
        )
        again.run({"a": count})
        assert taken == expected
        taken.clear()
        again.out = tmp_path / "again.json"
        assert again.write({})["taken_over"] == 3 - len(expected)


def test_other_settings_are_other_units(tmp_path: Path) -> None:
    bench(tmp_path, size=1).run({"a": lambda seed: {"t": 1.0}})
    other = bench(tmp_path, size=2)
    other.run({"a": lambda seed: {"t": 2.0}})
    assert other.arms()[0]["metrics"]["t"]["values"] == [2.0, 2.0, 2.0]


def test_an_arm_that_fails_is_a_row_and_its_figure_does_not_hold(tmp_path: Path) -> None:
    def fragile(seed: int) -> dict[str, float]:
        if seed == 1:
            raise RuntimeError("it diverged")
        return {"t": 1.0}

    run = bench(tmp_path)
    run.run({"a": fragile, "b": lambda seed: {"t": 2.0}, "c": lambda seed: {"t": math.nan}})
    assert run.arms()[0]["failures"] == ["RuntimeError: it diverged"]
    assert run.arms()[0]["metrics"]["t"]["values"] == [1.0, None, 1.0]
    figures = {
        "half": Figure(1.0, "at_most", "ratio_of_medians", "t", "a", "b"),
        "lost": Figure(1.0, "at_most", "median", "t", "c"),
    }
    results = run.write(figures)
    assert results["headline"]["half"]["reached"] == 0.5
    assert results["headline"]["half"]["holds"] is False
    assert results["headline"]["lost"]["reached"] is None
    assert results["headline"]["lost"]["holds"] is False
    assert "1 of 3: RuntimeError: it diverged" in render.render([results])


def test_of_several_arms_the_best_stands_in_the_figure() -> None:
    arms = [arm("gpipe/1", [9, 9, 9]), arm("1f1b/4", [4, 5, 6]), arm("ours", [5, 5, 5])]
    figure = Figure(1.0, "at_most", "ratio_of_medians", "t", "ours", ["gpipe/1", "1f1b/4"])
    entry = compute(figure, arms)
    assert entry["of"] == {"arm": "ours", "against": "1f1b/4"}
    assert (entry["reached"], entry["holds"]) == (1.0, True)
    most = compute(
        Figure(None, "at_least", "median", "t", ["ours", "gpipe/1"], best="highest"), arms
    )
    assert (most["of"]["arm"], most["reached"], most["holds"]) == ("gpipe/1", 9.0, None)


def test_arms_over_other_seeds_cannot_be_paired() -> None:
    other = arm("b", [1, 2, 3]) | {"seeds": [7, 8, 9]}
    with pytest.raises(ValueError, match="different seeds"):
        compute(
            Figure(1.0, "at_most", "mean_difference", "t", "a", "b"), [arm("a", [1, 2, 3]), other]
        )


def test_tiny_may_only_override_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "benchmark.toml"
    file.write_text(
        'about = "An example."\nseeds = [0, 1]\nsize = 9\n[tiny]\nseeds = [0]\nsize = 1\n'
    )
    assert read_settings(file, tiny=False) == ("An example.", [0, 1], {"size": 9})
    assert read_settings(file, tiny=True) == ("An example.", [0], {"size": 1})
    file.write_text('about = "x"\nseeds = [0]\n[tiny]\nsizes = 1\n')
    with pytest.raises(ValueError, match="sizes"):
        read_settings(file, tiny=True)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_committed_figures_are_computed_from_committed_arms(path: Path) -> None:
    results = json.loads(path.read_text())
    assert results["name"] == path.stem
    assert not results["tiny"]
    for entry in results["headline"].values():
        assert recompute(entry, results["arms"]) == entry


def test_the_page_of_benchmarks_is_up_to_date() -> None:
    assert render.main(["--check"]) == 0, "run: python -m benchmarks.render"


def test_every_benchmark_has_its_settings() -> None:
    for main in ROOT.glob("*/__main__.py"):
        if (settings := main.with_name("benchmark.toml")).exists():
            for tiny in (False, True):
                about, seeds, _ = read_settings(settings, tiny=tiny)
                assert about
                assert seeds
