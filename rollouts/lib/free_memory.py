"""Gives freed memory back to the operating system.

glibc keeps what was freed between pieces that are in use: after pages of a long run, 140 of 441 MB of a process
(docs/decisions/deployment.md).
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Final

RELEASE_SECONDS: Final = 10.0  # from one release to the next


@cache
def load_malloc_trim() -> Callable[[int], int] | None:
    """Returns `malloc_trim` (malloc_trim(3)). None with another C library than glibc, which keeps less."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    malloc_trim.argtypes, malloc_trim.restype = [ctypes.c_size_t], ctypes.c_int
    return malloc_trim


def release_free_memory() -> bool:
    """Takes 16 ms after 200 MB were freed, 1 ms if there is nothing to release. Returns whether the C library can."""
    malloc_trim = load_malloc_trim()
    if malloc_trim:
        malloc_trim(0)
    return malloc_trim is not None


def start_memory_release() -> None:
    """Releases memory from now on, in a thread of this process."""
    if load_malloc_trim():
        threading.Thread(target=release_repeatedly, name="memory release", daemon=True).start()


def release_repeatedly() -> None:
    while True:
        time.sleep(RELEASE_SECONDS)
        release_free_memory()
