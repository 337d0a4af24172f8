"""The thread that writes logged data to the spool."""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from rolloutdeck.client import spool
from rolloutdeck.client.redaction import Redactor, UnredactableError
from rolloutdeck.client.writer_items import (
    MetricsItem,
    NoteItem,
    SamplesItem,
    SourceChangedError,
    UnwritableItemError,
    WriterItem,
)
from rolloutdeck.lib import OnceLogger, logger
from rolloutdeck.protocol import SpoolHeader

DEFAULT_QUEUE_BYTES = 256 << 20
MAX_POINTS_PER_FILE = 1000
MAX_BYTES_PER_FILE = 2 << 20  # of several points; a server rejects a body of more than MAX_JSON_BYTES


class SpoolWriter:
    """Takes items from any thread and writes them in order. `limit` bounds the bytes in memory."""

    def __init__(
        self,
        own: spool.Spool,
        header: SpoolHeader,
        once_logger: OnceLogger,
        on_written: Callable[[], None],
        limit: int = DEFAULT_QUEUE_BYTES,
    ) -> None:
        self.own, self.header, self.limit = own, header, limit
        self._once_logger, self._on_written = once_logger, on_written
        self.redactor: Redactor | None = None  # of all texts of samples
        self._items: deque[WriterItem] = deque()
        self._waiting_bytes = 0
        self._busy = self._closed = False
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread if there is none. Raises RuntimeError if no thread can be started."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="rolloutdeck-writer", daemon=True)
            thread.start()
            self._thread = thread

    def enqueue(self, item: WriterItem) -> None:
        """Enqueues the item and returns. Drops samples and metrics if too many bytes wait already. Notes, such as the
        end of the run, are small and few, and are not sent again."""
        with self._change:
            has_no_room = bool(self._items) and self._waiting_bytes + item.size > self.limit
            is_full = has_no_room and not isinstance(item, NoteItem)
            if not is_full:
                self._items.append(item)
                self._waiting_bytes += item.size
                self._change.notify_all()
        if is_full:
            self._drop(item, "more than the writer could keep up with")

    def flush(self, seconds: float) -> bool:
        """Waits until everything enqueued so far is on disk or counted as dropped. Returns False after `seconds`."""
        if self._thread is None:  # none can be started, for example because the interpreter is ending
            self._run(waits=False)
        with self._change:
            return self._change.wait_for(lambda: not self._items and not self._busy, seconds)

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _run(self, *, waits: bool = True) -> None:
        """Writes items until the writer is closed; with `waits` False, those that are there."""
        while (item := self._pop_batch(waits)) is not None:
            try:
                self._write(item)
            except Exception:  # the thread must run as long as the training
                logger.debug("The writer failed.", exc_info=True)
                self._drop(item, "an error of the writer's own")
            del item
            with self._change:
                self._busy = False
                self._change.notify_all()

    def _pop_batch(self, waits: bool) -> WriterItem | None:
        with self._change:
            if waits:
                self._change.wait_for(lambda: self._items or self._closed)
            if not self._items:
                return None
            self._busy = True
            item = self._pop()
            if isinstance(item, MetricsItem):
                self._merge_next_metrics(item)
            return item

    def _merge_next_metrics(self, item: MetricsItem) -> None:
        """Moves the points that follow in the queue into this item, as many as one file takes."""
        size = item.size
        while self._items and isinstance(next_item := self._items[0], MetricsItem):
            size += next_item.size
            if size > MAX_BYTES_PER_FILE or len(item.points) >= MAX_POINTS_PER_FILE:
                break
            self._pop()
            item.points.extend(next_item.points)

    def _pop(self) -> WriterItem:
        item = self._items.popleft()
        self._waiting_bytes -= item.size
        return item

    def _write(self, item: WriterItem) -> None:
        if isinstance(item, SamplesItem):
            item.detect_format()
        header: SpoolHeader = {**self.header, "kind": item.kind, "query": item.query}
        try:
            self.own.write(header, self._build_body(item))
        except SourceChangedError:
            time.sleep(0.05)
            self._write(item)
        except UnwritableItemError as reason:
            self._drop(item, str(reason))
        except UnredactableError:
            self._drop(item, "ROLLOUTDECK_REDACT cannot read them")
        except spool.SpoolFullError:
            self._drop(item, "the spool is full")
        except OSError as error:
            self._drop(item, _describe_disk_error(error))
        else:
            if isinstance(item, (SamplesItem, MetricsItem)) and item.invalid_count:
                self._drop(item, "no JSON form", item.invalid_count)
            if isinstance(item, SamplesItem):
                self._warn_about_rows(item)
            if self.redactor and self.redactor.failed_count and item.kind == "dump":
                self._drop(item, "a text was removed, because ROLLOUTDECK_REDACT failed", self.redactor.failed_count)
            self._on_written()

    def _build_body(self, item: WriterItem) -> Callable[[], Iterable[bytes]]:
        """Returns the body of the item, with redacted texts. Raises UnwritableItemError."""
        redactor = self.redactor
        if redactor is None or item.kind not in ("dump", "artifact"):
            return item.body
        if item.kind == "artifact":  # its files are uploaded later as they are
            raise UnwritableItemError("ROLLOUTDECK_REDACT cannot read them")
        return lambda: redactor.redact_lines(item.body())

    def _warn_about_rows(self, item: SamplesItem) -> None:
        message = "%d of %d rows of log_samples(step=%s) cannot be used; the first, row %d, %s. Example: %s"
        for problem in item.problems.values():
            values = (
                problem.count,
                item.count,
                item.query.get("step"),
                problem.number,
                problem.reason,
                problem.example,
            )
            self._once_logger.log_once(f"rows {problem.reason}", message, *values)

    def _drop(self, item: WriterItem, reason: str, count: int = 0) -> None:
        """Counts the dropped data. The next header and heartbeat report the count."""
        self.own.count_dropped(f"{item.label}: {reason}", count or item.count)
        message = "The training continues, but some %s are not recorded: %s. The run shows how many. Spool: %s"
        folder = self.own.folder or self.own.root
        self._once_logger.log_once(f"{item.label} {reason}", message, item.label, reason, folder)


def _describe_disk_error(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the spool's disk is full"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "the spool can't be written"
    return f"the spool's disk failed ({error.strerror or error})"
