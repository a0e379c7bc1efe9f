"""Switch criteria against arithmetic and SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from freewheel.errors import ConfigError
from freewheel.monitors import Monitor, criteria
from freewheel.monitors.expected_gain import ExpectedGain, speedup
from freewheel.monitors.gradients import GradientDiversity, GradientNoise, gradient_evidence
from freewheel.monitors.loss_fallen import LossFallen
from freewheel.monitors.losses import LossPoints
from freewheel.monitors.relative_change import RelativeChange
from freewheel.monitors.slope import Slope, fit_line


def switched_at(rule: Monitor, losses, **more) -> int | None:
    """The first step at which a rule fires on these losses."""
    for step, loss in enumerate(losses):
        if rule.observe(step, {"loss": loss, **more}).verdict == "switch":
            return step
    return None


# --- which loss -------------------------------------------------------------------------------


def test_points_are_means_over_steps() -> None:
    points = LossPoints(every=3, window=2)
    for step in range(10):
        points.observe(step, {"loss": float(step)})
    assert (points.clocks, points.values) == ([5, 8], [4.0, 7.0])


def test_points_are_means_over_epochs() -> None:
    points = LossPoints(per="epoch", window=5)
    completed = [
        points.observe(step, {"loss": float(step), "epoch": step // 4}) for step in range(10)
    ]
    assert [step for step, new in enumerate(completed) if new] == [4, 8]
    assert (points.clocks, points.values) == ([3, 7], [1.5, 5.5])


def test_ema_points_are_weighted_means_without_bias() -> None:
    points = LossPoints(smoothing="ema", decay=0.5, window=3)
    for step, loss in enumerate([4.0, 8.0, 16.0]):
        points.observe(step, {"loss": loss})
    assert points.values == [4.0, (4 + 2 * 8) / 3, (4 + 2 * 8 + 4 * 16) / 7]


def test_a_loss_that_is_absent_or_not_finite_makes_no_point() -> None:
    points = LossPoints(loss="validation_loss", window=4)
    for step, loss in enumerate([1.0, None, float("nan"), float("inf"), 2.0]):
        points.observe(step, {} if loss is None else {"validation_loss": loss, "loss": 9.0})
    assert (points.values, points.num_non_finite) == ([1.0, 2.0], 2)


# --- the published rule -----------------------------------------------------------------------


def test_relative_change_is_the_published_formula() -> None:
    losses = [2.0, 1.0, 1.5, 1.5, 1.2, 1.26]
    rule = RelativeChange()
    for step, loss in enumerate(losses):
        verdict = rule.observe(step, {"loss": loss})
    expected = (1 / 2 + 0.5 / 1 + 0 + 0.3 / 1.5 + 0.06 / 1.2) / 5  # w = 6: five changes
    assert verdict.statistic == pytest.approx(expected)
    assert (verdict.verdict, verdict.threshold) == ("stay", 0.01)


def test_relative_change_fires_at_its_threshold_and_not_above() -> None:
    assert switched_at(RelativeChange(threshold=0.5), [4.0, 2.0, 1.0, 0.5, 0.25, 0.125]) == 5
    assert switched_at(RelativeChange(threshold=0.49), [4.0, 2.0, 1.0, 0.5, 0.25, 0.125]) is None


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1.0] * 30, 5),  # constant: with the sixth loss
        ([0.0] * 30, 5),  # zero likewise
        ([1.1**step for step in range(30)], None),  # rising: a change as good as a fall
        ([0.95**step for step in range(400)], None),  # falls 5% a point for ever: never
        ([float("nan")] * 30, None),
        ([0.0, 1.0] * 15, None),
    ],
)
def test_relative_change_of_losses_at_the_edges(losses: list, expected: int | None) -> None:
    assert switched_at(RelativeChange(), losses) == expected


# --- slope ------------------------------------------------------------------------------------


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_a_line_and_its_interval_are_scipys(confidence: float) -> None:
    x, y = [3, 4, 7, 9, 10, 14], [5.0, 4.0, 4.5, 3.0, 3.5, 1.0]
    found, expected = fit_line(x, y, confidence), scipy.stats.linregress(x, y)
    quantile = scipy.stats.t.ppf(0.5 + confidence / 2, df=4)
    assert found.slope == pytest.approx(expected.slope)
    assert found.margin == pytest.approx(quantile * expected.stderr)
    assert found.mean == pytest.approx(np.mean(y))


def test_slope_fires_just_when_scipy_cannot_tell_it_from_zero() -> None:
    generator = np.random.default_rng(4)
    outcomes = set()
    for drop in np.linspace(0.0, 0.1, 40):
        losses = 2.0 - drop * np.arange(20) / 2 + 0.2 * generator.normal(size=20)
        significant = scipy.stats.linregress(range(20), losses).pvalue < 0.05
        fired = switched_at(Slope(window=20), losses.tolist()) == 19
        assert fired != significant
        outcomes.add(fired)
    assert outcomes == {True, False}


def test_equivalence_needs_certainty_that_the_loss_is_flat() -> None:
    noisy = [1.0, 1.5] * 10
    flat = [1.0, 1.001] * 10
    assert switched_at(Slope(rule="significance"), noisy) == 19
    assert switched_at(Slope(rule="equivalence", tolerance=0.01), noisy) is None
    assert switched_at(Slope(rule="equivalence", tolerance=0.01), flat) == 19


@pytest.mark.parametrize("rule", ["significance", "equivalence"])
@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([0.1] * 30, 19),
        ([0.0] * 30, 19),
        ([1.05**step for step in range(30)], None),
        ([2.0 - 0.01 * step for step in range(30)], None),
        ([float("nan")] * 30, None),
    ],
    ids=["constant", "zero", "rising", "falling", "nan"],
)
def test_slope_of_losses_at_the_edges(rule: str, losses: list, expected: int | None) -> None:
    tolerance = 0.01 if rule == "equivalence" else 0.0
    assert switched_at(Slope(rule=rule, tolerance=tolerance), losses) == expected


# --- clock ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fraction", "expected"), [(0.0, 0), (0.25, 5), (1.0, 20)])
def test_fixed_fraction(fraction: float, expected: int) -> None:
    rule = criteria.create("fixed_fraction", {"fraction": fraction})
    found = [s for s in range(21) if rule.observe(s, {"progress": s / 20}).verdict == "switch"]
    assert found[0] == expected


def test_maximum_fires_whatever_the_evidence() -> None:
    rule = criteria.create("maximum", {"clock": 3})
    assert switched_at(rule, [float("nan")] * 9) == 3


# --- gradients --------------------------------------------------------------------------------


def test_gradient_noise_finds_the_noise_scale_of_known_gradients() -> None:
    """g_i = G + e_i with ||G||^2 = 4 and E||e_i||^2 = 40 x 0.25 = 10, eight workers."""
    generator = np.random.default_rng(0)
    rule = GradientNoise(threshold=0.3, decay=0.999, min_steps=4000)
    mean = np.zeros(40)
    mean[0] = 2.0
    for step in range(4000):
        gradients = mean + 0.5 * generator.normal(size=(8, 40))
        norms = (gradients**2).sum(axis=1).tolist()
        evidence = gradient_evidence(norms, float((gradients.sum(axis=0) ** 2).sum()))
        verdict = rule.observe(step, evidence)
    assert verdict.statistic == pytest.approx(10 / (8 * 4), rel=0.05)
    assert verdict.verdict == "switch"


@pytest.mark.parametrize(
    ("gradients", "diversity"),
    [
        ([[1.0, 0.0], [1.0, 0.0]], 1 / 2),
        ([[1.0, 0.0], [0.0, 1.0]], 1.0),
        ([[3.0, 0.0], [-1.0, 0.0]], 10 / 4),
        ([[1.0, 0.0], [-1.0, 0.0]], math.inf),
    ],
)
def test_gradient_diversity_by_hand(gradients: list, diversity: float) -> None:
    g = np.array(gradients)
    evidence = gradient_evidence((g**2).sum(axis=1).tolist(), float((g.sum(axis=0) ** 2).sum()))
    verdict = GradientDiversity(min_steps=1).observe(1, evidence)
    assert verdict.statistic == diversity
    assert verdict.verdict == ("switch" if diversity >= 1.0 else "stay")


@pytest.mark.parametrize("rule", [GradientNoise, GradientDiversity])
@pytest.mark.parametrize(
    "evidence",
    [
        gradient_evidence([1.0], 1.0),  # one worker has nobody to differ from
        gradient_evidence([0.0, 0.0], 0.0),
        gradient_evidence([float("nan"), 1.0], 1.0),
        {"grad_norm_sq": 1.0},
    ],
    ids=["one worker", "zero", "nan", "missing"],
)
def test_gradients_that_say_nothing_leave_it_unsure(rule: type, evidence: dict) -> None:
    monitor = rule(min_steps=1)
    assert [monitor.observe(step, evidence).verdict for step in range(3)] == ["unsure"] * 3


def test_noise_that_hides_the_gradient_is_infinite_and_logged_as_none() -> None:
    verdict = GradientNoise(min_steps=1).observe(1, gradient_evidence([1.0, 1.0], 0.5))
    assert (verdict.verdict, verdict.statistic) == ("switch", math.inf)
    assert verdict.log()["statistic"] is None


# --- expected gain ----------------------------------------------------------------------------


def test_speedup_of_two_slow_workers_among_eight() -> None:
    """Six compute for 1 s, two for 4 s: without waiting 6 + 2/4 in place of 8/4 steps a second."""
    assert speedup([3.0] * 6 + [0.0] * 2, 4.0) == pytest.approx(6.5 / 2)
    assert speedup([0.0] * 8, 4.0) == 1.0
    for waits in ([], [-1.0], [4.0]):
        with pytest.raises(ValueError, match="wait"):
            speedup(waits, 4.0)


def test_expected_gain_by_hand() -> None:
    """From 2 to 1 in a straight line of 10 steps: the loss falls by 1/15 of its mean a step."""
    rule = ExpectedGain(window=11, sensitivity=3.0, margin=0.2)
    for step in range(11):
        verdict = rule.observe(step, {"loss": 2 - 0.1 * step, "speedup": 2.5, "num_workers": 6})
    assert verdict.statistic == pytest.approx(2.5 / (1 + 3.0 * 5 * (0.1 / 1.5)))
    assert (verdict.verdict, verdict.threshold) == ("switch", 1.2)


@pytest.mark.parametrize(
    ("losses", "faster", "expected"),
    [
        ([1.0] * 40, 1.5, 19),
        ([1.0] * 40, 1.0, None),  # nobody waits: nothing to gain
        ([0.0] * 40, 1.5, 19),
        ([1.05**step for step in range(40)], 1.5, 19),
        ([0.7**step for step in range(40)], 1.5, None),  # falls too fast to put up with staleness
        ([float("nan")] * 40, 1.5, None),
    ],
    ids=["constant", "no waiting", "zero", "rising", "falling fast", "nan"],
)
def test_expected_gain_at_the_edges(losses: list, faster: float, expected: int | None) -> None:
    assert switched_at(ExpectedGain(), losses, speedup=faster, num_workers=8) == expected


# --- compositions -----------------------------------------------------------------------------


def test_any_of_and_all_of_are_or_and_and() -> None:
    """Members fire from step 3 and from step 6 on."""
    members = [{"name": "maximum", "clock": 3}, {"name": "maximum", "clock": 6}]
    fired = {}
    for name in ("any_of", "all_of"):
        rule = criteria.create(name, {"members": members})
        words = [rule.observe(step, {}).verdict for step in range(8)]
        fired[name] = words.index("switch")
    assert fired == {"any_of": 3, "all_of": 6}


def test_a_composition_says_which_members_fired_and_all_their_statistics() -> None:
    rule = criteria.create(
        "any_of", {"members": ["relative_change", {"name": "fixed_fraction", "fraction": 0.5}]}
    )
    assert rule.needs == ("loss", "progress")
    verdict = rule.observe(1, {"loss": 1.0, "progress": 0.6})
    assert (verdict.verdict, verdict.statistic) == ("switch", 1.0)
    assert verdict.detail["fired"] == ["fixed_fraction"]
    assert [member["statistic"] for member in verdict.detail["members"]] == [None, 0.6]


def test_compositions_nest() -> None:
    inner = {"name": "all_of", "members": ["relative_change", {"name": "maximum", "clock": 7}]}
    rule = criteria.create("any_of", {"members": [inner, {"name": "maximum", "clock": 50}]})
    assert switched_at(rule, [1.0] * 20) == 7


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("relative_change", {"window": 1}, "window"),
        ("relative_change", {"threshold": -0.1}, "threshold"),
        ("relative_change", {"per": "batch"}, "per must"),
        ("relative_change", {"per": "epoch", "every": 2}, "every"),
        ("relative_change", {"smoothing": "median"}, "smoothing"),
        ("relative_change", {"smoothing": "ema", "decay": 1.0}, "decay"),
        ("slope", {"window": 2}, "window"),
        ("slope", {"confidence": 1.0}, "confidence"),
        ("slope", {"rule": "equivalence"}, "tolerance"),
        ("slope", {"rule": "sign"}, "rule must"),
        ("fixed_fraction", {"fraction": 1.5}, "fraction"),
        ("maximum", {"clock": -1}, "clock"),
        ("gradient_noise", {"threshold": 0.0}, "threshold"),
        ("gradient_noise", {"decay": 1.0}, "decay"),
        ("gradient_diversity", {"min_steps": 0}, "min_steps"),
        ("expected_gain", {"margin": -1.0}, "margin"),
        ("expected_gain", {"window": 2}, "window"),
        ("any_of", {"members": []}, "at least one"),
        ("all_of", {"members": "maximum"}, "list"),
        ("any_of", {"members": ["maximun"]}, "did you mean 'maximum'"),
        ("any_of", {"members": [{"clock": 1}]}, "needs a name"),
        ("plateau", {}, "unknown criterion"),
    ],
)
def test_settings_out_of_range_are_refused(name: str, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        criteria.create(name, settings)


# --- the loss has left where it started ---------------------------------------------------------


def test_loss_fallen_compares_the_last_losses_with_the_first() -> None:
    losses = [4.0, 2.0, 3.0, 3.0, 3.0, 2.0, 1.0, 0.5]  # first two: 6; two at a time: 6, 6, 5, 3
    assert switched_at(LossFallen(share=0.5, window=2), losses) == 6
    assert switched_at(LossFallen(share=0.25, window=2), losses) == 7
    assert switched_at(LossFallen(share=0.2, window=2), losses) is None


@pytest.mark.parametrize("level", [0.0, -2.0])
def test_loss_fallen_never_fires_without_a_level_to_fall_from(level: float) -> None:
    assert switched_at(LossFallen(window=2), [level] * 3 + [level - 5.0] * 9) is None


def test_loss_fallen_stays_fired_when_the_loss_rises_again() -> None:
    rule = LossFallen(share=0.5, window=1)
    verdicts = [rule.observe(step, {"loss": loss}).verdict for step, loss in enumerate([2, 1, 9])]
    assert verdicts == ["unsure", "switch", "switch"]
