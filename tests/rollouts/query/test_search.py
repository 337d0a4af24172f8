"""Searches over dumps that were ingested and indexed."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection

from rollouts.errors import InvalidInputError
from rollouts.models import Pin, Project, Replay, Run, Sample
from rollouts.query.ast import InvalidQueryError, PropertyTerm
from rollouts.query.completion import complete_query
from rollouts.query.search import SAMPLE_ORDERINGS, find_samples
from rollouts.query.sql import build_condition
from tests.rollouts.support.query_rows import ROWS, Row, push
from tests.support import builders


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    push(run, ROWS)
    return run


def find_ordinals(run: Run, q: str, **options: Any) -> list[int]:
    """The positions in ROWS of the samples that a query finds."""
    texts = [row["response"] for row in ROWS]
    result = find_samples(run, q=q, ordering="order", **options)
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
        ("source=gsm8k", []),
        ('source="openai/gsm8k"', [4]),
        ('source!="openai/gsm8k"', [0, 1, 2, 3]),
        ("acc=0.5..1", [0, 1]),
        ("extra.acc:0..0.5", [2, 3]),
        ("acc!=0..0.5", [0, 1]),
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
    assert find_ordinals(run, q) == expected
    assert find_ordinals(run, q, step=1, split="train") == expected


def test_prompt_key_finds_the_samples_of_one_prompt(run: Run) -> None:
    key = Sample.objects.get(ordinal=4).prompt_key
    assert find_ordinals(run, f"prompt:{key}") == find_ordinals(run, f"prompt:{key[:9].upper()}") == [4]


def test_a_reason_is_searched_by_its_key_or_name(run: Run, mate: User) -> None:
    builders.flag(Sample.objects.get(ordinal=2).id, mate, reason="reward-hack")
    assert (
        find_ordinals(run, 'reason:"Reward hack"')
        == find_ordinals(run, "reason:reward-hack")
        == find_ordinals(run, "is:flagged")
        == [2]
    )
    assert find_ordinals(run, "reason:other") == []
    builders.flag(Sample.objects.get(ordinal=1).id, mate, label="good")
    assert find_ordinals(run, "is:flagged") == [1, 2] and find_ordinals(run, "is:flagged-bad") == [2]
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


def test_a_search_for_an_unknown_key_is_an_error(run: Run) -> None:
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


@pytest.mark.parametrize("ordering", [*SAMPLE_ORDERINGS, *(f"-{name}" for name in SAMPLE_ORDERINGS)])
def test_orderings_are_stable_and_end_with_unknown_values(run: Run, ordering: str) -> None:
    full = list(find_samples(run, ordering=ordering).samples)
    paged = [sample for start in range(5) for sample in find_samples(run, ordering=ordering).samples[start : start + 1]]
    assert [sample.id for sample in full] == [sample.id for sample in paged]
    if ordering.endswith("score"):
        scores = [sample.score for sample in full]
        assert scores[-1] is None
        assert scores[:-1] == sorted(scores[:-1], reverse=ordering.startswith("-"))
        ties = [sample.id for sample in full if sample.score == 1.0]
        assert ties == sorted(ties)


def test_groups_are_ordered_as_numbers(run: Run) -> None:
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


def count_chips(run: Run, **options: Any) -> dict[str, int]:
    """The counts of the chips that match at least one sample."""
    return {
        term: count
        for term, count in find_samples(run, split="train", step=1, **options).count_properties().items()
        if count
    }


def test_chips_count_over_the_current_query(run: Run, mate: User) -> None:
    builders.flag(Sample.objects.get(ordinal=3).id, mate)
    group_counts = {"score<=0": 1, "is:truncated": 1, "is:repetition": 1, "is:flagged": 1, "is:solve-none": 1}
    other_counts = {"is:language-mix": 1, "is:empty": 1, "is:zerovar": 1, "is:solve-all": 1}
    assert count_chips(run, q="group:b") == group_counts
    assert count_chips(run) == {**group_counts, **other_counts}
    assert find_samples(run, split="train", step=1, q="余数").count_properties()["is:zerovar"] == 1


def test_a_search_for_zero_variance_finds_the_groups_that_the_step_counts(run: Run) -> None:
    scope = find_samples(run, step=1).scope
    groups = scope.samples().filter(build_condition(PropertyTerm("zerovar"), scope)).values("group").distinct().count()
    assert groups == run.steps.get().zero_variance_groups == 1


def test_a_run_without_dumps_has_no_answers_and_no_errors(project: Project) -> None:
    run = builders.run(project, "empty")
    assert find_samples(run, q="foo acc=1 score<1").total == 0
    assert set(find_samples(run).count_properties().values()) == {0}


def test_samples_of_another_run_are_never_found(run: Run, project: Project) -> None:
    other = builders.run(project, "other")
    push(other, ROWS)
    assert find_samples(run, q="quokka").total == find_samples(other, q="quokka").total == 1
    assert {sample.step.run_id for sample in find_samples(run).samples} == {run.pk}


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


def test_a_field_that_no_sample_has_is_listed(run: Run) -> None:
    assert find_samples(run, step=1, q="staleness>2").find_unrecorded_fields() == ["staleness"]
