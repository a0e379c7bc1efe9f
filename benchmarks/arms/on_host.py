"""Runs a script on the host of its rank in a network lab, started by ``freewheel launch``.

Servers and the launcher are on host 0, worker r is on host r + 1. Arguments: the names of the
hosts' namespaces as JSON, the script, and the script's own arguments.
"""

from __future__ import annotations

import json
import os
import sys

from benchmarks.netlab.delay import enter
from freewheel.runtime.job import Job


def main() -> None:
    """Enter the host, and become the script there."""
    hosts, script, *arguments = sys.argv[1:]
    job = Job.from_environment()
    assert job is not None
    enter(json.loads(hosts)[job.rank + 1 if job.role == "worker" else 0])
    os.execv(sys.executable, [sys.executable, script, *arguments])


if __name__ == "__main__":
    main()
