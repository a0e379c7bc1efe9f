"""A model that fits no single process trains where each process builds its own part."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli import freewheel, sets, write_config

WIDTH, DEPTH = 3000, 8
PARAMETERS = 6 * WIDTH + WIDTH + DEPTH * (WIDTH * WIDTH + WIDTH) + WIDTH * 3 + 3
#: parameters, gradients, and Adam's two moments, in float32
WHOLE_MB = PARAMETERS * 4 * 4 / 2**20
LIMIT_MB = 1000


@pytest.mark.parametrize("stages", [1, 2])
def test_the_whole_is_more_than_a_process_may_have_and_half_is_not(
    tmp_path: Path, stages: int
) -> None:
    assert WHOLE_MB / 2 + 250 < LIMIT_MB < WHOLE_MB
    config = write_config(tmp_path / "run.toml")
    result = freewheel(
        "train",
        str(config),
        *sets(
            model__factory="factories:wide_layers",
            optimizer__name="adam",
            optimizer__lr=1e-4,
            layout__stages=stages,
            layout__micro_batches=1,
            train__steps=2,
            run__memory_limit_mb=LIMIT_MB,
        ),
        cwd=tmp_path,
    )
    if stages == 2:
        assert result.returncode == 0, result.stderr
    else:
        # the control: the same limit ends one process that must hold it all
        assert result.returncode == 6
        assert re.search(r"not enough memory|can't allocate memory|MemoryError", result.stderr)
