"""What happened to the rows that this process logged: `Run.status` and the last line of `Run.finish`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from rolloutdeck.client import spool
from rolloutdeck.lib import RunClient, ServerUnreachableError, log_or_print, logger

MAX_PROBLEMS = 50  # different reasons
INDEX_SECONDS = 5.0  # how long the end of a run waits for the index
POLL_SECONDS = 0.1
MIN_REQUEST_SECONDS = 0.2
SAMPLES_LABEL = "samples: "  # the start of the reasons for which the client drops rows


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What became of the calls in this process. Except for the last two, these are rows of `log_samples`.

    logged: given to `log_samples`.
    sent: uploaded. The others wait in the spool or were dropped.
    indexed: samples that the server shows; None if it did not answer.
    rejected: rows that the server can't use.
    waiting: not uploaded yet. They are in the spool.
    dropped: never written to the spool, by reason.
    failed_calls: calls of any method that were ignored or cut short.
    lost: other data that was not written, such as files and metric points, by kind and reason.
    `problems` has each reason for rejected rows and failed calls once, with an example.
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

    def __str__(self) -> str:
        parts = [f"{self.sent:,} rows sent"]
        parts += ["no answer from the server"] if self.indexed is None else [f"{self.indexed:,} indexed"]
        parts += [f"{self.rejected:,} rejected"]
        parts += [f"{self.waiting:,} wait in the spool"] if self.waiting else []
        parts += [f"{sum(self.dropped.values()):,} dropped"] if self.dropped else []
        parts += [f"{self.failed_calls:,} call{'s' * (self.failed_calls > 1)} failed"] if self.failed_calls else []
        parts += [f"{count:,} {reason}" for reason, count in self.lost.items()]
        parts += ["the server is still indexing"] if self.is_indexing else []
        return ", ".join(parts)


def build_status(
    own: spool.Spool,
    client: RunClient | None,
    calls: Mapping[str, int],
    prefix: str,
    url: str,
    call_problems: tuple[str, ...] = (),
) -> RunStatus:
    """`calls` is {source: rows}; all sources start with `prefix`. Never raises for a server that does not answer."""
    dropped, lost, failed_calls = _split_dropped(own.dropped)
    waiting = sum(calls.get(source, 0) for source in _list_sources(own, ""))
    refused = sum(calls.get(source, 0) for source in _list_sources(own, spool.REJECTED_FOLDER))
    logged = sum(calls.values())
    sent = max(0, logged - waiting - sum(dropped.values()))
    status = RunStatus(
        url, logged, sent, None if sent else 0, refused, waiting, dropped, failed_calls, lost, call_problems
    )
    answer = _fetch_ingest(client, prefix) if client and sent else None
    if answer is None:
        return status
    failed = {str(dump["source"]): str(dump["message"]) for dump in answer["failed"]}
    rejected = refused + int(answer["rejected"]) + sum(calls.get(source, 0) for source in failed)
    rows: dict[str, str] = {}
    for row in answer["problems"]:
        rows.setdefault(str(row["reason"]), f"step {row['step']}, row {row['line']}: {row['reason']}")
    problems = (*rows.values(), *dict.fromkeys(failed.values()), *call_problems)[:MAX_PROBLEMS]
    is_indexing = bool(answer["waiting"])
    return replace(status, indexed=int(answer["rows"]), rejected=rejected, problems=problems, is_indexing=is_indexing)


def _split_dropped(counts: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int], int]:
    """Returns rows by reason, other lost data by kind and reason, and the number of failed calls."""
    dropped, lost, failed_calls = {}, {}, 0
    for reason, count in list(counts.items()):
        label = reason.partition(": ")[0]
        if reason.startswith(SAMPLES_LABEL):
            dropped[reason.removeprefix(SAMPLES_LABEL)] = count
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
    is_incomplete = status.rejected or status.failed_calls or status.dropped or status.lost
    log = logger.warning if is_incomplete else log_or_print if is_lead else logger.info
    log("Run %s: %s.%s", name, status, f" Each reason once:{reasons}" if reasons else "")


def _list_sources(own: spool.Spool, folder: str) -> Iterator[str]:
    """Yields the source of each dump in this process's spool, or in a folder of it."""
    if own.folder:
        for file in spool.list_spool_files(own.folder / folder):
            if file.kind == "dump":
                with suppress(OSError, ValueError):  # uploaded meanwhile
                    yield str(spool.read_spool_header(file.path)[0]["query"].get("source"))


def _fetch_ingest(client: RunClient, prefix: str) -> dict[str, Any] | None:
    """Returns the server's counts for the dumps whose source starts with `prefix`; None without an answer."""
    try:
        response = client.request("GET", "ingest/", query={"source": prefix})
    except ServerUnreachableError:
        return None
    answer = response.json() if response.is_success else None
    keys = ("rows", "rejected", "waiting", "failed", "problems")
    return answer if isinstance(answer, dict) and all(key in answer for key in keys) else None
