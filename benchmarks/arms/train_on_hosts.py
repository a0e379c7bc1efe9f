"""``freewheel train`` with each process on a host of a network lab; ``places`` starts it on host 0.

With ``--host`` once for each rank it is the launcher; its children start as this module again,
without arguments but with FREEWHEEL_HOSTS set, enter their host and become freewheel's own child.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.netlab.delay import enter
from benchmarks.netlab.lab import DEVICE
from freewheel.config import load_config
from freewheel.launch.session import CHILD, Origin, run
from freewheel.runtime.job import Job

HOSTS_VARIABLE = "FREEWHEEL_HOSTS"


def launch(argv: Sequence[str]) -> int:
    """Train, with rank r on host r; print the summary."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", action="append", required=True)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("file")
    given = parser.parse_args(argv)
    os.environ[HOSTS_VARIABLE] = json.dumps(given.host)
    beyond = [f'link.bind="{DEVICE}"', "link.insecure=true"]
    config = load_config(given.file, [*given.overrides, *beyond])
    child = (sys.executable, "-m", "benchmarks.arms.train_on_hosts")
    folder, summary = run(config, origin=Origin(child, (str(Path.cwd()),)), quiet=True)
    print(json.dumps({**summary, "run": str(folder)}))
    return 0


def become_child() -> None:
    """Enter the host of this process's rank and become freewheel's child there."""
    job = Job.from_environment()
    assert job is not None
    enter(json.loads(os.environ[HOSTS_VARIABLE])[job.rank])
    os.execv(CHILD[0], CHILD)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        raise SystemExit(launch(sys.argv[1:]))
    become_child()
