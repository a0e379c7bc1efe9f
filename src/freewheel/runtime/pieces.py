"""The pieces of a run: what the configuration names, or what a script handed over."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.config import Config
from freewheel.errors import ConfigError
from freewheel.models.lazy import on_meta
from freewheel.models.partition import Partition, partition
from freewheel.models.zoo import models
from freewheel.runtime.training import (
    call_schedule,
    load_factory,
    make_loss,
    make_metrics,
    make_optimizer,
    make_schedule,
)
from freewheel.runtime.updates import MakeOptimizer
from freewheel.runtime.user_code import call_factory
from freewheel.streams.base import Source
from freewheel.streams.registry import load
from freewheel.streams.user import from_user


@dataclass(frozen=True)
class Given:
    """What a Python script hands to ``freewheel.train`` in place of names in a file.

    Args:
        model: an ``nn.Module``, a list of layers, or a function that makes either.
        data: (train, test), a ``Source``, or a function that makes either.
        loss: maps (output, targets) to the mean loss.
        optimizer: makes an optimizer of a list of parameters.
        schedule: makes a schedule of an optimizer.
    """

    model: Any = None
    data: Any = None
    loss: Callable[[Any, Any], Tensor] | None = None
    optimizer: MakeOptimizer | None = None
    schedule: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Pieces:
    """Everything that a role needs, made on demand.

    Args:
        config: the run's.
        given: what a script handed over.
        path: folders in which the user's modules are.
    """

    config: Config
    given: Given = field(default_factory=Given)
    path: Sequence[str] = ()

    def __post_init__(self) -> None:
        for folder in reversed(self.path):
            if folder not in sys.path:
                sys.path.insert(0, folder)

    def source(self) -> Source:
        """Return the data."""
        section, given = self.config.data, self.given.data
        if (given is not None or section.factory is not None) and (
            section.limit is not None or section.fallback is not None
        ):
            raise ConfigError(
                "data.limit and data.fallback are for data sets by name; where a script or "
                "data.factory makes the data, let it make as much as there shall be"
            )
        if given is not None:
            made = call_factory("the data function", given) if callable(given) else given
            return from_user(made)
        if section.factory is not None:
            what = f"data.factory {section.factory!r}"
            return from_user(call_factory(what, load_factory(section.factory), **section.settings))
        if section.name is None:
            raise ConfigError('data.name is not set; give one, e.g. name = "digits", or a factory')
        return load(
            section.name,
            limit=section.limit,
            fallback=section.fallback,
            seed=self.config.run.seed,
            **section.settings,
        )

    def partition(self, source: Source) -> Partition:
        """Return the model, cut for the layout (one part for replicas), not yet built."""
        layout = self.config.layout
        stages = layout.stages if layout.kind == "pipeline" else 1
        cuts = layout.cuts if stages > 1 and layout.cuts != "default" else None
        model = self._model(source)
        traced = isinstance(model, nn.Module) and type(model) is not nn.Sequential
        example = None
        if cuts == "balanced" or (traced and stages > 1):
            count = min(self.config.data.batch_size, len(source.train))
            example = source.train.inputs(torch.arange(count))
        return partition(model, stages, cuts, example, self.config.run.seed)

    def whole_model(self) -> nn.Module:
        """Return the model in one piece, not trained; a run's configuration has all it takes."""
        model = self._model(None)
        if isinstance(model, nn.Module) and not any(p.is_meta for p in model.parameters()):
            return model
        return partition(model, 1, None, None, self.config.run.seed).whole()

    def shapes(self, source: Source) -> dict[str, Any]:
        """Return the settings that a model of ours takes from the data, where they are not set."""
        section = self.config.model
        if self.given.model is not None or section.factory is not None or section.name is None:
            return {}
        known = inspect.signature(models.get(section.name)).parameters
        found = {
            "input_shape": list(source.spec.input_shape),
            "num_classes": source.spec.num_classes,
        }
        return {
            key: value
            for key, value in found.items()
            if key in known and key not in section.settings and value is not None
        }

    def _model(self, source: Source | None) -> Any:
        section, given = self.config.model, self.given.model
        if given is not None:
            made = not isinstance(given, nn.Module) and callable(given)
            return self._build("the model function", given) if made else given
        if section.factory is not None:
            factory = load_factory(section.factory)
            return self._build(f"model.factory {section.factory!r}", factory, **section.settings)
        if section.name is None:
            raise ConfigError('model.name is not set; give one, e.g. name = "mlp", or a factory')
        found = {} if source is None else self.shapes(source)
        return models.create(section.name, {**section.settings, **found})

    def _build(self, what: str, factory: Callable[..., Any], /, **settings: Any) -> Any:
        if self.config.model.init == "lazy":
            return on_meta(lambda: factory(**settings))
        torch.manual_seed(self.config.run.seed)
        return call_factory(what, factory, **settings)

    def loss(self) -> Callable[[Any, Any], Tensor]:
        """Return the loss."""
        return self.given.loss or make_loss(self.config.loss)

    def metrics(self) -> Callable[[Any, Any], dict[str, tuple[float, float]]]:
        """Return the metrics that are scored beside the loss."""
        return make_metrics(self.config.eval.metrics)

    def optimizer(self, parameters: list[nn.Parameter]) -> Any:
        """Return an optimizer of these parameters."""
        if self.given.optimizer is not None:
            return self.given.optimizer(parameters)
        return make_optimizer(self.config.optimizer, parameters)

    def schedule(self, optimizer: Any, total_steps: int) -> Any:
        """Return the schedule of an optimizer, or None."""
        if self.given.schedule is not None:
            return call_schedule(self.given.schedule, optimizer, total_steps)
        return make_schedule(self.config.schedule, optimizer, total_steps)
