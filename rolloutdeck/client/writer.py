"""The thread that makes what the trainer handed over durable in the spool."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolloutdeck.client import serialize, spool
from rolloutdeck.lib import OnceLogger, logger
from rolloutdeck.protocol import MAX_DUMP_BYTES, SpoolHeader

DEFAULT_QUEUE_BYTES = 256 << 20
CHUNK_BYTES = 1 << 20
YIELD_BYTES = 1 << 18  # of JSON, about 3 ms, after which a busy trainer thread gets the interpreter lock
POINTS_AT_ONCE = 1000
MAX_COPY_TRIES = 3  # of a file that changes while it is copied


class UnwritableItemError(Exception):
    """This can't be written, for a reason that lies in what was handed over. The message is the reason."""


class SourceChangedError(Exception):
    """A file became another one while it was copied."""


@dataclass
class MetricsItem:
    """Metrics as handed over; `values` become numbers only in the writer's thread."""

    attempt: str
    points: list[dict[str, Any]]
    kind: str = "metrics"
    what: str = "metric points"
    query: dict[str, Any] = field(default_factory=dict)
    spoiled: int = 0

    @property
    def size(self) -> int:
        return 200 + sum(64 * len(point["values"]) for point in self.points)

    @property
    def count(self) -> int:
        return len(self.points)

    def body(self) -> Iterator[bytes]:
        self.spoiled, told = 0, []
        for point in self.points:
            try:
                told.append({**point, "values": serialize.flatten_metrics(point["values"])})
            except Exception:  # the objects of other libraries raise what they like, and cost their own point alone
                self.spoiled += 1
        told = [point for point in told if point["values"]]
        if not told:
            raise UnwritableItemError("no numbers in them")
        yield json.dumps({"attempt": self.attempt, "points": told}, allow_nan=False).encode()


@dataclass
class SamplesItem:
    rows: serialize.RowBatch
    query: dict[str, Any]
    kind: str = "dump"
    what: str = "samples"
    spoiled: int = 0

    @property
    def size(self) -> int:
        return self.rows.size

    @property
    def count(self) -> int:
        return self.rows.count

    def body(self) -> Iterator[bytes]:
        """JSON lines in chunks.

        Each write and hash gives the interpreter lock away, and getting it back beside a busy thread takes a switch
        interval (5 ms): so few, large chunks, and between them only as many breaths as keep the trainer's worst stall
        below 10 ms.
        """
        lines: list[bytes] = []
        size = breath = self.spoiled = 0
        for row in self.rows:
            try:
                lines.append(serialize.serialize_row(row))
            except (TypeError, ValueError, RecursionError):
                self.spoiled += 1
                continue
            size += len(lines[-1])
            if size >= CHUNK_BYTES:
                yield b"".join(lines)
                lines, size, breath = [], 0, 0
            elif size - breath >= YIELD_BYTES:
                breath = size
                time.sleep(0)
        if self.spoiled == self.count:
            raise UnwritableItemError("no JSON form")
        yield b"".join(lines)


