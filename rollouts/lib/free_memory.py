"""Gives freed memory back to the operating system.

glibc keeps what was freed between pieces that are in use: after pages of a long run, 140 of 441 MB of a process
(docs/decisions/deployment.md).
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any, Final

RELEASE_SECONDS: Final = 30.0  # between two looks
MIN_FREE_BYTES: Final = 32 << 20  # less is left alone: other threads wait while memory is released
COUNTS: Final = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class MallocCounts(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and newer, see mallinfo(3). `fordblks`: bytes that are free and kept."""

    _fields_ = [(name, ctypes.c_size_t) for name in COUNTS]


def load_libc() -> Any:
    """Returns the C library if it can release memory, else None."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallinfo2.restype = MallocCounts
        libc.malloc_trim.argtypes = [ctypes.c_size_t]
    except (OSError, AttributeError):  # musl, macOS
        return None
    return libc


def release_free_memory(libc: Any) -> bool:
    """Returns whether there was enough to release."""
    if libc.mallinfo2().fordblks < MIN_FREE_BYTES:
        return False
    libc.malloc_trim(0)
    return True


def start_memory_release() -> None:
    """Releases memory from now on, in a thread of this process."""
    if libc := load_libc():
        threading.Thread(target=release_repeatedly, args=(libc,), name="memory release", daemon=True).start()


def release_repeatedly(libc: Any) -> None:
    while True:
        time.sleep(RELEASE_SECONDS)
        release_free_memory(libc)
