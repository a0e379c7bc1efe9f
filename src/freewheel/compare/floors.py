"""The floors of a cut: what a model learns with no message, or with none that goes back.

Both are trained in one process, on the batches, initial values, optimizer and schedule of vanilla.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.compare.controls import VANILLA
from freewheel.config import Config, parse_config
from freewheel.errors import ModelError
from freewheel.launch.local import threads_per_process
from freewheel.models.seeding import seeded
from freewheel.runtime.pieces import Pieces
from freewheel.streams.base import DataSpec

#: Stands, where initial values are drawn, for a layer that no model has.
_HEAD_INDEX = 1_000_000


def floor_sections(function_settings: Mapping[str, Any], vanilla: Config) -> dict[str, Any]:
    """Return the sections that turn vanilla's run into that of a floor.

    Args:
        function_settings: ``factory`` and settings of its own.
        vanilla: the run that it is the floor of, at the same seed.
    """
    plain = vanilla.model_dump(mode="json", exclude_unset=True)
    kept = {name: plain[name] for name in ("run", "data", "model", "layout") if name in plain}
    kept["run"] = {key: value for key, value in kept.get("run", {}).items() if key == "seed"}
    return {
        **VANILLA.sections,
        # as many threads as a stage of vanilla has: more of them wait for each other on full cores
        "run": {"threads": threads_per_process(vanilla.layout.stages, vanilla.run.threads)},
        "model": {**function_settings, "init": "whole", "config": kept},
        "layout": {"stages": 1, "micro_batches": 1, "cuts": "default"},
    }


def frozen_upstream(config: Mapping[str, Any]) -> nn.Module:
    """Make the whole model, of which only the last stage is trained.

    Args:
        config: sections of vanilla's run: what is cut, and where.

    Returns:
        One module; the parameters of all stages but the last require no gradient.

    Example:
        >>> from freewheel.compare.floors import frozen_upstream
        >>> model = frozen_upstream({"data": {"name": "digits"}, "model": {"name": "mlp"}})
        >>> {n.split(".")[0]: p.requires_grad for n, p in model.named_parameters()}
        {'stage0': False, 'stage1': True}
    """
    pieces = Pieces(parse_config(config))
    partition = pieces.partition(pieces.source())
    stages = [partition.build(rank) for rank in range(partition.num_stages)]
    for stage in stages[:-1]:
        stage.requires_grad_(False)
    return _chain({f"stage{rank}": stage for rank, stage in enumerate(stages)})


def zero_comm(config: Mapping[str, Any], hidden: Sequence[int] = ()) -> nn.Module:
    """Make stage 0 with a head of its own: what it learns if it never hears of the others.

    The head is linear, or a perceptron with these hidden layers. It takes all values of a sample;
    of a language it takes those of each position.

    Args:
        config: sections of vanilla's run: what is cut, and where.
        hidden: widths of the head's hidden layers.

    Returns:
        One module, all of it trained.

    Raises:
        ModelError: stage 0 sends no single floating tensor, so there is nothing to put a head on.

    Example:
        >>> from freewheel.compare.floors import zero_comm
        >>> model = zero_comm({"data": {"name": "digits"}, "model": {"name": "mlp"}}, hidden=[16])
        >>> [type(layer).__name__ for layer in model.head]
        ['Flatten', 'Linear', 'ReLU', 'Linear']
    """
    parsed = parse_config(config)
    pieces = Pieces(parsed)
    source = pieces.source()
    stage = pieces.partition(source).build(0)
    example = source.train.inputs(torch.arange(min(2, len(source.train))))
    stage.eval()
    with torch.no_grad():
        sent = stage(example)
    stage.train()
    if not isinstance(sent, Tensor) or not sent.is_floating_point():
        raise ModelError(
            f"zero_comm puts a head on what stage 0 sends; it must be one floating tensor, got "
            f"{type(sent).__name__}; leave zero_comm out of compare.controls"
        )
    with seeded(parsed.run.seed, _HEAD_INDEX):
        head = _head(sent, source.spec, hidden)
    return _chain({"stage0": stage, "head": head})


def _head(sent: Tensor, spec: DataSpec, hidden: Sequence[int]) -> nn.Module:
    each_position = spec.task == "language"
    width = sent.shape[-1] if each_position else sent[0].numel()
    if spec.num_classes is None and spec.task != "regression":
        raise ModelError(
            "zero_comm must know the number of classes to make a head, and the data does not tell; "
            "give num_classes in the data factory, or leave zero_comm out of compare.controls"
        )
    shape = spec.target_shape if spec.task == "regression" else (spec.num_classes or 0,)
    widths = [width, *hidden, int(torch.Size(shape).numel())]
    layers: list[nn.Module] = [] if each_position else [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    layers.pop()
    if spec.task == "regression" and len(shape) != 1:
        layers.append(nn.Unflatten(1, shape) if shape else nn.Flatten(0))
    return nn.Sequential(*layers)


def _chain(modules: Mapping[str, nn.Module]) -> nn.Module:
    return nn.Sequential(OrderedDict(modules))
