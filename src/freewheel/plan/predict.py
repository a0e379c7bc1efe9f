"""What each protocol would cost with the workers and links that were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from freewheel.errors import ConfigError
from freewheel.plan.measure import Measured, MeasuredPace
from freewheel.protocols import protocols
from freewheel.simulate import Budget, CostOnly, Simulation

#: Protocols that are tried, from the most to the least synchronous.
CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    "all_reduce": {},
    "bsp": {},
    "strategy_switch": {
        "then": "k_async",
        "criterion": {"name": "fixed_fraction", "fraction": 0.2},
    },
    "k_async": {},
    "dssp": {},
    "ssp": {},
    "gba": {},
    "asp": {},
}
#: Protocols under which all workers of a run share its samples out as they come; under the others
#: each worker takes its own share, however long that lasts.
SHARED = ("strategy_switch",)
#: Numbers of workers that the costs are shown for.
SCALES = (4, 16, 64, 256)
#: A more synchronous protocol is preferred when it takes at most this much longer.
SLACK = 1.05
#: Steps of each worker that are simulated; longer runs cost in proportion.
_STEPS = 200
_STEPS_AT_SCALE = 30


@dataclass(frozen=True)
class Prediction:
    """One protocol's costs.

    Args:
        name: of the protocol.
        settings: of the protocol.
        time_s: of the run, in seconds, until its last worker has ended.
        num_bytes: sent by all processes in that time.
        wait_share: part of the workers' time that is spent waiting.
        rates: samples per second by number of workers, while all of them train.
    """

    name: str
    settings: Mapping[str, Any]
    time_s: float
    num_bytes: float
    wait_share: float
    rates: Mapping[int, float]


def predict(
    found: Measured,
    num_workers: int,
    num_servers: int,
    total_steps: int,
    batch_size: int,
    scales: Sequence[int] = SCALES,
) -> list[Prediction]:
    """Simulate every candidate, cost only.

    Args:
        found: what was measured.
        num_workers: of the run.
        num_servers: of the run.
        total_steps: of the run; every worker takes a batch in each.
        batch_size: samples in a worker's batch.
        scales: numbers of workers to show rates for.

    Raises:
        ConfigError: a number is below 1.

    Example:
        >>> from freewheel.plan.measure import Measured
        >>> from freewheel.plan.predict import predict, recommend
        >>> from freewheel.simulate import LinkSpec
        >>> paces = [[1.0], [1.0], [1.0], [4.0]]
        >>> slow = Measured(paces, LinkSpec(), server_s=0.0, num_bytes=4000, took_s=1.0)
        >>> recommend(predict(slow, 4, 1, 100, 16, scales=())).name == "all_reduce"
        False
        >>> even = Measured([[1.0]] * 4, LinkSpec(), server_s=0.0, num_bytes=4000, took_s=1.0)
        >>> recommend(predict(even, 4, 1, 100, 16, scales=())).name
        'all_reduce'
    """
    for what, value in (("workers", num_workers), ("servers", num_servers), ("steps", total_steps)):
        if value < 1:
            raise ConfigError(f"{what} must be >= 1, got {value}")
    predictions = []
    for name, settings in CANDIDATES.items():
        steps = min(total_steps, _STEPS)
        budget = Budget(steps, num_workers, shared=name in SHARED)
        result = _simulated(found, name, settings, budget, num_servers)
        times = total_steps / steps
        waited, computed = sum(result.wait_s.values()), sum(result.compute_s.values())
        rates = {}
        for workers in scales:
            budget = Budget(_STEPS_AT_SCALE, workers)
            at_scale = _simulated(found, name, settings, budget, num_servers)
            rates[workers] = at_scale.steps * batch_size / at_scale.virtual_s
        predictions.append(
            Prediction(
                name,
                settings,
                result.virtual_s * times,
                sum(result.bytes_sent.values()) * times,
                waited / (waited + computed) if waited + computed > 0 else 0.0,
                rates,
            )
        )
    return predictions


def _simulated(
    found: Measured,
    name: str,
    settings: Mapping[str, Any],
    budget: Budget,
    num_servers: int,
) -> Any:
    return Simulation(
        protocols.create(name, settings),
        CostOnly(budget, found.num_bytes),
        budget.num_workers,
        MeasuredPace(durations_s=found.durations_s),
        found.link,
        num_servers=num_servers,
        server_s=found.server_s,
    ).run()


def recommend(predictions: Sequence[Prediction]) -> Prediction:
    """Return the most synchronous protocol that is nearly as fast as the fastest one.

    Gradients that are less stale train better, so that a few percent of time are not worth them.
    """
    fastest = min(prediction.time_s for prediction in predictions)
    return next(each for each in predictions if each.time_s <= SLACK * fastest)


def command(file: str, chosen: Prediction) -> str:
    """Return the command that trains with a protocol.

    Example:
        >>> from freewheel.plan.predict import Prediction, command
        >>> command("run.toml", Prediction("ssp", {}, 1.0, 1.0, 0.0, {}))
        'freewheel train run.toml --set layout.kind=server --set protocol.name=ssp'
    """
    kind = "replicas" if chosen.name in ("all_reduce", "strategy_switch") else "server"
    words = ["freewheel", "train", file, "--set", f"layout.kind={kind}"]
    words += ["--set", f"protocol.name={chosen.name}"]
    for key, value in chosen.settings.items():
        flat = {key: value}
        if isinstance(value, Mapping):
            flat = {f"{key}.{name}": item for name, item in value.items()}
        for name, item in flat.items():
            words += ["--set", f"protocol.{name}={item}"]
    return " ".join(words)
