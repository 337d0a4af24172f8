"""A project's rule decides what is correct, wherever that is used."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from rollouts.errors import InvalidInputError
from rollouts.indexing import correctness
from rollouts.models import AuditEntry, Dump, Project, Run, Sample, Step
from rollouts.query import correctness_rule, search
from rollouts.samples import export
from tests.rollouts.support.push import generation, index_alone, index_file, lines, list_samples, push
from tests.rollouts.support.verl_batches import V0, create_ready_artifact, index_waiting_dumps
from tests.support import builders
from tests.support.stored import body_path

pytestmark = pytest.mark.django_db

STEP = lines(
    generation("a", "Answer: 1", 1.0, acc=1, lang="zh"), generation("a", "Answer: 2", 0.4, acc=0),
    generation("b", "so 3 it is", 0.6, acc=0), generation("b", "none", 0.0),
)  # fmt: skip


def ruled(project: Project, owner: User, rule: str) -> None:
    correctness.change_correctness_rule(project, rule, owner)
    correctness.evaluate_due_steps(project.pk)


def verdicts(run: Run, **which: Any) -> list[bool | None]:
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
def test_the_rule_is_asked_of_every_sample_and_what_was_not_recorded_is_neither(
    run: Run, owner: User, rule: str, found: list[bool | None]
) -> None:
    index_file(run, STEP)
    ruled(run.project, owner, rule)
    assert verdicts(run) == found


@pytest.mark.parametrize("rule", ["score>=0.5", "acc=1", "-acc=1", "acc=1 or Answer", "lang=zh"])
def test_a_step_that_comes_after_the_rule_is_judged_as_one_that_came_before(run: Run, owner: User, rule: str) -> None:
    index_file(run, STEP, 1)
    ruled(run.project, owner, rule)
    index_file(run, STEP, 2)
    assert verdicts(run, step__step=1) == verdicts(run, step__step=2)
    before, after = Step.objects.order_by("step").values_list("facets", flat=True)
    assert before == after
    assert correctness.load_evaluation_progress(Project.objects.get()) == (2, 0)


def test_counts_filters_and_exports_follow_the_rule(run: Run, owner: User) -> None:
    index_file(run, STEP)
    ruled(run.project, owner, "score>=0.5")
    result = Step.objects.get().facets
    assert {name: result[name] for name in ("judged", "correct", "solve-all", "solve-none")} == {
        "judged": 4, "correct": 2, "solve-all": 0, "solve-none": 0
    }  # fmt: skip
    run.refresh_from_db()
    assert {sample.score for sample in search.find_samples(run, q="is:correct").samples} == {1.0, 0.6}
    assert {sample.score for sample in search.find_samples(run, q="is:wrong").samples} == {0.4, 0.0}
    assert [item["correct"] for item in sorted(exported(run), key=lambda item: item["score"])] == [
        False,
        False,
        True,
        True,
    ]


def exported(run: Run) -> Iterator[dict[str, Any]]:
    for batch in export.iterate_full_samples(search.find_samples(run).samples):
        yield from batch


def test_who_asks_for_correct_is_told_the_rule(run: Run, owner: User) -> None:
    index_file(run, STEP)
    assert correctness_rule.DEFAULT_RULE_TEXT in search.find_samples(run, q="is:wrong").notes[0]
    ruled(run.project, owner, "score>=0.5")
    again = Run.objects.get()
    assert "`score>=0.5`" in search.find_samples(again, q="-is:correct").notes[0]
    assert search.find_samples(again, q="score>0").notes == ()


def test_the_default_comes_back_as_if_there_had_never_been_a_rule(run: Run, owner: User) -> None:
    index_file(run, STEP)
    before, figures = verdicts(run), Step.objects.get().facets
    ids = [item.pk for item in list_samples(run)]
    assert before == [True, False, False, False]
    ruled(run.project, owner, "score<0.5")
    assert verdicts(run) != before
    ruled(run.project, owner, "  ")
    assert (verdicts(run), Step.objects.get().facets, [item.pk for item in list_samples(run)]) == (before, figures, ids)


def test_judging_again_changes_nothing_not_even_the_runs_version(run: Run, owner: User) -> None:
    index_file(run, STEP)
    ruled(run.project, owner, "score>=0.5")
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
    full, tried = correctness.evaluate_step, []

    def killed(step_id: int, **more: Any) -> None:
        tried.append(step_id)
        if len(tried) == 2:
            raise KeyboardInterrupt
        full(step_id, **more)

    monkeypatch.setattr(correctness, "evaluate_step", killed)
    with pytest.raises(KeyboardInterrupt):
        correctness.evaluate_due_steps(run.project_id)
    monkeypatch.undo()
    assert correctness.load_evaluation_progress(Project.objects.get()) == (3, 2)
    assert verdicts(run, step__step=3) == [True, False, True, False]
    assert verdicts(run, step__step=1) == [True, False, False, False]
    assert correctness.find_projects_to_evaluate() == [run.project_id]
    correctness.evaluate_due_steps(run.project_id)
    assert correctness.load_evaluation_progress(Project.objects.get()) == (3, 0)
    assert correctness.find_projects_to_evaluate() == []


def test_a_claim_of_a_killed_worker_lapses(run: Run, owner: User) -> None:
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


def test_a_rule_that_changes_while_a_worker_judges_is_the_one_that_counts(
    run: Run, owner: User, monkeypatch: Any
) -> None:
    for step in (1, 2):
        index_file(run, STEP, step)
    correctness.change_correctness_rule(run.project, "score>=0.5", owner)
    full, seen = correctness.evaluate_step, []

    def changing(step_id: int, **more: Any) -> None:
        seen.append(step_id)
        full(step_id, **more)
        if len(seen) == 1:
            correctness.change_correctness_rule(run.project, "score<0.5", owner)

    monkeypatch.setattr(correctness, "evaluate_step", changing)
    correctness.evaluate_due_steps(run.project_id)
    assert [verdicts(run, step__step=step) for step in (1, 2)] == [[False, True, False, True]] * 2


def test_a_step_whose_text_is_gone_is_left_unjudged_and_holds_nothing_up(run: Run, owner: User) -> None:
    gone = index_file(run, STEP, 1)
    index_file(run, STEP, 2)
    assert gone.segment
    body_path(gone.segment.path).unlink()
    ruled(run.project, owner, "Answer")
    assert verdicts(run, step__step=1) == [None] * 4
    assert "judged" not in Step.objects.get(step=1).facets
    assert verdicts(run, step__step=2) == [True, True, False, False]
    assert correctness.load_evaluation_progress(Project.objects.get()) == (2, 0)


def test_a_damaged_body_holds_up_no_other_step_when_the_default_rule_applies_again(run: Run, owner: User) -> None:
    index_file(run, STEP, 1)
    damaged = index_file(run, STEP, 2)
    ruled(run.project, owner, "score<0.5")
    assert damaged.segment
    body_path(damaged.segment.path).write_bytes(b"damaged")
    ruled(run.project, owner, "")
    assert verdicts(run, step__step=2) == [None] * 4
    assert verdicts(run, step__step=1) == [True, False, False, False]
    assert correctness.load_evaluation_progress(Project.objects.get()) == (2, 0)


def test_whatever_order_the_dumps_of_a_step_come_in_the_rule_says_the_same(project: Project, owner: User) -> None:
    correctness.change_correctness_rule(project, "acc=1 or Answer", owner)
    telling = [
        lines(generation("a", "x", 0.0), generation("a", "Answer: 2", 0.0)),
        lines(generation("a", "x", 0.0, acc=1), generation("b", "y", 0.0, acc=0)),
    ]
    matches = []
    for name, order in zip("ab", permutations((0, 1)), strict=True):
        run = builders.run(project, name)
        pushed = [push(run, telling[at], source=f"{at}.jsonl") for at in range(2)]
        for at in order:
            index_alone(pushed[at])
        matches.append({item.tail: item.correct for item in list_samples(run)})
    assert matches == [{"x": True, "Answer: 2": True, "y": False}] * 2


def test_samples_without_text_are_not_judged_by_text(run: Run, owner: User) -> None:
    create_ready_artifact(run, V0)
    index_waiting_dumps(run)
    assert list_samples(run)
    for rule in ("nowhere-in-any-answer", "-nowhere-in-any-answer"):
        ruled(run.project, owner, rule)
        assert set(verdicts(run)) == {None}


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
def test_a_rule_that_cannot_be_one_is_refused_and_nothing_changes(run: Run, owner: User, rule: str) -> None:
    with pytest.raises(InvalidInputError):
        correctness.change_correctness_rule(run.project, rule, owner)
    assert (Project.objects.get().correct, Project.objects.get().rule) == ("", 0)


def test_a_rule_is_its_own_projects_only(run: Run, owner: User) -> None:
    other = builders.run(builders.project("code"), "other")
    index_file(run, STEP)
    index_file(other, STEP)
    ruled(run.project, owner, "score<0.5")
    assert verdicts(other) == [True, False, False, False]
    assert Dump.objects.filter(state=Dump.State.INDEXED).count() == 2
    assert Sample.objects.filter(step__run=run, correct=True).count() == 2
