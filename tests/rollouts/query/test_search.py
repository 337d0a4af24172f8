"""Questions over really indexed dumps: what is pushed here goes through ingest and index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection

from rollouts.errors import InvalidInputError, StorageUnavailableError
from rollouts.indexing.indexer import index_dump, reindex_run
from rollouts.ingest import dumps
from rollouts.models import Dump, DuplicateSource, Pin, Project, Replay, Run, Sample
from rollouts.query import body_scan
from rollouts.query.ast import InvalidQueryError, PropertyTerm, QueryNode
from rollouts.query.body_parts import BodyFilePart, list_body_parts, merge_pieces
from rollouts.query.body_reader import PartMatches
from rollouts.query.body_scan import TimeBudget, match_cache
from rollouts.query.completion import complete_query
from rollouts.query.search import SAMPLE_ORDERINGS, find_samples
from rollouts.query.sql import build_condition
from rollouts.storage import files
from tests.support import builders

Row = dict[str, Any]

ROWS: list[Row] = [
    {"response": "The answer is 4. Quokka-paradox.", "score": 1.0, "group": "a", "index": 0, "acc": 1, "lang": "en"},
    {"response": "余数是 4，所以选 A", "score": 1.0, "group": "a", "index": 1, "acc": 1, "lang": "zh"},
    {"response": "heapq.merge(*runs)", "score": 0.1, "group": "b", "index": 0, "acc": 0, "truncated": True},
    {"response": "Let me think " * 5, "score": -0.5, "group": "b", "index": 1, "acc": 0, "truncated": False},
    {"response": "", "group": "c", "index": 0, "data_source": "openai/gsm8k", "advantages": [0.5, 1.5]},
]


def push(
    run: Run, rows: list[Row], *, step: int = 1, split: str = "train", attempt: str = "files", source: str = "file"
) -> Dump:
    values = [{"prompt": f"question {row.get('group', '')}", **row} for row in rows]
    body = "\n".join(json.dumps(row, ensure_ascii=False) for row in values).encode()
    plain = files.create_incoming_path()
    plain.write_bytes(body)
    header = dumps.DumpHeader(attempt, split, step, source=f"{attempt}/{source}/{split}/{step}.jsonl", format="native")
    dump, _ = dumps.accept_dump(run, header, sha256(body).hexdigest(), plain, len(body))
    index_dump(dump.pk)
    dump.refresh_from_db()
    return dump


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    push(run, ROWS)
    return run


def picks(run: Run, q: str, **where: Any) -> list[int]:
    """Which of ROWS a query finds, by their place."""
    texts = [row["response"] for row in ROWS]
    result = find_samples(run, q=q, ordering="order", **where)
    ordinals = [sample.ordinal for sample in result.samples]
    assert result.total == len(ordinals)
    assert all(ordinal < len(texts) for ordinal in ordinals)
    return ordinals


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ("", [0, 1, 2, 3, 4]),
        ("score<0.2", [2, 3]),
        ("score<=0.1", [2, 3]),
        ("score>0.1", [0, 1]),
        ("score=1", [0, 1]),
        ("score!=1", [2, 3]),
        ("-score=1", [2, 3, 4]),
        ("score:0..0.5", [2]),
        ("score:..0", [3]),
        ("len>=60", [3]),
        ("len=0", [4]),
        ("adv=1", [4]),
        ("-adv=1", [0, 1, 2, 3]),
        ("n=1", [1, 3]),
        ("group:b", [2, 3]),
        ("source:gsm8k", [4]),
        ('source:"AI/gsm"', [4]),
        ("is:truncated", [2]),
        ("is:empty", [4]),
        ("is:correct", [0, 1]),
        ("is:wrong", [2, 3]),
        ("is:zerovar", [0, 1]),
        ("-is:zerovar", [2, 3, 4]),
        ("is:final", [0, 1, 2, 3, 4]),
        ("is:intermediate", []),
        ("is:flagged", []),
        ("no:score", [4]),
        ("quokka-paradox", [0]),
        ("Quokka", [0]),
        ("QUOKKA", []),
        ('"quokka"', []),
        ("kka-par", [0]),
        ("余数", [1]),
        ("4，所", [1]),
        ("heapq.merge(*runs)", [2]),
        ("/ans?wer|^heapq/", [0, 2]),
        ("/(?i)LET ME/", [3]),
        ("question", [0, 1, 2, 3, 4]),
        ("-question", []),
        ("acc=1", [0, 1]),
        ("acc=true", [0, 1]),
        ("acc!=1", [2, 3]),
        ("extra.acc<0.5", [2, 3]),
        ("lang=zh", [1]),
        ("lang!=zh", [0]),
        ("extra.lang:Z", [1]),
        ("step:1", [0, 1, 2, 3, 4]),
        ("step:2..", []),
        ("split:eval", []),
        ("score=1 余数", [1]),
        ("score=1 or heapq", [0, 1, 2]),
        ("-(score=1 or heapq) len>0", [3]),
        ("heapq or (acc=1 -lang=en)", [1, 2]),
        ("(is:empty or 余数) -score<0", [1, 4]),
    ],
)
def test_each_operator_finds_its_samples(run: Run, q: str, expected: list[int]) -> None:
    assert picks(run, q) == expected
    assert picks(run, q, step=1, split="train") == expected


def test_prompt_key_finds_the_samples_of_one_prompt(run: Run) -> None:
    key = Sample.objects.get(ordinal=4).prompt_key
    assert picks(run, f"prompt:{key}") == picks(run, f"prompt:{key[:9].upper()}") == [4]


def test_a_reason_is_asked_by_its_key_or_name(run: Run, mate: User) -> None:
    builders.flag(Sample.objects.get(ordinal=2).id, mate, reason="reward-hack")
    assert picks(run, 'reason:"Reward hack"') == picks(run, "reason:reward-hack") == picks(run, "is:flagged") == [2]
    assert picks(run, "reason:other") == []
    with pytest.raises(InvalidQueryError, match="no flag reason `bored`.*reward-hack"):
        find_samples(run, q="reason:bored")


def test_pinned_and_replayed_steps_are_properties_of_their_samples(run: Run, owner: User) -> None:
    push(run, ROWS[:2], step=2)
    first, second = run.steps.order_by("step")
    pin = Pin.objects.create(project=run.project, run=run, attempt=first.attempt, step=1, user=owner)
    Replay.objects.create(run=run, attempt=second.attempt, step=2, outcome="hit")
    assert {sample.step.step for sample in find_samples(run, q="is:pinned").samples} == {1}
    assert {sample.step.step for sample in find_samples(run, q="is:reused").samples} == {2}
    Replay.objects.update(outcome="refused")
    pin.removed_at = pin.created_at
    pin.save()
    assert find_samples(run, q="is:pinned or is:reused").total == 0


def test_samples_whose_tokens_were_recorded_are_found(run: Run) -> None:
    push(run, [{"response": "a", "response_ids": [1, 2]}, {"response": "b"}], step=2)
    assert [sample.tail for sample in find_samples(run, q="is:tokens").samples] == ["a"]


def test_a_key_that_nobody_logged_is_a_mistake_not_an_empty_answer(run: Run) -> None:
    with pytest.raises(InvalidQueryError, match="No sample here has the key `langg`. Did you mean `lang`") as caught:
        find_samples(run, q="score=1 langg=zh")
    assert caught.value.span == (8, 16)


def test_a_misspelled_number_field_is_suggested(run: Run) -> None:
    """Samples have the field `score`, though no trainer logs a key with that name."""
    with pytest.raises(InvalidQueryError, match="Did you mean `score`") as caught:
        find_samples(run, q="scor<0.2")
    assert caught.value.span == (0, 8)


def test_json_values_are_searched_as_text(run: Run) -> None:
    push(run, [{"response": "x", "info": {"tool": "Python"}}], step=2)
    assert [sample.step.step for sample in find_samples(run, q="extra.info:python").samples] == [2]


def test_many_steps_are_found_newest_file_first_and_pruned_by_step(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (2, 3, 4):
        push(run, [{"response": f"needle {step}"}], step=step)
    scans: list[tuple[int, int]] = []  # (files, ids found) of each scan
    original = body_scan.find_matches

    def record_scan(files: Sequence[BodyFilePart], node: QueryNode) -> list[PartMatches]:
        answers = original(files, node)
        scans.append((len(files), sum(len(ids) for ids, _ in answers)))
        return answers

    monkeypatch.setattr(body_scan, "find_matches", record_scan)
    result = find_samples(run, q="needle step:2..3", ordering="-step")
    assert [sample.step.step for sample in result.samples] == [3, 2]
    assert scans == [(2, 2)]
    assert [f"-{dump.pk}" in "-" + Path(part.path).name for part, dump in zip(
        list_body_parts(find_samples(run).scope),
        Dump.objects.order_by("-step"), strict=True)] == [True] * 4  # fmt: skip


def test_a_search_of_many_steps_shows_the_newest_first_and_goes_on_where_it_stopped(run: Run) -> None:
    for step in range(2, 31):
        push(run, [{"response": f"needle {step}"}, {"response": "hay"}], step=step)
    beyond, seen = None, []
    while True:
        result = find_samples(run, q="-hay", time_budget=TimeBudget(0.0, beyond))
        steps = {sample.step.step for sample in result.samples}
        seen.append(result.searched)
        if result.cursor is None:
            break
        assert steps == set(range(result.cursor + 1, 31))
        beyond = result.cursor
    assert steps == set(range(1, 31))
    assert [done for done, _ in seen] == [8, 16, 24, 30]
    assert {total for _, total in seen} == {30}


def test_a_search_that_asks_samples_of_two_bodies_goes_on_too_where_it_stopped(run: Run) -> None:
    for step in range(2, 31):
        rows: list[Row] = [{"response": f"needle {step}", "group": "z"}, {"response": "hay", "group": "z"}]
        push(run, rows, step=step)
        push(run, [{**row, "late": int(row["response"] == "hay")} for row in rows], step=step, source="late")
    beyond = None
    while True:
        result = find_samples(run, q="-late=1 question", time_budget=TimeBudget(0.0, beyond))
        steps = [sample.step.step for sample in result.samples]
        if result.cursor is None:
            break
        assert sorted(steps) == list(range(result.cursor + 1, 31))
        assert beyond is None or result.cursor < beyond
        beyond = result.cursor
    assert sorted(set(steps)) == list(range(1, 31))
    assert DuplicateSource.objects.count() == 58


def test_what_one_scan_of_a_search_left_out_no_other_reads() -> None:
    time_budget = TimeBudget(60.0, cursor=5)
    assert time_budget.is_over([BodyFilePart("x", (), 5)]) and not time_budget.is_over([BodyFilePart("x", (), 6)])
    assert time_budget.cursor == 5


def test_a_key_of_old_steps_is_no_mistake_while_the_newest_are_searched(run: Run) -> None:
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


def test_what_an_older_version_logged_does_not_count(run: Run) -> None:
    push(run, [{**ROWS[0], "lang": "de"}])
    assert find_samples(run, q="lang=de").total == 1
    assert find_samples(run, q="lang=en").total == 0


@pytest.mark.parametrize("ordering", [*SAMPLE_ORDERINGS, *(f"-{name}" for name in SAMPLE_ORDERINGS)])
def test_orderings_are_stable_and_end_with_the_unknown(run: Run, ordering: str) -> None:
    full = list(find_samples(run, ordering=ordering).samples)
    paged = [sample for start in range(5) for sample in find_samples(run, ordering=ordering).samples[start : start + 1]]
    assert [sample.id for sample in full] == [sample.id for sample in paged]
    if ordering.endswith("score"):
        scores = [sample.score for sample in full]
        assert scores[-1] is None
        assert scores[:-1] == sorted(scores[:-1], reverse=ordering.startswith("-"))
        ties = [sample.id for sample in full if sample.score == 1.0]
        assert ties == sorted(ties)


def test_groups_are_ordered_as_numbers_are(run: Run) -> None:
    push(run, [{"response": str(n), "group": str(n)} for n in (10, 9, 1)], step=2)
    assert [sample.group for sample in find_samples(run, step=2, ordering="group").samples] == ["1", "9", "10"]


def test_an_unknown_ordering_is_refused(run: Run) -> None:
    with pytest.raises(InvalidInputError, match="`ordering` must be one of score, len"):
        find_samples(run, ordering="--score")


def test_a_page_of_one_step_is_an_indexed_query(run: Run) -> None:
    page = find_samples(run, split="train", step=1, ordering="score").samples[:50]
    if connection.vendor == "sqlite":
        plan = page.explain()
        assert "sample_by_score (step_id=?)" in plan
        assert "SCAN rollouts_sample" not in plan


def left(run: Run, **options: Any) -> dict[str, int]:
    """The chips that would leave something."""
    return {
        term: count
        for term, count in find_samples(run, split="train", step=1, **options).count_properties().items()
        if count
    }


def test_chips_count_over_the_current_query(run: Run, mate: User) -> None:
    builders.flag(Sample.objects.get(ordinal=3).id, mate)
    here = {"score<=0": 1, "is:truncated": 1, "is:repetition": 1, "is:flagged": 1, "is:solve-none": 1}
    others = {"is:language-mix": 1, "is:empty": 1, "is:zerovar": 1, "is:solve-all": 1}
    assert left(run, q="group:b") == here
    assert left(run) == {**here, **others}
    assert find_samples(run, split="train", step=1, q="余数").count_properties()["is:zerovar"] == 1


def test_zero_variance_here_is_what_the_step_counts(run: Run) -> None:
    scope = find_samples(run, step=1).scope
    groups = scope.samples().filter(build_condition(PropertyTerm("zerovar"), scope)).values("group").distinct().count()
    assert groups == run.steps.get().zero_variance_groups == 1


def test_more_hits_than_a_query_has_parameters_are_no_problem(run: Run) -> None:
    push(run, [{"response": f"row {n}"} for n in range(40_000)], step=9)
    assert find_samples(run, q="row", step=9).total == 40_000
    assert find_samples(run, q="-row").total == 5


def test_an_answer_is_kept_until_the_file_is_another(run: Run) -> None:
    match_cache.clear()
    assert find_samples(run, q="quokka").total == 1
    assert len(match_cache.values) == 1
    find_samples(run, q="quokka")
    assert len(match_cache.values) == 1
    reindex_run(run)
    index_dump(Dump.objects.get().pk)
    assert find_samples(run, q="quokka").total == 1
    assert len(match_cache.values) == 2


def test_a_body_that_is_gone_is_said_in_one_sentence(run: Run) -> None:
    for part in list_body_parts(find_samples(run).scope):
        files.get_body_file_path(part.path).unlink()
    with pytest.raises(StorageUnavailableError, match="Cannot read the sample texts"):
        find_samples(run, q="quokka")


def test_a_run_without_dumps_has_no_answers_and_no_errors(project: Project) -> None:
    run = builders.run(project, "empty")
    assert find_samples(run, q="foo acc=1 score<1").total == 0
    assert set(find_samples(run).count_properties().values()) == {0}


def test_another_runs_samples_are_never_found(run: Run, project: Project) -> None:
    other = builders.run(project, "other")
    push(other, ROWS)
    assert find_samples(run, q="quokka").total == find_samples(other, q="quokka").total == 1
    assert {sample.step.run_id for sample in find_samples(run).samples} == {run.pk}


def test_neighbouring_pieces_of_a_segment_are_read_as_one() -> None:
    assert merge_pieces([(10, 5), (0, 10)], 15) == ()
    assert merge_pieces([(20, 5), (0, 10), (10, 5)], 40) == ((0, 15), (20, 5))
    assert BodyFilePart("x", merge_pieces([(3, 2)], 5)) == BodyFilePart("x", ((3, 2),))


def test_staleness_and_duration_are_compared_sorted_and_completed(project: Project) -> None:
    run = builders.run(project)
    versions: list[Row] = [
        {"response": "now", "policy_version": 9, "trainer_version": 9, "timing": {"generation": 1.0, "reward": 0.5}},
        {"response": "old", "policy_version": 6, "trainer_version": 9, "timing": {"total_ms": 9000}},
        {"response": "one", "policy_version": 8, "trainer_version": 9},
        {"response": "unknown", "policy_version": 8},
    ]
    push(run, versions)

    def tails(q: str = "", ordering: str = "order") -> list[str]:
        return [sample.tail for sample in find_samples(run, step=1, q=q, ordering=ordering).samples]

    assert tails("staleness>0") == ["old", "one"]
    assert tails("staleness:0..1") == ["now", "one"]
    assert tails("duration>=1.5") == ["now", "old"]
    assert tails("-duration<5") == ["old", "one", "unknown"]
    assert tails(ordering="-staleness") == ["old", "one", "now", "unknown"]
    assert tails(ordering="-duration")[:2] == ["old", "now"]
    choices = complete_query(run, "stale", step=1).choices
    assert ("staleness", "policy versions behind the trainer, 0 to 3") in [(each.text, each.detail) for each in choices]
    assert [each.text for each in complete_query(run, "staleness>", step=1).choices] == [
        "staleness>0", "staleness>1", "staleness>3",
    ]  # fmt: skip


def test_a_field_that_no_sample_has_is_named(run: Run) -> None:
    assert find_samples(run, step=1, q="staleness>2").find_unrecorded_fields() == ["staleness"]
