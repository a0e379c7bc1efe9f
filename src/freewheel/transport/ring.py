"""Memory that a sender fills and a receiver empties, shared by two processes of one host.

The sender says in a message of its own where each block lies. Blocks are taken and given back in
order; memory that was never needed is never touched. The first bytes are two numbers: how many
blocks the receiver has given back, and whether the sender waits for one.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections import deque
from collections.abc import Sequence

from freewheel.errors import WireError
from freewheel.transport.schema import Buffer

_HEAD = 64
#: Frames begin at multiples of this, so that tensors over them are aligned.
ALIGN = 64
_RETURNED, _WAITING = 0, 1


def aligned(size: int) -> int:
    """Return ``size`` rounded up to a multiple of ``ALIGN``.

    Example:
        >>> from freewheel.transport.ring import aligned
        >>> aligned(1), aligned(64), aligned(65)
        (64, 64, 128)
    """
    return -(-size // ALIGN) * ALIGN


class _Shared:
    """Both ends: the mapped memory."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        size = os.fstat(descriptor).st_size
        self._map = mmap.mmap(descriptor, size)
        self.memory = memoryview(self._map)
        # one store of eight bytes each; struct would write them byte by byte
        self.numbers = self.memory[:16].cast("Q")
        self.size = size

    def close(self) -> None:
        """Give the mapping up; views that somebody still holds keep it until they go."""
        self.numbers.release()
        try:
            self.memory.release()
            self._map.close()
        except BufferError:
            pass
        os.close(self.descriptor)


class SendRing(_Shared):
    """The sender's end.

    Args:
        capacity: bytes for blocks.
        max_blocks: that may lie there at a time.

    Example:
        >>> import os
        >>> from freewheel.transport.ring import ReceiveRing, SendRing
        >>> sender = SendRing(4096, max_blocks=1)
        >>> receiver = ReceiveRing(os.dup(sender.descriptor))
        >>> offset = sender.put([b"abc", b"de"], [3, 2])
        >>> [bytes(frame) for frame in receiver.frames(offset, [3, 2])]
        [b'abc', b'de']
        >>> sender.put([b"more"], [4]) is None  # one block may lie there, and it does
        True
        >>> receiver.give_back()
        False
        >>> sender.put([b"more"], [4]) is None
        False
        >>> receiver.close(), sender.close()
        (None, None)
    """

    def __init__(self, capacity: int, max_blocks: int) -> None:
        descriptor = os.memfd_create("freewheel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, _HEAD + aligned(capacity))
        # a receiver would be killed by a read beyond the end
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        super().__init__(descriptor)
        self._max_blocks = max_blocks
        self._blocks: deque[tuple[int, int]] = deque()
        self._given_back = 0

    def put(self, frames: Sequence[Buffer], sizes: Sequence[int]) -> int | None:
        """Copy frames into one block; return where it begins, or None where there is no room."""
        start = self._room(sum(map(aligned, sizes)))
        if start is None:
            return None
        at = start
        for frame, size in zip(frames, sizes, strict=True):
            self.memory[at : at + size] = frame
            at += aligned(size)
        self._blocks.append((start, at))
        self.numbers[_WAITING] = 0
        return start

    def take_back(self) -> None:
        """Forget the newest block: nobody was told of it."""
        self._blocks.pop()

    def wait(self) -> None:
        """Ask for a word when a block is given back."""
        self.numbers[_WAITING] = 1

    def _room(self, size: int) -> int | None:
        returned = self.numbers[_RETURNED]
        while self._given_back < returned and self._blocks:
            self._blocks.popleft()
            self._given_back += 1
        if not self._blocks:
            # from the beginning again: memory is touched only as far as it is needed at a time
            return _HEAD if _HEAD + size <= self.size else None
        if len(self._blocks) >= self._max_blocks:
            return None
        oldest, newest = self._blocks[0][0], self._blocks[-1][1]
        if newest > oldest:
            if newest + size <= self.size:
                return newest
            return _HEAD if _HEAD + size < oldest else None
        return newest if newest + size < oldest else None


class ReceiveRing(_Shared):
    """The receiver's end, from the descriptor that the sender passed.

    Raises:
        WireError: the memory could shrink while it is read, or holds no block.
    """

    def __init__(self, descriptor: int) -> None:
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise WireError("shared memory that its sender could shrink")
        if os.fstat(descriptor).st_size <= _HEAD:
            raise WireError("shared memory without room")
        super().__init__(descriptor)

    def frames(self, start: int, sizes: Sequence[int]) -> list[memoryview]:
        """Return views of the frames of a block; they are valid until it is given back.

        Raises:
            WireError: the block does not lie in the memory.
        """
        if start < _HEAD or start + sum(map(aligned, sizes)) > self.size:
            raise WireError(f"a block at {start} that is not in {self.size} bytes of shared memory")
        found = []
        for size in sizes:
            found.append(self.memory[start : start + size])
            start += aligned(size)
        return found

    def give_back(self) -> bool:
        """Give the oldest block back; return whether the sender waits for that."""
        self.numbers[_RETURNED] += 1
        if self.numbers[_WAITING]:
            self.numbers[_WAITING] = 0
            return True
        return False
