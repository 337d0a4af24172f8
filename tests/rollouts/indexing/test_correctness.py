"""The rule of a project decides which samples are correct."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from rollouts.errors import InvalidInputError, SearchInterruptedError
from rollouts.indexing import correctness
from rollouts.models import AuditEntry, Dump, Project, Run, Sample, Step
from rollouts.query import correctness_rule, search
from rollouts.query.body_scan import matching
from rollouts.samples import export
from tests.rollouts.support.push import generation, index_file, index_one_dump, lines, list_samples, push
from tests.rollouts.support.verl_batches import V0, create_ready_artifact, index_waiting_dumps
from tests.support import builders
from tests.support.stored import body_path

pytestmark = pytest.mark.django_db

STEP = lines(
    generation("a", "Answer: 1", 1.0, acc=1, lang="zh"), generation("a", "Answer: 2", 0.4, acc=0),
    generation("b", "so 3 it is", 0.6, acc=0), generation("b", "none", 0.0),
)  # fmt: skip


def apply_rule(project: Project, owner: User, rule: str) -> None:
    correctness.change_correctness_rule(project, rule, owner)
    correctness.evaluate_due_steps(project.pk)


def list_verdicts(run: Run, **which: Any) -> list[bool | None]:
    return [item.correct for item in list_samples(run, **which)]


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ("score>=0.5", [True, False, True, False]),
        ("-score>=0.5", [False, True, False, True]),
        ("acc=1", [True, False, False, None]),
        ("-acc=1", [False, True, True, None]),
        ("acc!=1", [False, True, True, None]),
        ("adv!=0", [None, None, None, None]),
        ("acc=1 or score>0.5", [True, False, True, None]),
        ("acc=1 score>0.5", [True, False, False, False]),
        ("lang=zh", [True, None, None, None]),
        ("Answer", [True, True, False, False]),
        ("-/Answer: \\d/ score>0.1", [False, False, True, False]),
        ("group:nowhere", [False, False, False, False]),
        ("nosuchkey=1", [None, None, None, None]),
        ("nosuchkey=1 or score=1", [True, None, None, None]),
        ("is:zerovar", [False, False, False, False]),
        ("step:1 split:train", [True, True, True, True]),
    ],
)
def test_the_rule_is_evaluated_for_every_sample_and_unknown_values_are_not_judged(
    run: Run, owner: User, rule: str, found: list[bool | None]
) -> None:
    index_file(run, STEP)
    apply_rule(run.project, owner, rule)
    assert list_verdicts(run) == found


@pytest.mark.parametrize("rule", ["score>=0.5", "acc=1", "-acc=1", "acc=1 or Answer", "lang=zh"])
def test_a_step_that_arrives_after_the_rule_is_judged_like_an_earlier_step(run: Run, owner: User, rule: str) -> None:
    index_file(run, STEP, 1)
    apply_rule(run.project, owner, rule)
    index_file(run, STEP, 2)
    assert list_verdicts(run, step__step=1) == list_verdicts(run, step__step=2)
    before, after = Step.objects.order_by("step").values_list("facets", flat=True)
    assert before == after
    assert correctness.load_evaluation_progress(Project.objects.get()) == (2, 0)


def test_counts_filters_and_exports_follow_the_rule(run: Run, owner: User) -> None:
    index_file(run, STEP)
    apply_rule(run.project, owner, "score>=0.5")
    facets = Step.objects.get().facets
    assert {name: facets[name] for name in ("judged", "correct", "solve-all", "solve-none")} == {
        "judged": 4, "correct": 2, "solve-all": 0, "solve-none": 0
    }  # fmt: skip
    run.refresh_from_db()
    assert {sample.score for sample in search.find_samples(run, q="is:correct").samples} == {1.0, 0.6}
    assert {sample.score for sample in search.find_samples(run, q="is:wrong").samples} == {0.4, 0.0}
    assert [item["correct"] for item in sorted(iterate_exported_rows(run), key=lambda item: item["score"])] == [
        False,
        False,
        True,
        True,
    ]


def iterate_exported_rows(run: Run) -> Iterator[dict[str, Any]]:
    for batch in export.iterate_full_samples(search.find_samples(run).samples):
        yield from batch


def test_a_search_for_correct_samples_shows_the_rule(run: Run, owner: User) -> None:
    index_file(run, STEP)
    assert correctness_rule.DEFAULT_RULE_TEXT in search.find_samples(run, q="is:wrong").notes[0]
    apply_rule(run.project, owner, "score>=0.5")
    reloaded = Run.objects.get()
    assert "`score>=0.5`" in search.find_samples(reloaded, q="-is:correct").notes[0]
    assert search.find_samples(reloaded, q="score>0").notes == ()


def test_removing_the_rule_restores_the_verdicts_of_the_default_rule(run: Run, owner: User) -> None:
    index_file(run, STEP)
    before, facets = list_verdicts(run), Step.objects.get().facets
    ids = [item.pk for item in list_samples(run)]
    assert before == [True, False, False, False]
    apply_rule(run.project, owner, "score<0.5")
    assert list_verdicts(run) != before
    apply_rule(run.project, owner, "  ")
    assert (list_verdicts(run), Step.objects.get().facets, [item.pk for item in list_samples(run)]) == (
        before,
        facets,
        ids,
    )


def test_evaluating_the_same_rule_again_changes_nothing(run: Run, owner: User) -> None:
    index_file(run, STEP)
    apply_rule(run.project, owner, "score>=0.5")
    version = Run.objects.get().version
    correctness.evaluate_due_steps(run.project_id)
    correctness.evaluate_step(Step.objects.get().pk)  # a second worker that waited for the first
    correctness.change_correctness_rule(run.project, "score>=0.5", owner)
    assert Run.objects.get().version == version
    assert AuditEntry.objects.filter(verb="correct.set").count() == 1


def test_a_worker_that_dies_between_two_steps_leaves_the_rest_to_the_next(
    run: Run, owner: User, monkeypatch: Any
) -> None:
    for step in (1, 2, 3):
        index_file(run, STEP, step)
    correctness.change_correctness_rule(run.project, "score>=0.5", owner)
    evaluate_step, evaluated = correctness.evaluate_step, []

    def evaluate_until_killed(step_id: int, **more: Any) -> None:
        evaluated.append(step_id)
        if len(evaluated) == 2:
            raise KeyboardInterrupt
        evaluate_step(step_id, **more)

    monkeypatch.setattr(correctness, "evaluate_step", evaluate_until_killed)
    with pytest.raises(KeyboardInterrupt):
        correctness.evaluate_due_steps(run.project_id)
    monkeypatch.undo()
    assert correctness.load_evaluation_progress(Project.objects.get()) == (3, 2)
    assert list_verdicts(run, step__step=3) == [True, False, True, False]
    assert list_verdicts(run, step__step=1) == [True, False, False, False]
    assert correctness.find_projects_to_evaluate() == [run.project_id]
    correctness.evaluate_due_steps(run.project_id)
    assert correctness.load_evaluation_progress(Project.objects.get()) == (3, 0)
    assert correctness.find_projects_to_evaluate() == []


def test_a_claim_of_a_killed_worker_expires(run: Run, owner: User) -> None:
    index_file(run, STEP)
    correctness.change_correctness_rule(run.project, "score>=0.5", owner)
    Project.objects.update(judging_until=timezone.now() + correctness.EVALUATION_LEASE)
    correctness.evaluate_due_steps(run.project_id)
    assert (
        correctness.find_projects_to_evaluate(),
        correctness.load_evaluation_progress(Project.objects.get()).left,
    ) == ([], 1)
    Project.objects.update(judging_until=timezone.now())
    assert correctness.find_projects_to_evaluate() == [run.project_id]
    correctness.evaluate_due_steps(run.project_id)
    assert (correctness.load_evaluation_progress(Project.objects.get()).left, Project.objects.get().judging_until) == (
        0,
        None,
    )


def test_a_rule_that_changes_during_an_evaluation_is_applied_to_all_steps(
    run: Run, owner: User, monkeypatch: Any
) -> None:
    for step in (1, 2):
        index_file(run, STEP, step)
    correctness.change_correctness_rule(run.project, "score>=0.5", owner)
    evaluate_step, evaluated = correctness.evaluate_step, []

    def evaluate_and_change_rule(step_id: int, **more: Any) -> None:
        evaluated.append(step_id)
        evaluate_step(step_id, **more)
        if len(evaluated) == 1:
            correctness.change_correctness_rule(run.project, "score<0.5", owner)

    monkeypatch.setattr(correctness, "evaluate_step", evaluate_and_change_rule)
    correctness.evaluate_due_steps(run.project_id)
    assert [list_verdicts(run, step__step=step) for step in (1, 2)] == [[False, True, False, True]] * 2


def test_a_step_with_deleted_texts_is_not_judged_and_does_not_block_others(run: Run, owner: User) -> None:
    deleted = index_file(run, STEP, 1)
    index_file(run, STEP, 2)
    assert deleted.segment
    body_path(deleted.segment.path).unlink()
    apply_rule(run.project, owner, "Answer")
    assert list_verdicts(run, step__step=1) == [None] * 4
    assert "judged" not in Step.objects.get(step=1).facets
    assert list_verdicts(run, step__step=2) == [True, True, False, False]
    assert correctness.load_evaluation_progress(Project.objects.get()) == (2, 0)


def test_a_damaged_body_does_not_block_other_steps_when_the_default_rule_returns(run: Run, owner: User) -> None:
    index_file(run, STEP, 1)
    damaged = index_file(run, STEP, 2)
    apply_rule(run.project, owner, "score<0.5")
    assert damaged.segment
    body_path(damaged.segment.path).write_bytes(b"damaged")
    apply_rule(run.project, owner, "")
    assert list_verdicts(run, step__step=2) == [None] * 4
    assert list_verdicts(run, step__step=1) == [True, False, False, False]
    assert correctness.load_evaluation_progress(Project.objects.get()) == (2, 0)


def test_a_step_whose_search_was_interrupted_stays_due_and_blocks_no_other_step(
    run: Run, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_file(run, STEP, 1)
    killed = index_file(run, STEP, 2)
    read_matches = matching.scan_parts

    def interrupt(parts: list[Any], *args: Any, **options: Any) -> list[str]:
        if killed.segment and any(part.path == killed.segment.path for part in parts):
            raise SearchInterruptedError("The search was interrupted.")
        return read_matches(parts, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(matching, "scan_parts", interrupt)
        apply_rule(run.project, owner, "Answer")
        assert correctness.load_evaluation_progress(Project.objects.get()) == (2, 1)
        assert None not in list_verdicts(run, step__step=2), "the verdicts before stay"
    correctness.evaluate_due_steps(run.project_id)
    assert correctness.load_evaluation_progress(Project.objects.get()) == (2, 0)
    assert list_verdicts(run, step__step=2) == list_verdicts(run, step__step=1) == [True, True, False, False]


def test_the_rule_gives_the_same_verdicts_in_any_order_of_dumps(project: Project, owner: User) -> None:
    correctness.change_correctness_rule(project, "acc=1 or Answer", owner)
    bodies = [
        lines(generation("a", "x", 0.0), generation("a", "Answer: 2", 0.0)),
        lines(generation("a", "x", 0.0, acc=1), generation("b", "y", 0.0, acc=0)),
    ]
    verdicts = []
    for name, order in zip("ab", permutations((0, 1)), strict=True):
        run = builders.run(project, name)
        dumps = [push(run, bodies[position], source=f"{position}.jsonl") for position in range(2)]
        for position in order:
            index_one_dump(dumps[position])
        verdicts.append({item.tail: item.correct for item in list_samples(run)})
    assert verdicts == [{"x": True, "Answer: 2": True, "y": False}] * 2


def test_samples_without_text_are_not_judged_by_text(run: Run, owner: User) -> None:
    create_ready_artifact(run, V0)
    index_waiting_dumps(run)
    assert list_samples(run)
    for rule in ("nowhere-in-any-answer", "-nowhere-in-any-answer"):
        apply_rule(run.project, owner, rule)
        assert set(list_verdicts(run)) == {None}


@pytest.mark.parametrize(
    "rule",
    [
        "is:correct",
        "score>0 -is:wrong",
        "is:flagged",
        "is:pinned",
        "is:reused",
        "is:solve-all",
        'reason:"reward hack"',
        "score>",
        "(",
    ],
)
def test_an_invalid_rule_is_refused_and_nothing_changes(run: Run, owner: User, rule: str) -> None:
    with pytest.raises(InvalidInputError):
        correctness.change_correctness_rule(run.project, rule, owner)
    assert (Project.objects.get().correct, Project.objects.get().rule) == ("", 0)


def test_a_rule_applies_to_its_own_project_only(run: Run, owner: User) -> None:
    other = builders.run(builders.project("code"), "other")
    index_file(run, STEP)
    index_file(other, STEP)
    apply_rule(run.project, owner, "score<0.5")
    assert list_verdicts(other) == [True, False, False, False]
    assert Dump.objects.filter(state=Dump.State.INDEXED).count() == 2
    assert Sample.objects.filter(step__run=run, correct=True).count() == 2
