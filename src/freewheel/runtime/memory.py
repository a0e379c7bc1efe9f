"""Keeps memory that was freed, for steps and messages that come again and again."""

from __future__ import annotations

import ctypes
import resource

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_KEPT_BYTES = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let the C library use the memory of large blocks again; return whether it can.

    By default glibc gives large blocks, and what lies free at the end of its heap, back to the
    kernel at once, which clears new pages when they are asked for again. A step of training does
    that with all its activations: on a small convolutional network it took a fifth of the time, and
    at 40 MB a message half of the whole time of an exchange with a server. The peak of memory is
    what it was, but for holes that no block fits into; up to 2 GiB of it stay with the process.
    Where a limit is set on the memory of the process, memory goes before speed: nothing is kept.

    Example:
        >>> from freewheel.runtime.memory import keep_freed_memory
        >>> keep_freed_memory() in (True, False)
        True
    """
    if resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY:
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False  # another C library, with rules of its own
    kept = library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    return bool(kept and library.mallopt(_M_MMAP_MAX, 0))
