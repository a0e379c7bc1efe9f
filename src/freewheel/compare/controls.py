"""The controls that add themselves to a comparison, and why each is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from freewheel.compare.arms import Arm, Plan
from freewheel.config import Config

#: Nothing of what may stand in the file saves anything: the layout's own protocol, plain tensors.
VANILLA = Arm(
    "vanilla",
    "vanilla",
    {
        "protocol": {"name": None},
        "codec": dict.fromkeys(("forward", "backward", "push", "pull"), "identity"),
        "predictor": {"name": None},
        "monitor": {"name": None},
    },
    "every tensor, every step",
)

#: What a control does and what it answers, for the notes under the table.
WHY = {
    "train_less": "vanilla on fewer steps, at the bytes of the arm, its schedule fitted to them: "
    "an arm that does not beat it has saved nothing",
    "quantise_only": "vanilla with the arm's codec, or 4 bits both ways where it has none: what "
    "coding alone saves",
    "static": "the same with the predictor 'static', which stays where it is: what predicting adds "
    "to skipping",
    "zero_comm": "stage 0 with a head of its own, without any message",
    "frozen_upstream": "the stages before the last as they were initialised, the last one trained "
    "on their exact outputs",
}

#: Protocols that coast on predictions.
_COASTING = ("coast", "auto")
_FOUR_BITS = {"forward": "quantise:4", "backward": "quantise:4"}


def with_controls(plan: Plan) -> list[Arm]:
    """Return vanilla, the file's arms and the controls that belong to them, in the table's order.

    Args:
        plan: the comparison.

    Returns:
        Vanilla, each arm followed by its controls, then the floors.

    Example:
        >>> from pathlib import Path
        >>> from freewheel.compare.arms import Arm, Plan
        >>> from freewheel.compare.controls import with_controls
        >>> from freewheel.compare.settings import CompareSection
        >>> arm = Arm("top", "arm", {"codec": {"forward": "top_k:0.1"}})
        >>> plan = Plan("x", Path("x.toml"), {}, CompareSection(), (arm,))
        >>> [arm.name for arm in with_controls(plan)][1:4]
        ['top', 'quantise only (top)', 'train less (top)']
    """
    wanted = plan.section.controls
    arms = [VANILLA]
    for arm in plan.arms:
        arms.append(arm)
        config = plan.config(arm, seed=0)
        if config.layout.kind != "pipeline":
            continue
        if "static" in wanted and _coasts(config):
            arms.append(_static(arm))
        if "quantise_only" in wanted and _needs_quantise_only(config):
            arms.append(_quantise_only(arm, config))
        if "train_less" in wanted:
            arms.append(_train_less(arm))
    floors = _floors(plan) if plan.config(VANILLA, seed=0).layout.kind == "pipeline" else []
    return [*_without_twins(arms, plan), *floors]


def left_out(plan: Plan) -> list[str]:
    """Return the controls that the file asks to leave out."""
    return [name for name in WHY if name not in plan.section.controls]


def _coasts(config: Config) -> bool:
    settings = config.protocol.settings
    jumps = settings.get("horizon", 1) != 0 or bool(settings.get("horizons"))
    return config.protocol_name in _COASTING and jumps and config.predictor.name != "static"


def _static(arm: Arm) -> Arm:
    sections = {**arm.sections, "predictor": {"name": "static"}}
    return Arm(f"static ({arm.name})", "control", sections, WHY["static"], of=arm.name)


def _needs_quantise_only(config: Config) -> bool:
    """Whether an arm does more than to quantise vanilla's tensors."""
    return config.protocol_name != "vanilla" or not _quantises(config)


def _quantise_only(arm: Arm, config: Config) -> Arm:
    own = {"forward": config.codec.forward, "backward": config.codec.backward}
    codec = {**VANILLA.sections["codec"], **(own if _quantises(config) else _FOUR_BITS)}
    sections = {**VANILLA.sections, "codec": codec}
    return Arm(f"quantise only ({arm.name})", "control", sections, WHY["quantise_only"], arm.name)


def _quantises(config: Config) -> bool:
    return all("quantise" in str(spec) for spec in (config.codec.forward, config.codec.backward))


def _train_less(arm: Arm) -> Arm:
    return Arm(
        f"train less ({arm.name})",
        "control",
        VANILLA.sections,
        WHY["train_less"],
        of=arm.name,
        budget_of=arm.name,
    )


def _without_twins(arms: list[Arm], plan: Plan) -> list[Arm]:
    """Leave out a control that is another arm once more, such as one codec under two protocols."""
    seen: list[Config] = []
    kept = []
    for arm in arms:
        if arm.budget_of is None:
            config = plan.config(arm, seed=0)
            if arm.kind == "control" and config in seen:
                continue
            seen.append(config)
        kept.append(arm)
    return kept


def _floors(plan: Plan) -> list[Arm]:
    wanted = plan.section.controls
    floors = []
    if "zero_comm" in wanted:
        asked = [plan.section.zero_comm_hidden, *(arm.zero_comm_hidden for arm in plan.arms)]
        for hidden in dict.fromkeys(head for head in asked if head is not None):
            floors.append(_floor("zero_comm", f"zero comm ({_head(hidden)})", {"hidden": hidden}))
    if "frozen_upstream" in wanted:
        floors.append(_floor("frozen_upstream", "frozen upstream", {}))
    return floors


def _floor(function: str, name: str, settings: Mapping[str, Any]) -> Arm:
    model = {"factory": f"freewheel.compare.floors:{function}", **settings}
    return Arm(name, "floor", {"model": model}, WHY[function])


def _head(hidden: tuple[int, ...]) -> str:
    if not hidden:
        return "linear head"
    return "head " + "-".join(map(str, hidden))
