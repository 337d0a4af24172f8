"""The memory limit of a worker process: `ROLLOUTDECK_MAX_WORKER_MEMORY_MB`.

A thread measures the memory and interrupts the task at the limit with MemoryError, so that the task can store why it
failed. A call that does not return to Python ends with a hard limit of the kernel, which is higher, since it counts
reserved memory too. Celery replaces a process that grew, after its task.
"""

import _thread
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings

from rollouts.query import read_memory

CHECK_SECONDS = 0.1
MAX_UNWIND_SECONDS = 60.0  # after the interruption; then the process ends
RESERVED_BYTES = 3 << 30  # threads and allocators reserve memory that they do not use
SIGNAL = signal.SIGUSR2

running_tasks: set[int] = set()  # thread ids


def limit_process_memory() -> None:
    """Limits this process. Called once, in the main thread."""
    signal.signal(SIGNAL, interrupt_task)
    threading.Thread(target=watch_memory, name="memory", daemon=True).start()
    _, maximum = resource.getrlimit(resource.RLIMIT_DATA)
    hard = read_memory("VmData") + get_limit() + RESERVED_BYTES
    resource.setrlimit(
        resource.RLIMIT_DATA, (hard if maximum == resource.RLIM_INFINITY else min(hard, maximum), maximum)
    )


def get_limit() -> int:
    return int(settings.MAX_WORKER_MEMORY_MB) * 1_000_000


@contextmanager
def interrupt_at_limit() -> Iterator[None]:
    """The block is interrupted with MemoryError at the limit, if this process has one."""
    running_tasks.add(threading.get_ident())
    try:
        yield
    finally:
        running_tasks.discard(threading.get_ident())


def interrupt_task(*_: Any) -> None:
    if running_tasks:
        raise MemoryError


def watch_memory() -> None:
    interrupted_at: float | None = None
    while True:
        time.sleep(CHECK_SECONDS)
        if not running_tasks or read_memory() <= get_limit():
            interrupted_at = None
        elif interrupted_at is None:
            interrupted_at = time.monotonic()
            _thread.interrupt_main(SIGNAL)
        elif time.monotonic() - interrupted_at > MAX_UNWIND_SECONDS:
            os._exit(1)  # the sweep releases the claim
