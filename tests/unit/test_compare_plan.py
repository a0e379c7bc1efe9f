"""What a comparison's file says: arms, sections over sections, and controls that add themselves."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from freewheel.compare.arms import merge, read_plan
from freewheel.compare.controls import left_out, with_controls
from freewheel.compare.settings import CompareSection, LinkTable
from freewheel.config import parse_config
from freewheel.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
RUN = """
[data]
name = "digits"
[model]
name = "mlp"
[schedule]
name = "cosine"
warmup = 10
[train]
steps = 100
"""
FOUR = '[[arm]]\nname = "4 bits"\ncodec.forward = "quantise:4"\ncodec.backward = "quantise:4"\n'


def plan_of(tmp_path: Path, text: str, run: str = RUN, **more: object):
    path = tmp_path / "c.toml"
    path.write_text(run + text)
    return read_plan(path, **more)


def names(plan) -> list[str]:
    return [arm.name for arm in with_controls(plan)]


def test_controls_add_themselves(tmp_path: Path) -> None:
    assert names(plan_of(tmp_path, FOUR)) == [
        "vanilla",
        "4 bits",
        "train less (4 bits)",
        "zero comm (linear head)",
        "frozen upstream",
    ]


def test_an_arm_that_does_not_quantise_gets_quantise_only(tmp_path: Path) -> None:
    text = '[[arm]]\nname = "top"\ncodec = { forward = "top_k:0.1", backward = "top_k:0.1" }\n'
    arms = {arm.name: arm for arm in with_controls(plan_of(tmp_path, text))}
    codec = arms["quantise only (top)"].sections["codec"]
    assert (codec["forward"], codec["backward"]) == ("quantise:4", "quantise:4")
    assert arms["quantise only (top)"].of == "top"


def test_a_wrapped_quantiser_is_its_own_quantise_only(tmp_path: Path) -> None:
    codec = "error_feedback+quantise:2"
    text = f'[[arm]]\nname = "ef"\ncodec.forward = "{codec}"\ncodec.backward = "{codec}"\n'
    assert "quantise only (ef)" not in names(plan_of(tmp_path, text))


def test_a_coasting_arm_gets_its_static_twin(tmp_path: Path) -> None:
    coast = '[[arm]]\nname = "c"\nprotocol = {{ name = "coast", horizon = {} }}\n'
    velocity = 'predictor = { name = "velocity", window = 4 }\n'
    plan = plan_of(tmp_path, coast.format(40) + velocity)
    twin = next(arm for arm in with_controls(plan) if arm.name == "static (c)")
    assert twin.of == "c"
    config = plan.config(twin, seed=0)
    assert config.protocol.settings == {"horizon": 40}
    assert (config.predictor.name, config.predictor.settings) == ("static", {})
    assert "static (c)" in names(plan_of(tmp_path, coast.format(40)))  # it predicts by default


@pytest.mark.parametrize(("horizon", "predictor"), [(0, "velocity"), (40, "static")])
def test_what_never_jumps_has_no_static_twin(tmp_path: Path, horizon: int, predictor: str) -> None:
    text = f'[[arm]]\nname = "c"\nprotocol = {{ name = "coast", horizon = {horizon} }}\n'
    plan = plan_of(tmp_path, text + f'predictor.name = "{predictor}"\n')
    assert not any(name.startswith("static") for name in names(plan))


def test_two_arms_of_one_codec_share_a_control(tmp_path: Path) -> None:
    one = '[[arm]]\nname = "{}"\ncodec.forward = "top_k:{}"\n'
    found = names(plan_of(tmp_path, one.format("a", 0.1) + one.format("b", 0.2)))
    assert [name for name in found if name.startswith("quantise only")] == ["quantise only (a)"]


def test_a_head_of_its_own_is_one_more_floor(tmp_path: Path) -> None:
    found = names(plan_of(tmp_path, FOUR + "zero_comm_hidden = [32]\n"))
    assert found[-3:] == ["zero comm (linear head)", "zero comm (head 32)", "frozen upstream"]


def test_controls_left_out_are_named(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, '[compare]\ncontrols = ["train_less"]\n' + FOUR)
    assert names(plan) == ["vanilla", "4 bits", "train less (4 bits)"]
    assert left_out(plan) == ["quantise_only", "static", "zero_comm", "frozen_upstream"]


def test_sections_go_over_sections_key_by_key() -> None:
    base = {"train": {"steps": 5, "clip_norm": 1.0}, "model": {"name": "mlp", "hidden": [3]}}
    assert merge(base, {"train": {"steps": 7}, "link": {"delay_ms": 1.0}}) == {
        "train": {"steps": 7, "clip_norm": 1.0},
        "model": {"name": "mlp", "hidden": [3]},
        "link": {"delay_ms": 1.0},
    }
    assert base["train"]["steps"] == 5


def test_settings_of_a_thing_do_not_outlive_it() -> None:
    base = {"model": {"name": "mlp", "hidden": [3], "init": "lazy"}}
    over = {"model": {"factory": "m:f"}}
    assert merge(base, over) == {"model": {"init": "lazy", "factory": "m:f"}}
    assert merge(base, {"model": {"name": "mlp"}}) == base


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[compare]\nseedz = 3\n", "did you mean 'seeds'"),
        ("[compare]\nseeds = 0\n", "compare.seeds"),
        ('[compare]\nmargin = "two"\n', "share of vanilla"),
        ("[compare]\nmargin = -1\n", "must be >= 0"),
        ("[[arm]]\ncodec.forward = 'cast:fp16'\n", "needs a name"),
        (FOUR + FOUR, "two arms are named '4 bits'"),
        ('[[arm]]\nname = "vanilla"\n', "vanilla is always there"),
        ('[[arm]]\nname = "a"\ncodek = 4\n', "did you mean 'codec'"),
        ('[[arm]]\nname = "a"\ncodec.forwards = "x"\n', "arm 'a': unknown key 'codec.forwards'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan_of(tmp_path, text)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"there is no file 'nowhere\.toml'"):
        read_plan(Path("nowhere.toml"))


def test_seeds_of_the_command_go_before_the_file(tmp_path: Path) -> None:
    assert plan_of(tmp_path, "[compare]\nseeds = 3\n").section.seed_list == (0, 1, 2)
    assert plan_of(tmp_path, "", seeds=(4, 9)).section.seed_list == (4, 9)


def test_the_target_lies_the_margin_below_vanilla() -> None:
    assert CompareSection(margin=0.02).target(0.9) == pytest.approx(0.88)
    lower = CompareSection(metric="bits_per_byte", margin="2%")
    assert lower.target(1.5) == pytest.approx(1.53)
    assert CompareSection(metric="mine", goal="lowest", margin=1.0).target(3.0) == 4.0


def test_a_link_is_named_by_what_it_is() -> None:
    assert LinkTable(rate_mbit=100, delay_ms=5).name == "100 Mbit/s, 5 ms"
    assert LinkTable(delay_ms=2.5).name == "unlimited, 2.5 ms"


@pytest.mark.parametrize(
    "file",
    [ROOT / "examples/compare.toml", *sorted((ROOT / "benchmarks/tasks").glob("*.toml"))],
    ids=lambda file: file.stem,
)
def test_our_files_are_comparisons(file: Path) -> None:
    plan = read_plan(file)
    assert {arm.kind for arm in with_controls(plan)} == {"vanilla", "arm", "control", "floor"}


def test_vanilla_takes_nothing_from_the_file_that_saves(tmp_path: Path) -> None:
    run = (
        RUN
        + """
