"""What happened to the rows and files that this process logged: `Run.status` and the last line of `Run.finish`."""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from rolloutdeck.client import spool
from rolloutdeck.lib import RunClient, ServerUnreachableError, log_or_print, logger

MAX_PROBLEMS = 50  # different reasons
INDEX_SECONDS = 5.0  # how long the end of a run waits for the index
POLL_SECONDS = 0.1
MIN_REQUEST_SECONDS = 0.2
REMOVED_TEXT = "a text was removed"  # a reason that counts texts: their rows and files are sent without them
# Of the reasons that start with FILES_LABEL, these count what is no file of `log_file`.
NO_LOST_FILES = ("files: rejected by the server", f"{spool.FILES_LABEL}{REMOVED_TEXT}")


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What became of the calls in this process. Up to `dropped`, these are rows of `log_samples`.

    logged: given to `log_samples`.
    sent: uploaded. The others wait in the spool or were dropped.
    indexed: samples that the server shows; None if it did not answer.
    rejected: rows that the server can't use.
    waiting: not uploaded yet. They are in the spool.
    dropped: never written to the spool, by reason.
    failed_calls: calls of any method that were ignored or cut short.
    lost: other data that was not written, such as files, metric points and removed texts, by kind and reason.
    files: given to `log_file`.
    files_sent: uploaded. `files_waiting` are in the spool; the others are in `lost`.
    files_failed: the server can't read them.
    file_rows_rejected: rows of these files that the server can't use.
    `problems` has each reason for rejected rows, failed files and failed calls once, with an example.
    """

    url: str = ""
    logged: int = 0
    sent: int = 0
    indexed: int | None = None
    rejected: int = 0
    waiting: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    failed_calls: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    is_indexing: bool = False
    files: int = 0
    files_sent: int = 0
    files_waiting: int = 0
    files_failed: int = 0
    file_rows_rejected: int = 0

    @property
    def is_incomplete(self) -> bool:
        """Whether something is lost."""
        failed = self.failed_calls or self.files_failed or self.file_rows_rejected
        return bool(self.rejected or failed or self.dropped or self.lost)

    def __str__(self) -> str:
        parts = [] if self.files and not self.logged else self._describe_rows()
        parts += self._describe_files() if self.files else []
        parts += [f"{_count(self.failed_calls, 'call')} failed"] if self.failed_calls else []
        parts += [_count_lost(count, reason) for reason, count in self.lost.items()]
        parts += ["the server is still indexing"] if self.is_indexing else []
        return ", ".join(parts)

    def _describe_rows(self) -> list[str]:
        parts = [f"{_count(self.sent, 'row')} sent"]
        parts += ["no answer from the server"] if self.indexed is None else [f"{self.indexed:,} indexed"]
        parts += [f"{self.rejected:,} rejected"]
        parts += [f"{self.waiting:,} wait in the spool"] if self.waiting else []
        return parts + ([f"{sum(self.dropped.values()):,} dropped"] if self.dropped else [])

    def _describe_files(self) -> list[str]:
        parts = [f"{_count(self.files_sent, 'file')} sent"]
        parts += [f"{_count(self.files_failed, 'file')} failed"] if self.files_failed else []
        rejected = f"{_count(self.file_rows_rejected, 'row')} of the files rejected"
        parts += [rejected] if self.file_rows_rejected else []
        return parts + ([f"{_count(self.files_waiting, 'file')} in the spool"] if self.files_waiting else [])


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)


def _count_lost(number: int, reason: str) -> str:
    """Returns `1 file: reason`, `2 files: reason`: a reason begins with what it counts."""
    nouns, colon, rest = reason.partition(": ")
    return f"{number:,} {nouns.removesuffix('s') if number == 1 else nouns}{colon}{rest}"


def build_call_source(prefix: str, rows: int) -> str:
    """Returns the source of one call of `log_samples`. It has the number of rows, so that a process with millions of
    calls need not remember them."""
    return f"{prefix}{uuid.uuid4().hex[:16]}-{rows}"


def _count_rows(source: str, prefix: str) -> int:
    return int(source.rpartition("-")[2]) if source.startswith(prefix) else 0


def build_status(
    own: spool.Spool,
    client: RunClient | None,
    logged: int,
    prefix: str,
    url: str,
    call_problems: tuple[str, ...] = (),
    files: Mapping[str, int] = MappingProxyType({}),
) -> RunStatus:
    """`logged` is the number of rows of `log_samples`, whose sources start with `prefix`. `files` is {source: calls of
    `log_file`}.

    Never raises for a server that does not answer.
    """
    dropped, lost, failed_calls = _split_dropped(own.dropped)
    in_spool, in_rejected = Counter(_list_sources(own, "")), Counter(_list_sources(own, spool.REJECTED_FOLDER))
    waiting, refused = (sum(_count_rows(source, prefix) for source in sources) for sources in (in_spool, in_rejected))
    if own.read_error:  # nobody knows what is in it
        waiting = max(0, logged - refused - sum(dropped.values()))
        call_problems = (*call_problems, f"the spool can't be read: {own.read_error}")
    sent = max(0, logged - waiting - sum(dropped.values()))
    status = RunStatus(
        url, logged, sent, None if sent else 0, refused, waiting, dropped, failed_calls, lost, call_problems
    )
    if files:
        status = _add_files(status, client, own, files, (in_spool, in_rejected))
    answer = _fetch_ingest(client, {"source": prefix}) if client and sent else None
    if answer is None:
        return status
    failed = {str(dump["source"]): str(dump["message"]) for dump in answer["failed"]}
    rejected = refused + int(answer["rejected"]) + sum(_count_rows(source, prefix) for source in failed)
    rows: dict[str, str] = {}
    for row in answer["problems"]:
        rows.setdefault(str(row["reason"]), f"step {row['step']}, row {row['line']}: {row['reason']}")
    problems = (*rows.values(), *dict.fromkeys(failed.values()), *status.problems)[:MAX_PROBLEMS]
    is_indexing = bool(answer["waiting"]) or status.is_indexing
    return replace(status, indexed=int(answer["rows"]), rejected=rejected, problems=problems, is_indexing=is_indexing)


def _add_files(
    status: RunStatus,
    client: RunClient | None,
    own: spool.Spool,
    files: Mapping[str, int],
    unsent: tuple[Counter[str], Counter[str]],
) -> RunStatus:
    """Adds what became of the files. `unsent` are the sources in the spool, and those that the server has refused."""
    logged = sum(files.values())
    waiting, refused = (sum(sources[source] for source in files) for sources in unsent)
    unwritten = sum(
        count for reason, count in own.dropped.items()
        if reason.startswith(spool.FILES_LABEL) and not reason.startswith(NO_LOST_FILES)
    )  # fmt: skip
    sent = max(0, logged - waiting - refused - unwritten)
    status = replace(status, files=logged, files_sent=sent, files_waiting=waiting)
    query = {"source": os.path.commonprefix(list(files)), "attempt": own.attempt}
    answer = _fetch_ingest(client, query) if client and sent else None
    reasons: dict[str, str] = {}
    for source, reason in _list_refusals(own, files):
        reasons.setdefault(reason, f"{source}: ")
    failed, rejected = set(), 0
    if answer:
        rejected = sum(int(dump["rejected"]) for dump in answer.get("partial", ()) if dump["source"] in files)
        for row in answer["problems"]:
            if row["source"] in files:
                reasons.setdefault(str(row["reason"]), f"{row['source']}, line {row['line']}: ")
        for dump in answer["failed"]:
            if dump["source"] in files:
                failed.add(dump["source"])
                reasons.setdefault(str(dump["message"]), f"{dump['source']}: ")
    problems = (*(example + reason for reason, example in reasons.items()), *status.problems)[:MAX_PROBLEMS]
    is_indexing = bool(answer and answer["waiting"])
    status = replace(status, files_failed=len(failed), file_rows_rejected=rejected)
    return replace(status, problems=problems, is_indexing=is_indexing)


def _split_dropped(counts: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int], int]:
    """Returns rows by reason, other lost data by kind and reason, and the number of failed calls."""
    dropped: dict[str, int] = {}
    lost: dict[str, int] = {}
    failed_calls = 0
    for reason, count in list(counts.items()):
        label, _, cause = reason.partition(": ")
        if cause.startswith(REMOVED_TEXT):
            cause = "texts: removed" + cause.removeprefix(REMOVED_TEXT)
            lost[cause] = lost.get(cause, 0) + count
        elif reason.startswith(spool.SAMPLES_LABEL):
            dropped[reason.removeprefix(spool.SAMPLES_LABEL)] = count
        elif label.endswith("()"):
            failed_calls += count
        else:
            lost[reason] = count
    return dropped, lost, failed_calls


def report_status(name: str, build: Callable[[float], RunStatus], end: float, *, is_lead: bool = True) -> None:
    """Prints how many rows of the run were sent, indexed and rejected. `end` is a time of `time.monotonic`.

    While the server still indexes, waits until `end`, but at most a few seconds. `build` gets the seconds that a
    request may take: what remains, since the end of the training waits for it.
    """
    end = min(end, time.monotonic() + INDEX_SECONDS)
    while True:
        status = build(min(1.0, max(MIN_REQUEST_SECONDS, end - time.monotonic())))
        if not status.is_indexing or time.monotonic() >= end:
            break
        time.sleep(POLL_SECONDS)
    reasons = "".join(f"\n- {problem}" for problem in status.problems)
    log = logger.warning if status.is_incomplete else log_or_print if is_lead else logger.info
    log("Run %s: %s.%s", name, status, f" Each reason once:{reasons}" if reasons else "")


def _list_sources(own: spool.Spool, folder: str) -> Iterator[str]:
    """Yields the source of each dump in this process's spool, or in a folder of it."""
    for file in own.list_files(folder):
        if file.kind == "dump":
            with suppress(OSError, ValueError):  # uploaded meanwhile
                yield str(spool.read_spool_header(file.path)[0]["query"].get("source"))


def _list_refusals(own: spool.Spool, files: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yields the files that the server has refused, with the reason, which is in a text next to the file."""
    for file in own.list_files(spool.REJECTED_FOLDER):
        with suppress(OSError, ValueError):
            if (source := str(spool.read_spool_header(file.path)[0]["query"].get("source"))) in files:
                yield source, file.path.with_name(f"{file.path.name}.txt").read_text("utf-8").strip()


def _fetch_ingest(client: RunClient, query: Mapping[str, str]) -> dict[str, Any] | None:
    """Returns the server's counts for the dumps that `query` selects; None without an answer."""
    try:
        response = client.request("GET", "ingest/", query=query)
    except ServerUnreachableError:
        return None
    answer = response.json() if response.is_success else None
    keys = ("rows", "rejected", "waiting", "failed", "problems")
    return answer if isinstance(answer, dict) and all(key in answer for key in keys) else None
