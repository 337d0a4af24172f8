"""Adds the ids of the run and the dump that a thread works on to its log lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

current: ContextVar[dict[str, str]] = ContextVar("log_ids", default={})  # noqa: B039 - it is never changed


@contextmanager
def set_log_ids(**ids: object) -> Iterator[None]:
    """Within it, log lines have these ids, for example `run="tsn…", dump=7`."""
    token = current.set({**current.get(), **{name: str(value) for name, value in ids.items()}})
    try:
        yield
    finally:
        current.reset(token)


class LogIds(logging.Filter):
    """Gives each record its ids: `ids` as text for lines, and one attribute each for JSON."""

    def filter(self, record: logging.LogRecord) -> bool:
        ids = current.get()
        record.ids = "".join(f" {name}={value}" for name, value in ids.items())
        for name in ("run", "dump"):
            if name in ids:
                setattr(record, name, ids[name])
        return True
