"""The trained parameters of a run once more, scored without codecs at the cuts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from freewheel.config import Config
from freewheel.runtime.checkpoints.final import load_final
from freewheel.runtime.context import score_batches, scored_part
from freewheel.runtime.pieces import Pieces
from freewheel.runtime.recorder import means
from freewheel.runtime.stages.stage import MetricSums, add_sums


def is_coded(config: Config) -> bool:
    """Whether a pipeline's tensors are coded at its cuts.

    Example:
        >>> from freewheel.compare.uncoded import is_coded
        >>> from freewheel.config import parse_config
        >>> is_coded(parse_config({})), is_coded(parse_config({"codec": {"forward": "cast:bf16"}}))
        (False, True)
    """
    return config.layout.kind == "pipeline" and config.codec.forward != "identity"


@torch.no_grad()
def score_uncoded(config: Config, folder: Path, path: Sequence[str], metric: str) -> float | None:
    """Return a metric of a run's final parameters, computed in this process.

    What is scored in the run itself has crossed the cut as in training: coded. A model that was
    trained with a codec may need it when it is used, and this tells how much.

    Args:
        config: the run's.
        folder: the run folder, which has its final parameters.
        path: folders with the user's modules.
        metric: of ``[eval] metrics``, or ``loss``.

    Returns:
        None where the metric does not apply.
    """
    pieces = Pieces(config, path=path)
    source = pieces.source()
    model = pieces.partition(source).whole()
    model.load_state_dict(load_final(folder))
    model.eval()
    split, loss, metrics = scored_part(source), pieces.loss(), pieces.metrics()
    sums: MetricSums = {}
    for indices in score_batches(split, config.eval.batch_size):
        output, targets = model(split.inputs(indices)), split.targets(indices)
        found = metrics(output, targets)
        found["loss"] = (float(loss(output, targets)) * len(indices), len(indices))
        add_sums(sums, found)
    return means(sums).get(metric)
