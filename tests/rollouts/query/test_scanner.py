"""Searches end at their limits or when the client disconnects, and do not block other users."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import polars as pl
import pytest

from rollouts.errors import QueryLimitError, SearchCancelledError, TooManySearchesError
from rollouts.query import ScanRequest, start_scan_request
from rollouts.query.body_scan import scanner
from rollouts.query.body_scan.scanner import collect_frames
from rollouts.query.body_scan.slots import lock_slots
from rollouts.query.hits import find_hits
from tests.support.patching import remove_locks

RUNAWAY = r"(.{1,500}x){2}[^x\w\s]"  # reads less than 1 MB per second
WORDS = random.Random(1).choices(
    ["the", "value", "of", "x", "is", "y", "and", "so", "we", "have", "six", "axes"], k=1000
)  # periodic text is fast
TEXT = " ".join(["the", "value", *WORDS])


def build_query(pattern: str, rows: int) -> pl.LazyFrame:
    return pl.LazyFrame({"text": [TEXT] * rows}).select(pl.col("text").str.contains(pattern).sum())


def scan(pattern: str, request: ScanRequest) -> Any:
    rows = 4000 if pattern == RUNAWAY else 10
    with start_scan_request(request):
        return collect_frames([build_query(pattern, rows)])[0].item()


@pytest.fixture(autouse=True)
def stop_scanners() -> Iterator[None]:
    yield
    while scanner.idle:
        scanner.idle.pop().stop()
    assert not is_scanning("ada")


def is_scanning(person: str) -> bool:
    locks = lock_slots({f"person-{person}": 1})
    if locks:
        locks.close()
    return locks is None


def start_scanner() -> None:
    """Lets a process start and import polars, which is slow on a busy machine and counts as time of a search."""
    scan("a", ScanRequest("ada", max_seconds=60))


def test_a_runaway_pattern_ends_at_the_time_limit_inside_one_file() -> None:
    start_scanner()
    request = ScanRequest("ada", max_seconds=1)
    with pytest.raises(QueryLimitError, match=r"ran for \d+\.\d s.*step:100\.\.120"):
        scan(RUNAWAY, request)
    assert 1 <= request.used < 4


def test_the_searches_of_a_request_share_its_time() -> None:
    request = ScanRequest("ada", max_seconds=0.5)
    with pytest.raises(QueryLimitError):
        scan(RUNAWAY, request)
    used = request.used
    with pytest.raises(QueryLimitError):
        scan("a", request)
    assert request.used == used  # no time was left


def test_a_search_ends_at_the_memory_limit(settings: Any) -> None:
    settings.MAX_QUERY_MEMORY_MB = 30
    with pytest.raises(QueryLimitError, match="more than 30 MB of memory"):
        scan(RUNAWAY, ScanRequest("ada", max_seconds=20))


def test_a_search_ends_when_the_client_disconnects() -> None:
    start_scanner()
    request = ScanRequest("ada", max_seconds=60)
    threading.Timer(0.5, request.cancelled.set).start()
    with pytest.raises(SearchCancelledError):
        scan(RUNAWAY, request)
    assert request.used < 4


def test_searches_of_one_person_do_not_block_other_people(settings: Any) -> None:
    settings.MAX_SCANS_PER_PERSON, settings.MAX_SCAN_WAIT = 1, 0.2
    first = ScanRequest("ada", max_seconds=60)
    with ThreadPoolExecutor(1) as pool:
        running: Future[Any] = pool.submit(scan, RUNAWAY, first)
        while not is_scanning("ada"):
            time.sleep(0.01)
        with pytest.raises(TooManySearchesError, match="Your other searches"):
            scan("value", ScanRequest("ada"))
        assert scan("value", ScanRequest("bob")) == 10
        first.cancelled.set()
        with pytest.raises(SearchCancelledError):
            running.result()
    assert scan("value", ScanRequest("ada")) == 10


def test_searches_of_all_processes_share_the_limit_and_a_killed_one_frees_its_slot(settings: Any) -> None:
    settings.MAX_SCANS_PER_PERSON, settings.MAX_SCAN_WAIT = 1, 0.2
    assert scan("value", ScanRequest("ada")) == 10  # creates the file of the slot
    slot = settings.DATA_DIR / "run" / "searches" / "person-ada.0"
    code = (
        f"import fcntl, time; f = open({str(slot)!r}); fcntl.flock(f, 2); print('locked', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline()
        with pytest.raises(TooManySearchesError):
            scan("value", ScanRequest("ada"))
        other.kill()
    assert scan("value", ScanRequest("ada")) == 10


def test_searches_are_not_limited_on_a_file_system_without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    remove_locks(monkeypatch)
    assert lock_slots({"person-ada": 1, "people": 1}) is not None
    assert scan("value", ScanRequest("ada")) == 10


def test_a_scanner_is_used_again_and_a_killed_one_replaced() -> None:
    while scanner.idle:  # of other tests
        scanner.idle.pop().stop()
    assert scan("value", ScanRequest("ada")) == 10
    [kept] = scanner.idle
    assert scan("value of y", ScanRequest("ada")) == 0
    assert scanner.idle == [kept]
    kept.process.kill()
    kept.process.wait()
    assert scan("value", ScanRequest("ada")) == 10


def test_marking_the_hits_of_a_runaway_pattern_is_limited() -> None:
    with start_scan_request(ScanRequest("ada", max_seconds=0.5)), pytest.raises(QueryLimitError):
        find_hits(TEXT * 800, RUNAWAY)


def test_a_worker_has_its_own_limit(settings: Any) -> None:
    settings.MAX_WORKER_QUERY_SECONDS = 0.3
    with pytest.raises(QueryLimitError):
        collect_frames([build_query(RUNAWAY, 4000)])
