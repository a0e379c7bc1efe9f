"""What a plan predicts, from step times that are given."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from freewheel.config import parse_config
from freewheel.errors import ConfigError
from freewheel.plan.measure import Measured, measure, measure_link
from freewheel.plan.predict import CANDIDATES, Prediction, command, predict, recommend
from freewheel.plan.show import page, print_plan
from freewheel.simulate import LinkSpec


def found(paces: list[float], rate_mbit: float | None = None, num_bytes: int = 1000) -> Measured:
    return Measured([[each] for each in paces], LinkSpec(rate_mbit), 0.0, num_bytes, 1.0)


def by_name(predictions: list[Prediction]) -> dict[str, Prediction]:
    return {each.name: each for each in predictions}


def test_times_are_those_of_arithmetic() -> None:
    """100 steps a worker: the slowest takes 400 s, unless others take its samples over."""
    predictions = by_name(predict(found([1.0, 1.0, 1.0, 4.0]), 4, 1, 100, 8, scales=(4, 8)))
    assert predictions["all_reduce"].time_s == pytest.approx(400.0)
    assert predictions["bsp"].time_s == pytest.approx(400.0)
    assert predictions["asp"].time_s == pytest.approx(400.0)
    # a fifth in step, then 320 batches of which at most 3.25 come a second
    assert 80 + 320 / 3.25 <= predictions["strategy_switch"].time_s <= 200
    assert predictions["asp"].rates[4] == pytest.approx(3.25 * 8, rel=0.1)
    assert predictions["all_reduce"].rates == pytest.approx({4: 8.0, 8: 16.0})
    assert predictions["all_reduce"].wait_share == pytest.approx(9 / 16)
    # 2 * 3 / 4 of the parameters, and 6 headers of 32 bytes, by each of 4 workers; 4 goodbyes
    assert predictions["all_reduce"].num_bytes == 100 * 4 * (6 * 250 + 6 * 32) + 4 * 32


def test_a_longer_run_costs_in_proportion() -> None:
    short, long = (predict(found([1.0, 2.0]), 2, 1, steps, 8, scales=()) for steps in (200, 2000))
    for a, b in zip(short, long, strict=True):
        assert b.time_s == pytest.approx(10 * a.time_s)
        assert b.num_bytes == pytest.approx(10 * a.num_bytes)


def test_the_most_synchronous_of_those_that_are_nearly_as_fast_is_recommended() -> None:
    assert recommend(predict(found([1.0] * 4), 4, 1, 50, 8, scales=())).name == "all_reduce"
    always = found([1.0] * 7 + [8.0])
    assert recommend(predict(always, 8, 1, 50, 8, scales=())).name == "strategy_switch"
    # who is slow changes from step to step: nobody's share is late in the end
    chance = Measured([[1.0] * 9 + [10.0]] * 8, LinkSpec(), 0.0, 1000, 1.0)
    assert recommend(predict(chance, 8, 1, 200, 8, scales=())).name not in ("all_reduce", "bsp")
    # one server for all is the narrow place: a ring has none
    slow = found([0.001] * 8, rate_mbit=10.0, num_bytes=1_000_000)
    assert recommend(predict(slow, 8, 1, 20, 8, scales=())).name == "all_reduce"


@pytest.mark.parametrize(
    ("workers", "servers", "steps", "rule"),
    [(0, 1, 1, "workers must be >= 1, got 0"), (1, 0, 1, "servers"), (1, 1, 0, "steps")],
)
def test_bad_numbers(workers: int, servers: int, steps: int, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        predict(found([1.0]), workers, servers, steps, 8)


def test_commands_are_configuration() -> None:
    for name, settings in CANDIDATES.items():
        words = command("run.toml", Prediction(name, settings, 1.0, 1.0, 0.0, {})).split()
        assert words[:3] == ["freewheel", "train", "run.toml"]
        assert f"protocol.name={name}" in words


def test_the_page_and_the_table_name_every_protocol() -> None:
    predictions = predict(found([1.0, 2.0]), 2, 1, 10, 8, scales=(4,))
    chosen = recommend(predictions)
    text = page(found([1.0, 2.0]), predictions, chosen, "freewheel train <x>")
    shown = StringIO()
    print_plan(found([1.0, 2.0]), predictions, chosen, "freewheel", Console(file=shown, width=120))
    for name in CANDIDATES:
        assert name in text
        assert name in shown.getvalue()
    assert "freewheel train &lt;x&gt;" in text
    figures = json.loads(text.split('id="figures">')[1].split("</script>")[0])
    assert len(figures) == 2


def test_pipelines_and_no_time_are_refused() -> None:
    def run(config: dict[str, Any], seconds: float) -> None:
        measure(parse_config(config), (), seconds, lambda _: None)

    with pytest.raises(ConfigError, match="plan chooses between protocols for workers"):
        run({}, 1.0)
    with pytest.raises(ConfigError, match="--seconds must be > 0"):
        run({"layout": {"kind": "server"}}, 0.0)


def test_a_shaped_link_is_measured_as_it_is_shaped() -> None:
    link = measure_link(parse_config({"link": {"rate_mbit": 50.0, "delay_ms": 5.0}}))
    assert link.rate_mbit is not None
    assert 20 < link.rate_mbit < 60
    assert 5 <= link.delay_ms < 50
