"""A long search is shared with workers on other machines, and is complete even if they fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from rollouts.errors import SearchCancelledError
from rollouts.models import Project, Run
from rollouts.query import ScanRequest, help_scan, parse_query, start_scan_request
from rollouts.query.ast import And, LoggedKeyTerm, Not, Or, QueryNode, RegexTerm, TextTerm
from rollouts.query.body_scan import matching, shared_scan
from rollouts.query.body_scan import parts as body_parts
from rollouts.query.body_scan.matching import TimeBudget
from rollouts.query.body_scan.parts import MAX_BYTES_AT_ONCE, BodyFilePart, take_parts
from rollouts.query.body_scan.shared_scan import PREFIX, SharedScan, dump_node, load_node
from rollouts.query.search import find_samples
from tests.rollouts.support.query_rows import push
from tests.support import builders

# Fewer than in the product, so that few steps have enough files.
MAX_FILES_AT_ONCE, FILES_OF_HELPER = 8, 2
STEPS = 2 * MAX_FILES_AT_ONCE
workers: list[Callable[[str], object]] = []  # of this test
helpers: list[threading.Thread] = []
asked_scan_ids: list[str] = []  # ids of searches


def ask_for_help(scan_id: str) -> int:
    asked_scan_ids.append(scan_id)
    for worker in workers:
        helpers.append(threading.Thread(target=worker, args=(scan_id,)))
        helpers[-1].start()
    return len(workers)


@pytest.fixture(autouse=True)
def share_at_once(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.SHARE_SEARCH_SECONDS = 0.0
    monkeypatch.setattr(body_parts, "MAX_FILES_AT_ONCE", MAX_FILES_AT_ONCE)
    monkeypatch.setattr(matching, "FILES_OF_HELPER", FILES_OF_HELPER)
    settings.SEARCH_HELP = f"{__name__}.ask_for_help"
    matching.match_cache.clear()
    yield
    for helper in helpers:
        helper.join(10)
    asked_scan_ids.clear()
    workers.clear()
    helpers.clear()


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    for step in range(1, STEPS + 1):
        push(run, [{"response": f"needle {step}"}, {"response": "hay"}], step=step)
    return run


def find_steps(run: Run, budget: TimeBudget | None = None) -> set[int]:
    return {sample.step.step for sample in find_samples(run, q="needle", time_budget=budget).samples}


@pytest.fixture
def file_counts(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The number of files that each thread scans. The thread of the search waits for the others first."""
    counts: dict[int, int] = {}
    original, main_thread = matching.find_matches, threading.get_ident()

    def find_matches(parts: Any, node: QueryNode) -> Any:
        if threading.get_ident() == main_thread and helpers:
            deadline = time.monotonic() + 5
            while len(counts) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
        counts[threading.get_ident()] = counts.get(threading.get_ident(), 0) + len(parts)
        return original(parts, node)

    monkeypatch.setattr(matching, "find_matches", find_matches)
    return counts


def list_keys() -> list[bytes]:
    connection = redis.Redis.from_url(shared_scan.settings.REDIS_URL)
    return [key for scan_id in asked_scan_ids for key in connection.keys(f"{PREFIX}{scan_id}*")]  # type: ignore[union-attr]


def test_a_helper_scans_a_part_of_the_files_and_the_result_is_complete(run: Run, file_counts: dict[int, int]) -> None:
    workers.append(help_scan)
    assert find_steps(run) == set(range(1, STEPS + 1))
    assert len(file_counts) == 2
    assert sum(file_counts.values()) == STEPS, "each file is scanned once"
    assert list_keys() == []


