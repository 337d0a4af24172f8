"""supervisord, changed so that a full disk does not end it. Run as `python -m rolloutdeck.up.supervisord`.

The original writes a log line that it cannot write, with its traceback, to stderr, which is on the same disk, and ends
with that error. All programs end with it. Here a line that cannot be written is lost, and nothing else.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from supervisor import loggers, options, supervisord

PID_VARIABLE = "UP_SUPERVISOR_PID"  # read by child.py


class LossyFileHandler(loggers.RotatingFileHandler):  # type: ignore[misc]
    """A rotating log that loses lines while the disk is full.

    Its file has no buffer: what a failed write leaves in a buffer makes every later write and `close` fail too.
    """

    def __init__(self, filename: str, mode: str = "ab", maxBytes: int = 10 << 20, backupCount: int = 2) -> None:
        super().__init__(filename, mode, maxBytes, backupCount)
        self._open_unbuffered()

    def _open_unbuffered(self) -> None:
        buffered: Any = self.stream
        self.stream: Any = open(self.baseFilename, "ab", buffering=0)  # noqa: PTH123, SIM115
        buffered.close()

    def reopen(self) -> None:
        with suppress(OSError):
            super().reopen()
            self._open_unbuffered()

    def doRollover(self) -> None:
        try:
            if not self.stream.closed and self.stream.tell() < self.maxBytes:
                return
            super().doRollover()
            self._open_unbuffered()
        except (OSError, ValueError):
            self._reopen_after_error()

    def _reopen_after_error(self) -> None:
        """Without a file, lines are lost until the next try, which is at the next line."""
        with suppress(OSError):
            self.stream = open(self.baseFilename, "ab", buffering=0)  # noqa: PTH123, SIM115

    def emit(self, record: Any) -> None:
        if self.stream.closed:
            self._reopen_after_error()
        super().emit(record)

    def handleError(self) -> None:
        """Loses the line."""


def write_pid_file(self: Any) -> None:
    """Replaces the file in one step: after a failed write the old file stays, and never an empty one."""
    target = Path(self.pidfile)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(f"{os.getpid()}\n", encoding="ascii")
        temporary.replace(target)
        self.unlink_pidfile = True
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        self.logger.critical(f"could not write pidfile {target}: {error}")


def main() -> None:
    os.environ[PID_VARIABLE] = str(os.getpid())
    loggers.RotatingFileHandler = LossyFileHandler
    loggers.Handler.handleError = lambda self: None
    options.ServerOptions.write_pidfile = write_pid_file
    supervisord.main()


if __name__ == "__main__":
    main()
