"""The base of commands that `rolloutdeck` runs on the server's machine."""

import errno
import sys
import time
from abc import ABC, abstractmethod
from typing import Any

from django.core.management.base import BaseCommand
from django.db import DatabaseError

from rolloutdeck.lib import format_bytes
from rollouts.backup import check_data_version
from rollouts.errors import RolloutError
from rollouts.storage import check_data_folder

PROGRESS_SECONDS = 2.0


class ServerCommand(BaseCommand, ABC):
    """A command of the server. Errors are one sentence and exit status 2."""

    requires_system_checks = []
    needs_database = True  # of this version or an older one

    @abstractmethod
    def run(self, options: dict[str, Any]) -> int:
        """Returns the exit status."""

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if self.needs_database:
                check_data_version()
                check_data_folder()
            status = self.run(options)
        except RolloutError as error:
            self.stderr.write(str(error))
            status = 2
        except OSError as error:
            self.stderr.write(describe_os_error(error))
            status = 2
        except DatabaseError as error:
            self.stderr.write(f"The database failed: {str(error).strip()}")
            status = 2
        except KeyboardInterrupt:
            status = 130
        if status:
            sys.exit(status)


def describe_os_error(error: OSError) -> str:
    """Returns a sentence without the number of the error."""
    where = error.filename2 or error.filename
    place = f" ({where})" if where else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk is full{place}. Free space or choose another folder, then run the command again."
    return f"{str(error.strerror or error).rstrip('.')}{place}."


class ProgressPrinter:
    """Prints a line to standard error every two seconds."""

    def __init__(self, verb: str) -> None:
        self.verb, self.printed_at = verb, time.monotonic()

    def __call__(self, done: int, total: int, count: int) -> None:
        now = time.monotonic()
        if now - self.printed_at >= PROGRESS_SECONDS:
            self.printed_at = now
            print(f"{done:,} of {total:,} files, {format_bytes(count)} {self.verb}", file=sys.stderr, flush=True)  # noqa: T201
