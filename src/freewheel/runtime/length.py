"""How many steps a run takes, also when it goes on with another number of workers."""

from __future__ import annotations

from freewheel.config import Config
from freewheel.runtime.checkpoints.checkpoint import Checkpoint
from freewheel.runtime.context import next_step, total_steps
from freewheel.runtime.sampling import make_sampler


def length_of(config: Config, num_samples: int, checkpoint: Checkpoint | None = None) -> int:
    """Return the length of a run in steps, counted from its beginning.

    Where it is given in epochs, and the run goes on from a checkpoint, the steps that are left
    depend on how many workers share out what is left of the epoch.

    Args:
        config: of the run as it goes on.
        num_samples: to train on.
        checkpoint: where it goes on from; None for a new run.

    Raises:
        CheckpointError: the checkpoint is damaged, or of other data.

    Example:
        >>> from freewheel.config import parse_config
        >>> from freewheel.runtime.length import length_of
        >>> length_of(parse_config({"data": {"batch_size": 8}, "train": {"epochs": 2}}), 20)
        6
    """
    workers = 1 if config.layout.kind == "pipeline" else config.layout.workers
    accumulate = config.train.accumulate
    sampler = make_sampler(config, num_samples, 0, workers)
    per_epoch = -(-sampler.steps_per_epoch // accumulate)
    if checkpoint is None or config.train.steps is not None:
        return total_steps(config, per_epoch)
    values = checkpoint.values(checkpoint.processes()[0])
    sampler.load_state_dict(values["sampler"])
    steps, epochs = int(values["step"]), config.train.epochs or 1
    while True:
        last = next_step(sampler, accumulate)[-1]
        if last.epoch >= epochs:
            return steps
        steps += 1
        if last.last_in_epoch:
            return steps + (epochs - last.epoch - 1) * per_epoch
