"""Turns SIGINT (Ctrl-C) and SIGTERM into KeyboardInterrupt for a command that runs until it is stopped."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class SignalInterrupter:
    """A context in which either signal raises KeyboardInterrupt in the main thread, even during a request.

    Python prints and drops an exception that is raised in a finalizer. `raise_pending` raises it again.
    """

    def __init__(self) -> None:
        self.is_stop_requested = False
        self._before: dict[int, Callable[..., Any] | int | None] = {}
        self._hook = sys.unraisablehook

    def __enter__(self) -> SignalInterrupter:
        if threading.current_thread() is not threading.main_thread():
            return self
        numbers = [signal.SIGTERM]
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's `&` switches it off
            numbers.append(signal.SIGINT)
        self._before = {number: signal.signal(number, self._on_signal) for number in numbers}
        self._hook, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._hook

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.is_stop_requested = True
        raise KeyboardInterrupt

    def _on_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:  # the user knows that they pressed Ctrl-C
            self._hook(unraisable)

    def raise_pending(self) -> None:
        """Raises KeyboardInterrupt if a signal has arrived."""
        if self.is_stop_requested:
            raise KeyboardInterrupt
