"""Cut a model into stages, each of which can be built alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from freewheel.errors import ConfigError, ModelError
from freewheel.models.accept import form_of
from freewheel.models.balance import balance
from freewheel.models.costs import measure
from freewheel.models.cuts import check_stages, even, resolve
from freewheel.models.forms import Form


class Partition:
    """A model and where it is cut. Made by ``partition``; nothing is built before ``build``.

    Args:
        form: the model as layers in order.
        ends: for each stage the index after its last layer.

    Raises:
        ModelError: two stages would share a buffer.
    """

    def __init__(self, form: Form, ends: Sequence[int]) -> None:
        self._form = form
        self._ends = tuple(ends)
        for group in form.shared_state:
            per_stage = self._first_by_stage(group)
            if len(per_stage) > 1:
                (stage, name), (other_stage, other) = per_stage[:2]
                raise ModelError(
                    f"buffer {name!r} of stage {stage} and {other!r} of stage {other_stage} are "
                    "one tensor; only parameters can be kept equal across a cut: give each layer "
                    "its own module, or cut so that both lie on one stage"
                )

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return len(self._ends)

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Names of all layers, in order."""
        return self._form.names

    @property
    def cuts(self) -> tuple[str, ...]:
        """The layers after which the model is cut, by name: the same cuts, for another process."""
        return tuple(self.layer_names[end - 1] for end in self._ends[:-1])

    @property
    def ties(self) -> tuple[tuple[tuple[int, str], ...], ...]:
        """Groups of parameters that must stay equal on several stages.

        Each group holds one ``(stage, parameter name)`` for each stage that has the parameter, in
        the order of the stages. What is shared inside one stage is one tensor, and not listed.
        """
        groups = (self._first_by_stage(group) for group in self._form.ties)
        return tuple(group for group in groups if len(group) > 1)

    def stage_layers(self, stage: int) -> tuple[str, ...]:
        """Names of one stage's layers, in order."""
        start, stop = self._span(stage)
        return self.layer_names[start:stop]

    def build(self, stage: int) -> nn.Module:
        """Build one stage, and no other layer, as a module of one argument.

        Parameter and buffer names are those of the whole model's ``state_dict``. Layers that have
        builders are made anew, with the same values each time; modules that the user made are
        handed over as they are, not copied.

        Args:
            stage: 0 to ``num_stages - 1``.
        """
        return self._form.build(*self._span(stage))

    def whole(self) -> nn.Module:
        """Build all layers as one module: the single-process model that the stages make up."""
        return self._form.build(0, self._ends[-1])

    def _span(self, stage: int) -> tuple[int, int]:
        if not 0 <= stage < self.num_stages:
            raise ConfigError(f"stage must be 0 to {self.num_stages - 1}, got {stage}")
        return (self._ends[stage - 1] if stage else 0), self._ends[stage]

    def _stage_of(self, layer: int) -> int:
        return next(stage for stage, end in enumerate(self._ends) if layer < end)

    def _first_by_stage(self, group: Sequence[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
        first: dict[int, str] = {}
        for layer, name in group:
            first.setdefault(self._stage_of(layer), name)
        return tuple(sorted(first.items()))


def partition(
    model: Any,
    stages: int,
    cuts: Sequence[str | int] | str | None = None,
    example: Any = None,
    seed: int = 0,
    *,
    rate_mbit: float | None = None,
    memory_bytes: int | None = None,
) -> Partition:
    """Cut a model into stages of consecutive layers.

    A layer is called with the single value that the one before it returned, as in
    ``nn.Sequential``: a tensor, None, or a tuple, list or dict of such.

    Args:
        model: a ``LayeredModel``, an ``nn.Sequential``, a list of modules or of zero-argument
            builders, or any other ``nn.Module`` that ``torch.export`` can trace.
        stages: how many stages.
        cuts: the layers after which to cut, by name or index; ``"even"`` for equal numbers of
            layers; ``"balanced"`` to measure each layer on the example here and now, so let one
            process do that and give the others its ``Partition.cuts``; None for the model's own
            default, else even.
        example: an input batch; needed for ``"balanced"`` and for a module that must be traced.
        seed: for the initial values of layers that have builders or are on the meta device.
        rate_mbit: for ``"balanced"``, the rate of the link between stages in Mbit/s; None for free.
        memory_bytes: for ``"balanced"``, what a process may hold; None for no limit.

    Returns:
        The partition. Nothing has been built.

    Raises:
        ConfigError: stages or cuts that do not suit the model.
        ModelError: a model of another kind, or one that cannot be cut there.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from freewheel.models import partition
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> parts = partition(model, stages=2, cuts=["1"])
        >>> parts.stage_layers(0), list(parts.build(1).state_dict())
        (('0', '1'), ['2.weight', '2.bias'])
        >>> x = torch.ones(3, 4)
        >>> bool((parts.build(1)(parts.build(0)(x)) == model(x)).all())
        True
    """
    if stages < 1:
        check_stages(stages, num_layers=1)
    form = form_of(model, cut=stages > 1, example=example, seed=seed)
    check_stages(stages, len(form.names))
    if cuts is None:
        cuts = form.default_cuts.get(stages, "even")
    if cuts == "even" or (cuts == "balanced" and stages == 1):
        return Partition(form, even(stages, len(form.names), form.blocks))
    if cuts == "balanced":
        if example is None:
            raise ConfigError('cuts = "balanced" is measured on an example batch; give one')
        costs = measure(form, example)
        cuts = balance(costs, stages, rate_mbit=rate_mbit, memory_bytes=memory_bytes)
    return Partition(form, resolve(cuts, stages, form.names, form.known, form.refused))