def test_a_search_waits_for_the_files_that_its_helpers_scan(
    run: Run, file_counts: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_all(scan_id: str) -> None:
        scan = SharedScan.load(scan_id)
        assert scan
        positions = scan.take(STEPS)
        taken.set()
        time.sleep(0.3)
        scan.send(positions, matching.find_matches([scan.parts[at] for at in positions], scan.node))

    def ask_and_wait(scan_id: str) -> int:
        return ask_for_help(scan_id) * taken.wait(5)

    taken = threading.Event()
    workers.append(take_all)
    monkeypatch.setattr(shared_scan, "import_string", lambda _path: ask_and_wait)
    assert find_steps(run) == set(range(1, STEPS + 1))
    assert file_counts[threading.get_ident()] == MAX_FILES_AT_ONCE, "what it had scanned before it asked"


def test_files_are_scanned_together_up_to_a_size_and_at_least_one() -> None:
    def count(*sizes: int) -> int:
        return len(take_parts([BodyFilePart(f"{n}", (), bytes=size) for n, size in enumerate(sizes)]))

    assert count() == 0
    assert count(2 * MAX_BYTES_AT_ONCE, 1) == count(MAX_BYTES_AT_ONCE, 1) == 1
    assert count(MAX_BYTES_AT_ONCE // 2, MAX_BYTES_AT_ONCE // 2, 1) == 2
    assert count(*[1] * STEPS) == MAX_FILES_AT_ONCE


def test_a_search_without_helpers_is_complete(run: Run, file_counts: dict[int, int]) -> None:
    assert find_steps(run) == set(range(1, STEPS + 1))
    assert file_counts == {threading.get_ident(): STEPS}
    assert len(asked_scan_ids) == 1
    assert list_keys() == []


def test_a_short_search_is_not_shared(project: Project) -> None:
    run = builders.run(project)
    steps = MAX_FILES_AT_ONCE + FILES_OF_HELPER
    for step in range(steps):
        push(run, [{"response": f"needle {step}"}], step=step)
    assert len(find_steps(run)) == steps
    assert asked_scan_ids == []


def test_files_of_a_helper_that_was_killed_are_scanned_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = threading.Event()

    def take_and_die(scan_id: str) -> None:
        scan = SharedScan.load(scan_id)
        assert scan
        assert scan.take(FILES_OF_HELPER)
        taken.set()

    def ask_and_wait(scan_id: str) -> int:
        helper_count = ask_for_help(scan_id)
        assert taken.wait(5)
        return helper_count

    monkeypatch.setattr(matching, "MAX_HELPER_SECONDS", 0.2)
    monkeypatch.setattr(shared_scan, "import_string", lambda _path: ask_and_wait)
    workers.append(take_and_die)
    assert find_steps(run) == set(range(1, STEPS + 1))


def test_files_that_a_helper_cannot_read_are_scanned_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    original, main_thread = matching.find_matches, threading.get_ident()
    failed = threading.Event()

    def find_matches(parts: Any, node: QueryNode) -> Any:
        if threading.get_ident() != main_thread:
            failed.set()
            raise FileNotFoundError("gone")
        if helpers:
            assert failed.wait(5)
        return original(parts, node)

    monkeypatch.setattr(matching, "find_matches", find_matches)
    monkeypatch.setattr(matching, "MAX_HELPER_SECONDS", 60.0)
    workers.append(help_scan)
    started = time.monotonic()
    assert find_steps(run) == set(range(1, STEPS + 1))
    assert failed.is_set()
    assert time.monotonic() - started < 30, "nothing to wait for"


def test_a_search_with_a_time_budget_goes_on_where_it_stopped(run: Run) -> None:
    workers.append(lambda scan_id: (time.sleep(0.1), help_scan(scan_id)))
    cursor, parts = None, 0
    while True:
        budget = TimeBudget(0.0, cursor)
        steps = find_steps(run, budget)
        parts += 1
        if budget.cursor is None:
            break
        assert steps == set(range(budget.cursor + 1, STEPS + 1))
        assert cursor is None or budget.cursor < cursor
        cursor = budget.cursor
    assert steps == set(range(1, STEPS + 1))
    assert parts > 1


def test_helpers_of_a_search_stop_when_its_client_disconnects(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    request, started = ScanRequest("ada"), threading.Event()

    def take_all_files(scan_id: str) -> None:
        scan = SharedScan.load(scan_id)
        assert scan
        while scan.take(FILES_OF_HELPER):
            pass
        started.set()

    monkeypatch.setattr(matching, "MAX_HELPER_SECONDS", 10.0)
    workers.append(take_all_files)
    threading.Thread(target=lambda: started.wait(5) and request.cancelled.set()).start()
    with start_scan_request(request), pytest.raises(SearchCancelledError):
        find_steps(run)
    assert list_keys() == []
    assert SharedScan.load("0" * 16) is None


def test_a_search_goes_on_without_redis(run: Run, settings: Any) -> None:
    workers.append(help_scan)
    settings.REDIS_URL = "unix:///nowhere/redis.sock"
    assert find_steps(run) == set(range(1, STEPS + 1))


@pytest.mark.parametrize(
    "node",
    [
        TextTerm("费马 \"x\"", True),
        RegexTerm(r"a{2}\s"),
        LoggedKeyTerm("acc", ">=", "1e-3", 0.001, (2, 5)),
        And((TextTerm("a", False), Not(Or((RegexTerm("b"), LoggedKeyTerm("k", "known", "", None, (0, 1))))))),
    ],
)  # fmt: skip
def test_a_query_is_the_same_after_it_was_sent(node: QueryNode) -> None:
    assert load_node(dump_node(node)) == node


def test_all_terms_about_bodies_can_be_sent() -> None:
    root = parse_query('needle /x+/ acc>0.5 -"two words" (a OR b)').root
    assert root
    assert load_node(dump_node(root)) == root
