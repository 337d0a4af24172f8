"""Which bodies a search reads, in which order, and where it continues after it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rollouts.errors import StorageUnavailableError
from rollouts.indexing.indexer import index_dump, reindex_run
from rollouts.models import Dump, DuplicateSource, Project, Run
from rollouts.query.ast import QueryNode
from rollouts.query.body_scan import matching, parts
from rollouts.query.body_scan.matching import TimeBudget, match_cache
from rollouts.query.body_scan.parts import BodyFilePart, list_body_parts, merge_pieces
from rollouts.query.body_scan.reader import PartMatches
from rollouts.query.search import find_samples
from tests.rollouts.support.query_rows import ROWS, Row, push
from tests.support import builders
from tests.support.stored import body_path


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    push(run, ROWS)
    return run


@pytest.fixture
def limit_files_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MAX_FILES_AT_ONCE", 8)


def test_many_steps_are_found_newest_file_first_and_pruned_by_step(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (2, 3, 4):
        push(run, [{"response": f"needle {step}"}], step=step)
    scans: list[tuple[int, int]] = []  # (files, ids found) of each scan
    original = matching.find_matches

    def record_scan(files: Sequence[BodyFilePart], node: QueryNode) -> list[PartMatches]:
        answers = original(files, node)
        scans.append((len(files), sum(len(ids) for ids, _ in answers)))
        return answers

    monkeypatch.setattr(matching, "find_matches", record_scan)
    result = find_samples(run, q="needle step:2..3", ordering="-step")
    assert [sample.step.step for sample in result.samples] == [3, 2]
    assert scans == [(2, 2)]
    assert [f"-{dump.pk}" in "-" + Path(part.path).name for part, dump in zip(
        list_body_parts(find_samples(run).scope),
        Dump.objects.order_by("-step"), strict=True)] == [True] * 4  # fmt: skip


@pytest.mark.usefixtures("limit_files_at_once")
def test_a_search_of_many_steps_shows_the_newest_first_and_goes_on_where_it_stopped(run: Run) -> None:
    for step in range(2, 31):
        push(run, [{"response": f"needle {step}"}, {"response": "hay"}], step=step)
    cursor, seen = None, []
    while True:
        result = find_samples(run, q="-hay", time_budget=TimeBudget(0.0, cursor))
        steps = {sample.step.step for sample in result.samples}
        seen.append(result.searched)
        if result.cursor is None:
            break
        assert steps == set(range(result.cursor + 1, 31))
        cursor = result.cursor
    assert steps == set(range(1, 31))
    assert [done for done, _ in seen] == [8, 16, 24, 30]
    assert {total for _, total in seen} == {30}


@pytest.mark.usefixtures("limit_files_at_once")
def test_a_search_of_samples_with_two_bodies_goes_on_where_it_stopped(run: Run) -> None:
    for step in range(2, 31):
        rows: list[Row] = [{"response": f"needle {step}", "group": "z"}, {"response": "hay", "group": "z"}]
        push(run, rows, step=step)
        push(run, [{**row, "late": int(row["response"] == "hay")} for row in rows], step=step, source="late")
    cursor = None
    while True:
        result = find_samples(run, q="-late=1 question", time_budget=TimeBudget(0.0, cursor))
        steps = [sample.step.step for sample in result.samples]
        if result.cursor is None:
            break
        assert sorted(steps) == list(range(result.cursor + 1, 31))
        assert cursor is None or result.cursor < cursor
        cursor = result.cursor
    assert sorted(set(steps)) == list(range(1, 31))
    assert DuplicateSource.objects.count() == 58


def test_files_that_one_scan_of_a_search_leaves_out_are_not_read_by_another() -> None:
    time_budget = TimeBudget(60.0, cursor=5)
    assert time_budget.is_over([BodyFilePart("x", (), 5)]) and not time_budget.is_over([BodyFilePart("x", (), 6)])
    assert time_budget.cursor == 5


@pytest.mark.usefixtures("limit_files_at_once")
def test_a_key_of_old_steps_is_no_error_while_the_newest_are_searched(run: Run) -> None:
    for step in range(2, 12):
        push(run, [{"response": "x"}], step=step)
    assert find_samples(run, q="lang=zh", time_budget=TimeBudget(0.0)).total == 0
    assert find_samples(run, q="lang=zh", time_budget=TimeBudget(60.0)).total == 1


def test_superseded_steps_are_searched_on_request_only(run: Run) -> None:
    push(run, [{"response": "second launch"}], attempt="again")
    assert [sample.tail for sample in find_samples(run).samples] == ["second launch"]
    assert find_samples(run, attempt="all").total == 6
    assert find_samples(run, attempt="files", q="余数").total == 1
    assert find_samples(run, q="余数").total == 0


def test_the_older_version_of_a_dump_is_not_found(run: Run) -> None:
    push(run, [{"response": "only this one now"}])
    assert find_samples(run, q="question").total == 1
    assert find_samples(run).total == 1


def test_values_of_an_older_version_are_not_found(run: Run) -> None:
    push(run, [{**ROWS[0], "lang": "de"}])
    assert find_samples(run, q="lang=de").total == 1
    assert find_samples(run, q="lang=en").total == 0


def test_a_search_may_find_more_samples_than_a_query_has_parameters(run: Run) -> None:
    push(run, [{"response": f"row {n}"} for n in range(40_000)], step=9)
    assert find_samples(run, q="row", step=9).total == 40_000
    assert find_samples(run, q="-row").total == 5


def test_a_search_result_is_cached_until_the_file_changes(run: Run) -> None:
    match_cache.clear()
    assert find_samples(run, q="quokka").total == 1
    assert len(match_cache.values) == 1
    find_samples(run, q="quokka")
    assert len(match_cache.values) == 1
    reindex_run(run)
    index_dump(Dump.objects.get().pk)
    assert find_samples(run, q="quokka").total == 1
    assert len(match_cache.values) == 2


def test_a_missing_body_file_is_reported(run: Run) -> None:
    for part in list_body_parts(find_samples(run).scope):
        body_path(part.path).unlink()
    with pytest.raises(StorageUnavailableError, match="Cannot read the sample texts"):
        find_samples(run, q="quokka")


def test_neighbouring_pieces_of_a_segment_are_read_as_one() -> None:
    assert merge_pieces([(10, 5), (0, 10)], 15) == ()
    assert merge_pieces([(20, 5), (0, 10), (10, 5)], 40) == ((0, 15), (20, 5))
    assert BodyFilePart("x", merge_pieces([(3, 2)], 5)) == BodyFilePart("x", ((3, 2),))