@dataclass
class FileItem:
    """A file that the trainer wrote: its bytes, never its meaning."""

    path: Path
    query: dict[str, Any]
    kind: str = "dump"
    what: str = "files"
    size: int = 512
    count: int = 1
    copies: int = 0

    def body(self) -> Iterator[bytes]:
        """The file's bytes, as they were at one moment unless it never stands still. Raises SourceChangedError,
        UnwritableItemError."""
        self.copies += 1
        try:
            before = self._stamp()
            if before[0] > MAX_DUMP_BYTES:
                raise UnwritableItemError(f"larger than {MAX_DUMP_BYTES >> 30} GiB")
            yield from spool.read_file_chunks(self.path, CHUNK_BYTES)
            if self.copies < MAX_COPY_TRIES and self._stamp() != before:
                raise SourceChangedError
        except OSError as error:
            raise UnwritableItemError(f"can't be read ({error.strerror})") from error

    def _stamp(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_size, found.st_mtime_ns


@dataclass
class NoteItem:
    """What opens or ends a run, names files that stay where they are, or tells of a replayed step."""

    kind: str
    said: Mapping[str, Any]
    what: str = "notes"
    query: dict[str, Any] = field(default_factory=dict)
    size: int = 512
    count: int = 1

    def body(self) -> Iterator[bytes]:
        yield json.dumps(self.said).encode()


QueueItem = MetricsItem | SamplesItem | FileItem | NoteItem


class SpoolWriter:
    """Takes items from any thread and writes them in order. `limit` bounds what waits in memory, in bytes."""

    def __init__(
        self,
        own: spool.Spool,
        header: SpoolHeader,
        voice: OnceLogger,
        written: Callable[[], None],
        limit: int = DEFAULT_QUEUE_BYTES,
    ) -> None:
        self.own, self.header, self.limit = own, header, limit
        self._voice, self._written = voice, written
        self._items: deque[QueueItem] = deque()
        self._waiting_bytes = 0
        self._busy = self._closed = False
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread if there is none. Raises RuntimeError when the interpreter is about to end."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rolloutdeck-writer", daemon=True)
            self._thread.start()

    def put(self, item: QueueItem) -> None:
        """Hands over and returns. Drops the item when too much waits already."""
        with self._change:
            full = bool(self._items) and self._waiting_bytes + item.size > self.limit
            if not full:
                self._items.append(item)
                self._waiting_bytes += item.size
                self._change.notify_all()
        if full:
            self._drop(item, "more than the writer could keep up with")

    def flush(self, seconds: float) -> bool:
        """Waits until everything handed over so far is on disk or counted as dropped; False when time was up."""
        if self._thread is None:  # the interpreter ends and starts no threads any more
            self.close()
            self._run()
        with self._change:
            return self._change.wait_for(lambda: not self._items and not self._busy, seconds)

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _run(self) -> None:
        while (item := self._take()) is not None:
            try:
                self._write(item)
            except Exception:  # the thread must live as long as the training
                logger.debug("The writer stumbled.", exc_info=True)
                self._drop(item, "an error of the writer's own")
            del item
            with self._change:
                self._busy = False
                self._change.notify_all()

    def _take(self) -> QueueItem | None:
        with self._change:
            self._change.wait_for(lambda: self._items or self._closed)
            if not self._items:
                return None
            self._busy = True
            item = self._next()
            while isinstance(item, MetricsItem) and len(item.points) < POINTS_AT_ONCE and self._points_wait():
                more = self._next()
                assert isinstance(more, MetricsItem)
                item.points.extend(more.points)
            return item

    def _next(self) -> QueueItem:
        item = self._items.popleft()
        self._waiting_bytes -= item.size
        return item

    def _points_wait(self) -> bool:
        return bool(self._items) and isinstance(self._items[0], MetricsItem)

    def _write(self, item: QueueItem) -> None:
        header: SpoolHeader = {**self.header, "kind": item.kind, "query": item.query}
        try:
            self.own.write(header, item.body)
        except SourceChangedError:
            time.sleep(0.05)
            self._write(item)
        except UnwritableItemError as reason:
            self._drop(item, str(reason))
        except spool.SpoolFullError:
            self._drop(item, "the spool is full")
        except OSError as error:
            self._drop(item, _disk_reason(error))
        else:
            if isinstance(item, (SamplesItem, MetricsItem)) and item.spoiled:
                self._drop(item, "no JSON form", item.spoiled)
            self._written()

    def _drop(self, item: QueueItem, reason: str, count: int = 0) -> None:
        """Counts what was left out; the count travels with the next header and heartbeat."""
        self.own.drop(f"{item.what}: {reason}", count or item.count)
        self._voice.log_once(
            f"{item.what} {reason}",
            "Training goes on, but %s are left out: %s. How many is counted and shown on the run. Spool: %s",
            item.what,
            reason,
            self.own.folder or self.own.below,
        )


def _disk_reason(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the spool's disk is full"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "the spool can't be written"
    return f"the spool's disk failed ({error.strerror or error})"
