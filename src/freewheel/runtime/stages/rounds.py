"""Carries out, beside one stage, what its protocol decides: plans, jumps, roll-backs, replays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from freewheel.config import Config
from freewheel.errors import ConfigError
from freewheel.protocols.base import Action, Machine, Protocol, StepDone
from freewheel.protocols.coast import Coast as CoastProtocol
from freewheel.protocols.planning import Plans
from freewheel.protocols.replay import Replay as ReplayProtocol
from freewheel.protocols.stages import Coast, Plan, Propose, Proposed, Replay, Rollback, Round
from freewheel.protocols.state import plain, unplain
from freewheel.runtime.recorder import means
from freewheel.runtime.stages.coasting import Coasting
from freewheel.runtime.stages.replaying import Replaying
from freewheel.runtime.stages.stage import MetricSums, StepResult

#: The name in ``[predictor]`` that stands for one table a stage.
PER_STAGE = "per_stage"


class Rounds:
    """The protocol's machines of one stage, with what they need to act.

    Args:
        protocol: of the run.
        config: ``[predictor]`` says what coasting predicts with.
        rank: of this stage.
        num_stages: the last one has the central machine, too.
        module: this stage's layers.
        log: writes an event of the run.
    """

    def __init__(
        self,
        protocol: Protocol,
        config: Config,
        rank: int,
        num_stages: int,
        module: nn.Module,
        machine: Machine,
        log: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self.rank = rank
        self.machine = machine
        self.plans = Plans()
        self.answers = protocol.central() is not None
        self.central = protocol.central() if rank == num_stages - 1 else None
        self.coasting: Coasting | None = None
        self.replaying: Replaying | None = None
        self.trial = False
        self._log = log
        self._protocol = protocol
        self._proposals: list[list[Any]] = []
        if isinstance(protocol, CoastProtocol) and self.answers:
            name, settings = _predictor_of(config, rank, num_stages)
            self.coasting = Coasting(module, name, settings, protocol.real, log)
        elif config.predictor.name is not None:
            raise ConfigError(
                f"[predictor] is for protocols that predict, such as coast with a horizon above 0, "
                f"and this run has {protocol.name!r}; leave the section out"
            )

    @property
    def keeps(self) -> bool:
        """Whether boundary tensors are to be kept for replay."""
        return isinstance(self._protocol, ReplayProtocol) and self._protocol.num_repeats > 0

    def set_up_replay(
        self,
        call: Callable[[Any], Any],
        loss: Callable[[Any, Any], Tensor] | None,
        seed: int,
    ) -> None:
        """Make the store of kept exchanges; see ``Replaying``."""
        if isinstance(self._protocol, ReplayProtocol) and self.keeps:
            window, least = self._protocol.window, self._protocol.similarity
            self.replaying = Replaying(call, loss, window, least, seed)

    def round_at(self, step: int, total_steps: int) -> tuple[Round, int]:
        """Return the round at ``step``, and how many of its steps may be taken without exchange.

        The last step of a run is a real one, so that no prediction is left unjudged.
        """
        now = self.plans.round_at(step)
        if not isinstance(now, (Coast, Replay)):
            return now, 0
        return now, max(0, min(now.steps, total_steps - 1 - step))

    def note(self) -> dict[str, Any]:
        """Return this stage's proposals, to ride forward with the next micro-batch."""
        proposals, self._proposals = self._proposals, []
        return {"proposals": proposals} if proposals else {}

    def decide(self, clock: int, sums: MetricSums, note: Mapping[str, Any]) -> dict[str, Any]:
        """Let the central machine judge a step; return the answer to all stages."""
        if self.central is None:
            return {}
        for stage, what in note.get("proposals", ()):
            self.central.on(Proposed(stage, what, clock - 1))
        actions = self.central.on(StepDone(clock, means(sums), 0.0))
        verdict = getattr(self.central, "verdict", None)
        if verdict is not None:
            logged = verdict.log()
            self._log("verdict", {"step": clock, "monitor": logged.pop("name"), **logged})
        return _answer(actions)

    def heed(self, step: int, result: StepResult) -> bool:
        """Act on the answer to step number ``step``; return whether the step stands."""
        self.trial = False
        answer = result.answer
        undone = "rollback" in answer
        if undone and self.coasting is not None:
            self.coasting.roll_back()
            self._log("rollback", {"step": step, "to": answer["rollback"]})
        if "plan" in answer:
            self.plans.add(unplain(answer["plan"]), newest_clock=step - 1)
            if self.replaying is not None and self.replaying.num_kept:
                self.replaying.flush()
                self._log("flush", {"step": step})
        if self.replaying is not None:
            self.replaying.keep(result.kept)
        return not undone

    def after_step(self, step: int, evidence: dict[str, float], duration_s: float) -> None:
        """Show the stage's parameters to its predictor, and the step to its machine."""
        if self.coasting is not None:
            evidence = {**evidence, **self.coasting.observe(step, evidence.get("loss"))}
        for action in self.machine.on(StepDone(step, evidence, duration_s)):
            if isinstance(action, Propose):
                self._proposals.append([self.rank, action.what])

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a checkpoint needs."""
        return {
            "plans": self.plans.state_dict(),
            "central": None if self.central is None else self.central.state_dict(),
            "coasting": None if self.coasting is None else self.coasting.state_dict(),
            "replaying": None if self.replaying is None else self.replaying.state_dict(),
            "proposals": self._proposals,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        self.plans.load_state_dict(state["plans"])
        self._proposals = [list(proposal) for proposal in state["proposals"]]
        if self.central is not None and state["central"] is not None:
            self.central.load_state_dict(state["central"])
        if self.coasting is not None:
            self.coasting.load_state_dict(state["coasting"])
        if self.replaying is not None:
            self.replaying.load_state_dict(state["replaying"])


def _predictor_of(config: Config, rank: int, num_stages: int) -> tuple[str, dict[str, Any]]:
    """Return name and settings of a stage's predictor."""
    name, settings = config.predictor.name or "velocity", dict(config.predictor.settings)
    if name != PER_STAGE:
        return name, settings
    own = settings.pop("stages", None)
    fits = isinstance(own, list) and all(isinstance(t, Mapping) and "name" in t for t in own)
    if not fits or len(own) != num_stages or settings:
        raise ConfigError(
            f"predictor {PER_STAGE!r} has one setting, stages: a table with a name for each of the "
            f"{num_stages} stages, got {config.predictor.settings!r}; for example "
            f'stages = [{{ name = "velocity" }}, {{ name = "static" }}]'
        )
    table = dict(own[rank])
    return str(table.pop("name")), table


def _answer(actions: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    action: Action
    for action in actions:
        if isinstance(action, Plan):
            answer["plan"] = plain(action)
        elif isinstance(action, Rollback):
            answer["rollback"] = action.to_clock
    return answer
