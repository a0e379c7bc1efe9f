"""What a child process of a run executes: ``python -m freewheel.launch.child``."""

from __future__ import annotations

import sys

from freewheel.errors import ConfigError
from freewheel.runtime.job import JOB_VARIABLE, Job


def main() -> int:
    """Do the job that the environment names; return the exit code."""
    job = Job.from_environment()
    if job is None:
        raise ConfigError(f"{JOB_VARIABLE} is not set; this module is started by freewheel itself")
    from freewheel.launch.roles import work_of
    from freewheel.models.stepping import leave_compiler_out
    from freewheel.runtime.pieces import Given
    from freewheel.runtime.worker import run_worker

    leave_compiler_out()
    return run_worker(job, work_of(Given()))


if __name__ == "__main__":
    sys.exit(main())
