"""Runs a user's script again, as one process of its run.

The random generators are seeded first, so that every process of a run makes the same data and the
same parameters from a script that seeds nothing itself.
"""

from __future__ import annotations

import random
import runpy
import sys
from pathlib import Path

import numpy as np
import torch

from freewheel.config import load_config
from freewheel.errors import ConfigError
from freewheel.runtime.job import JOB_VARIABLE, Job


def main() -> None:
    """Run the script or module that the command line names, as ``__main__``."""
    job = Job.from_environment()
    if job is None:
        raise ConfigError(f"{JOB_VARIABLE} is not set; this module is started by freewheel itself")
    seed = load_config(Path(job.run_dir) / "config.toml").run.seed
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