[protocol]
name = "coast"
horizon = 3
[predictor]
name = "velocity"
window = 4
[codec]
forward = "quantise:4"
backward = "quantise:4"
"""
    )
    plan = plan_of(tmp_path, '[[arm]]\nname = "as it is"\n', run)
    arms = {arm.name: arm for arm in with_controls(plan)}
    plain = parse_config({**tomllib.loads(RUN), "run": {"seed": 1}})
    for name in ("vanilla", "train less (as it is)"):
        config = plan.config(arms[name], seed=1)
        assert config.protocol_name == "vanilla"
        assert config.model_dump(exclude_defaults=True) == plain.model_dump(exclude_defaults=True)
    quantised = plan.config(arms["quantise only (as it is)"], seed=1)
    assert (quantised.protocol_name, quantised.codec.forward) == ("vanilla", "quantise:4")
    assert plan.config(arms["as it is"], seed=1).protocol_name == "coast"


@pytest.mark.parametrize(
    ("kind", "protocol"), [("pipeline", "vanilla"), ("replicas", "all_reduce"), ("server", "bsp")]
)
def test_vanilla_is_the_exact_protocol_of_the_layout(
    tmp_path: Path, kind: str, protocol: str
) -> None:
    plan = plan_of(tmp_path, "", RUN + f'[layout]\nkind = "{kind}"\n')
    arms = with_controls(plan)
    assert plan.config(arms[0], seed=0).protocol_name == protocol
    assert (len(arms) > 1) == (kind == "pipeline")  # floors are of a cut


def test_the_page_names_every_key() -> None:
    page = (ROOT / "docs/compare.md").read_text()
    table = page.partition("| key of `[compare]`")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) >= set(CompareSection.model_fields)


def test_settings_may_be_overridden_for_all_arms(tmp_path: Path) -> None:
    given = ("train.steps=7", "compare.margin=0.5", "codec.forward=cast:fp16")
    plan = plan_of(tmp_path, FOUR, overrides=given)
    config = plan.config(plan.arms[0], seed=0)
    assert (config.train.steps, plan.section.margin) == (7, 0.5)
    assert config.codec.forward == "quantise:4"  # an arm's own setting stands above
    with pytest.raises(ConfigError, match=r"must look like section\.key=value"):
        plan_of(tmp_path, FOUR, overrides=("steps",))
