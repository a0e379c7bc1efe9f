"""Makes a process that ends with the one that started it, then becomes the command it was given.

Run as a file, with nothing of the library, as ``guard.py PARENT COMMAND ...``: whatever the command
imports first, a killed launcher leaves nothing behind, and Ctrl-C, which a terminal sends to all
processes, reaches only the launcher, which decides what it means.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    """Let the kernel end this process when ``parent`` is gone, however it went; run the command."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # it went before the kernel knew
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
