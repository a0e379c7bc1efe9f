"""Deadlines that follow what was observed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import median_abs_deviation

from freewheel.errors import ConfigError
from freewheel.transport.deadline import AdaptiveDeadline

DURATIONS = st.lists(st.floats(0, 1e3), min_size=5, max_size=40)


@given(DURATIONS, st.floats(0, 10))
def test_it_is_the_median_plus_k_times_the_mad_as_numpy_and_scipy_have_them(
    seen: list[float], k: float
) -> None:
    deadline = AdaptiveDeadline(k=k, floor_s=1e-9, ceiling_s=1e9)
    for duration_s in seen:
        deadline.observe(duration_s)
    expected = float(np.median(seen) + k * median_abs_deviation(seen))
    assert deadline.value_s == pytest.approx(max(expected, 1e-9))


def test_it_keeps_to_its_floor_and_ceiling_and_starts_at_the_ceiling() -> None:
    deadline = AdaptiveDeadline(k=2, floor_s=0.5, ceiling_s=3.0, min_observed=2)
    assert deadline.value_s == 3.0
    assert str(deadline) == "3 s, the ceiling, until 2 arrivals (0)"
    deadline.observe(0.1)
    deadline.observe(0.1)
    assert deadline.value_s == 0.5
    for _ in range(4):
        deadline.observe(100.0)
    assert deadline.value_s == 3.0


def test_it_forgets_what_lies_beyond_its_window_and_follows_a_slower_network() -> None:
    deadline = AdaptiveDeadline(k=3, window=8)
    for _ in range(8):
        deadline.observe(0.1)
    assert deadline.value_s == pytest.approx(0.1)
    for _ in range(8):
        deadline.observe(2.0)
    assert deadline.value_s == pytest.approx(2.0)


def test_a_straggler_does_not_move_it() -> None:
    deadline = AdaptiveDeadline(k=5)
    for duration_s in (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 50.0):
        deadline.observe(duration_s)
    assert deadline.value_s == 1.0


def test_it_prints_how_it_came_about() -> None:
    deadline = AdaptiveDeadline(k=2, floor_s=0.1, ceiling_s=10, min_observed=3)
    for duration_s in (1.0, 2.0, 4.0):
        deadline.observe(duration_s)
    expected = "4 s = median 2 s + 2 x MAD 1 s, of 3 arrivals, within [0.1, 10] s"
    assert str(deadline) == expected


@pytest.mark.parametrize(
    "settings", [{"k": -1}, {"floor_s": 0}, {"floor_s": 9, "ceiling_s": 1}, {"min_observed": 99}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="a deadline needs"):
        AdaptiveDeadline(**settings)  # type: ignore[arg-type]  # what a user may write
    with pytest.raises(ConfigError, match="a duration must be >= 0"):
        AdaptiveDeadline().observe(float("nan"))
