"""Ctrl-C and SIGTERM for a command that runs until then."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class SignalInterrupter:
    """While it is entered, either signal raises KeyboardInterrupt in the main thread, so that no request is waited for.

    Python drops what is raised in a finalizer, and prints it; `heed` raises it again, where that can be heard.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Callable[..., Any] | int | None] = {}
        self._hook = sys.unraisablehook

    def __enter__(self) -> SignalInterrupter:
        if threading.current_thread() is not threading.main_thread():
            return self
        numbers = [signal.SIGTERM]
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a shell's `&` has switched it off
            numbers.append(signal.SIGINT)
        self._before = {number: signal.signal(number, self._come) for number in numbers}
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraised
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._hook

    def _come(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        raise KeyboardInterrupt

    def _unraised(self, what: sys.UnraisableHookArgs) -> None:
        if what.exc_type is not KeyboardInterrupt:  # that somebody pressed Ctrl-C is no news to them
            self._hook(what)

    def heed(self) -> None:
        """Raises KeyboardInterrupt where a signal has come."""
        if self.asked:
            raise KeyboardInterrupt
