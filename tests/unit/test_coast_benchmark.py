"""What the benchmark ``coast`` works out beforehand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.coast import page
from benchmarks.coast.cells import BACKTEST, CELLS, FEW, PREDICTORS, STATIC, Rounds
from benchmarks.harness import ROOT, read_settings
from freewheel.config import parse_config
from freewheel.predictors import predictors
from freewheel.protocols import protocols
from freewheel.protocols.base import StepDone
from freewheel.protocols.stages import Coast, Plan


def exchanged(rounds: Rounds, steps: int) -> int:
    """Drive the machine of ``coast`` as stages do; count the real steps."""
    settings = {"real": rounds.real, "horizon": rounds.horizon}
    machine: Any = protocols.create("coast", settings).central()
    clock = count = 0
    while clock < steps:
        clock, count = clock + 1, count + 1
        for action in machine.on(StepDone(clock, {"loss": 1.0}, 0.0)):
            if isinstance(action, Plan) and isinstance(action.rounds[0], Coast):
                # the last step of a run is real
                clock += max(0, min(action.rounds[0].steps, steps - 1 - clock))
    return count


@pytest.mark.parametrize("steps", [1, 7, 40, 41, 160, 859, 860])
@pytest.mark.parametrize("rounds", [Rounds(1, 1), Rounds(40, 120), Rounds(8, 208)])
def test_train_less_has_as_many_exchanges(rounds: Rounds, steps: int) -> None:
    assert rounds.exchanges(steps) == exchanged(rounds, steps)


@pytest.mark.parametrize("name", CELLS)
def test_rounds_have_the_ratio_that_they_stand_for(name: str) -> None:
    cell = CELLS[name]
    for ratio, rounds in cell.rounds.items():
        assert cell.steps / rounds.exchanges(cell.steps) == pytest.approx(ratio, rel=0.13)


def test_the_page_holds_the_tables_of_the_results_file() -> None:
    assert page.main(["--check"]) == 0


def test_settings_name_what_there_is() -> None:
    _, _, settings = read_settings(ROOT / "coast" / "benchmark.toml", tiny=False)
    for cell, ratios in {**settings["full"], **settings["few"]}.items():
        assert set(ratios) <= set(CELLS[cell].rounds)
    assert set(FEW) < set(PREDICTORS)
    for table in (*PREDICTORS.values(), STATIC):
        rest = {key: value for key, value in table.items() if key != "name"}
        predictors.create(table["name"], rest)
    for cell in CELLS.values():
        for rounds in cell.rounds.values():
            parse_config(cell.coasting(0.01, rounds, BACKTEST))
