"""Labels are stored, replaced, withdrawn and undone, and their history stays."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from rollouts.errors import InvalidInputError, NotFoundError, OutdatedError
from rollouts.labels import (
    Answer,
    DatedAnswer,
    load_history,
    load_labels,
    load_rubric,
    merge_labels,
    save_rubric,
    store_labels,
    undo_label_action,
    withdraw_label,
)
from rollouts.labels import store as store_module
from rollouts.models import AuditEntry, Label, LabelAction, LabelChange, Project, Run, Sample
from rollouts.runs import load_run_sizes
from tests.rollouts.flags.test_bulk import index_two_steps, list_sample_ids, read_flag_counts
from tests.rollouts.labels.test_rubric import ROWS
from tests.support import builders


@pytest.fixture
def run(project: Project, owner: User) -> Run:
    save_rubric(project, owner, ROWS, "Be **fair**.")
    return index_two_steps(builders.run(project))


def read_labels(run: Run, **which: Any) -> set[tuple[Any, ...]]:
    rows = Label.objects.active().filter(run=run, **which)
    return {(row.sample, row.author, row.name, str(row.value), row.rationale) for row in rows}


def test_a_person_a_function_and_a_model_each_have_one_current_label(run: Run, mate: User, owner: User) -> None:
    first = list_sample_ids(run)[0]
    store_labels(run, mate, [Answer(first, "correct", True), Answer(first, "quality", 3, "short")])
    code = Answer(first, "correct", False, source="code", author="grade_v2")
    model = Answer(first, "correct", True, source="model", author="judge-7b")
    store_labels(run, mate, [Answer(first, "quality", 4, "on reflection"), code, model])
    store_labels(run, owner, [Answer(first, "correct", True, source="code", author="grade_v2")])
    assert read_labels(run) == {
        (first, "mina", "correct", "True", ""),
        (first, "mina", "quality", "4", "on reflection"),
        (first, "grade_v2", "correct", "True", ""),
        (first, "judge-7b", "correct", "True", ""),
    }
    assert Label.objects.get(author="grade_v2").user == owner, "who stored it last"
    (change,) = load_history(Label.objects.get(name="quality"))
    assert (change.value, change.rationale, change.withdrawn, change.undone) == (3, "short", False, False)
    assert change.at < Label.objects.get(name="quality").updated_at
    assert Label.objects.filter(rubric__number=1).count() == 4


def test_the_same_answer_again_changes_nothing(run: Run, mate: User) -> None:
    answers = [Answer(list_sample_ids(run)[0], "correct", True, "yes")]
    assert store_labels(run, mate, answers).pk
    assert store_labels(run, mate, answers).pk is None
    assert (LabelChange.objects.count(), LabelAction.objects.count()) == (0, 1)


def test_an_empty_value_withdraws_a_label_and_undo_restores_it(run: Run, mate: User) -> None:
    first, second = list_sample_ids(run)[:2]
    store_labels(run, mate, [Answer(first, "style", "bad", "ugly"), Answer(second, "style", "good")])
    before = read_labels(run)
    action = store_labels(run, mate, [Answer(first, "style", None), Answer(first, "quality", None)])
    assert (action.changed_count, read_labels(run)) == (1, {(second, "mina", "style", "good", "")})
    undone = undo_label_action(run, mate)
    assert (undone.restored_count, undone.sample, read_labels(run)) == (1, first, before)
    label = Label.objects.get(sample=first)
    assert [(row.value, row.withdrawn, row.undone) for row in load_history(label)] == [("bad", True, True)]
    assert undo_label_action(run, mate).restored_count == 2
    assert read_labels(run) == set()
    with pytest.raises(NotFoundError, match="Nothing to undo"):
        undo_label_action(run, mate)
    assert set(AuditEntry.objects.values_list("verb", flat=True)) == {"rubric.save", "label.undo"}


def test_an_ok_and_the_flag_that_it_withdraws_are_one_action(run: Run, mate: User) -> None:
    first, second = list_sample_ids(run)[:2]
    builders.flag(first, mate, reason="other", text="why")
    action = store_labels(run, mate, [Answer(pk, "review", "ok") for pk in (first, second)])
    assert action.description == "“OK” on 2 samples"
    assert (read_flag_counts(run), read_labels(run, sample=first)) == ([0, 0], {(first, "mina", "review", "ok", "")})
    undone = undo_label_action(run, mate)
    assert (undone.restored_count, undone.names) == (3, {"review", "flag.other"})
    assert (read_flag_counts(run), read_labels(run)) == ([1, 0], {(first, "mina", "flag.other", "bad", "why")})


def test_cannot_judge_withdraws_no_flag(run: Run, mate: User) -> None:
    first = list_sample_ids(run)[0]
    builders.flag(first, mate)
    store_labels(run, mate, [Answer(first, "review", "cannot-judge")])
    assert {name for _sample, _author, name, *_ in read_labels(run)} == {"flag", "review"}


@pytest.mark.parametrize(
    ("answer", "field", "message"),
    [
        (
            {"name": "colour"},
            "name",
            "no question `colour`. Available: correct, errors, style, quality, cost, note, review",
        ),
        ({"value": "yes"}, "correct", "must be true or false"),
        ({"source": "robot"}, "source", "must be one of: human, code, model"),
        ({"source": "code"}, "author", "`author` is required"),
        ({"author": "olga"}, "author", "only in your own name"),
        ({"name": "review", "value": "ok", "source": "code", "author": "f"}, "source", "Only people"),
        ({"name": "flag.bored", "value": "bad"}, "reason", "must be one of reward-hack"),
        ({"name": "flag", "value": "ugly"}, "label", "must be one of bad, good, unsure"),
        ({"start": 0, "end": 2}, "start", "does not ask for a range"),
        ({"name": "errors", "value": ["sum"], "start": 3, "end": 3}, "end", "a larger `end`"),
        ({"name": "errors", "value": ["sum"], "start": 0, "end": 999}, "end", "ends after the response"),
        ({"rationale": "x" * 10_001}, "rationale", "at most 10,000 characters"),
    ],
)
def test_an_answer_that_is_not_valid_stores_nothing(
    run: Run, mate: User, answer: dict[str, Any], field: str, message: str
) -> None:
    first = list_sample_ids(run)[0]
    wrong = Answer(**({"sample": first, "name": "correct", "value": True} | answer))
    with pytest.raises(InvalidInputError, match=message) as error:
        store_labels(run, mate, [Answer(first, "style", "good"), wrong])
    assert error.value.field == field
    assert not Label.objects.exists()


def test_a_sample_of_another_run_is_refused(run: Run, project: Project, mate: User) -> None:
    other = index_two_steps(builders.run(project, "other"))
    with pytest.raises(NotFoundError, match="not found in grpo"):
        store_labels(run, mate, [Answer(list_sample_ids(other)[0], "correct", True)])


def test_a_range_of_the_response_is_stored(run: Run, mate: User) -> None:
    first = list_sample_ids(run)[0]
    chars = Sample.objects.get(pk=first).chars
    store_labels(run, mate, [Answer(first, "errors", ["sum"], start=1, end=chars)])
    label = Label.objects.get()
    assert (label.start, label.end, label.answer) == (1, chars, " sum ")
    store_labels(run, mate, [Answer(first, "errors", ["sum"])])
    (change,) = load_history(label)
    assert (change.start, change.end) == (1, chars)


def test_two_requests_of_one_author_at_once_store_one_label(
    run: Run, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = list_sample_ids(run)[0]
    load, has_stored_another = store_module.load_existing, []

    def load_and_store_another(*arguments: Any) -> Any:
        result = load(*arguments)
        if not has_stored_another:
            has_stored_another.append(True)
            store_labels(run, mate, [Answer(first, "quality", 2)])
        return result

    monkeypatch.setattr(store_module, "load_existing", load_and_store_another)
    try:
        store_labels(run, mate, [Answer(first, "quality", 5)])
    except IntegrityError:
        pytest.fail("the second request failed")
    assert read_labels(run) == {(first, "mina", "quality", "5", "")}


def test_many_labels_take_as_many_queries_as_a_few(
    project: Project, owner: User, mate: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    save_rubric(project, owner, ROWS)
    run = index_two_steps(builders.run(project))
    every = list_sample_ids(run)
    with django_assert_max_num_queries(13):
        store_labels(run, mate, [Answer(every[0], "correct", True), Answer(every[0], "quality", 3)])
    with django_assert_max_num_queries(13):
        store_labels(run, mate, [Answer(pk, "note", f"note of {pk}") for pk in every])


def test_a_withdrawn_label_stays_readable(run: Run, mate: User, owner: User) -> None:
    first = list_sample_ids(run)[0]
    store_labels(run, mate, [Answer(first, "quality", 3)])
    assert withdraw_label(Label.objects.get(), owner).description == "withdrawal of “quality: 3”"
    assert withdraw_label(Label.objects.get(), owner).pk is None
    assert load_labels([first]) == {}
    assert [row.value for row in load_labels([first], withdrawn=True)[first]] == [3]
    assert undo_label_action(run, owner).restored_count == 1
    assert read_labels(run) == {(first, "mina", "quality", "3", "")}


def test_undo_restores_the_user_who_had_stored_a_replaced_label(run: Run, mate: User, owner: User) -> None:
    first = list_sample_ids(run)[0]
    for user, value in ((owner, True), (mate, False)):
        store_labels(run, user, [Answer(first, "correct", value, source="model", author="judge")])
    assert Label.objects.get().user == mate
    undo_label_action(run, mate)
    label = Label.objects.get()
    assert (label.value, label.user) == (True, owner)


def test_only_a_maintainer_withdraws_a_machine_label_of_another_user(run: Run, mate: User, owner: User) -> None:
    first = list_sample_ids(run)[0]
    judged = Answer(first, "correct", True, source="model", author="judge")
    nothing = Answer(first, "correct", None, source="model", author="judge")
    store_labels(run, owner, [judged])
    with pytest.raises(InvalidInputError, match="another user's label"):
        store_labels(run, mate, [nothing])
    now = timezone.now() + timedelta(minutes=1)
    (refused,) = merge_labels(run.project, mate, [DatedAnswer(nothing, now, now)])
    assert (refused.outcome, "another user's label" in refused.problem) == ("invalid", True)
    store_labels(run, mate, [replace(judged, value=False)])
    store_labels(run, owner, [nothing])
    assert not Label.objects.active().exists()
    entry = AuditEntry.objects.get(verb="label.withdraw")
    assert (entry.user, entry.detail["author"], entry.detail["labels"]) == (owner, "judge", 1)


def test_an_answer_here_is_newer_than_the_label_that_it_replaces(run: Run, mate: User) -> None:
    first, ahead = list_sample_ids(run)[0], timezone.now() + timedelta(hours=8)
    imported = DatedAnswer(Answer(first, "correct", True), ahead, ahead)
    merge_labels(run.project, mate, [imported])
    store_labels(run, mate, [Answer(first, "correct", False)])
    assert [merged.outcome for merged in merge_labels(run.project, mate, [imported])] == ["older"]
    assert Label.objects.get().value is False


def test_labels_of_a_run_are_counted_before_it_is_deleted(run: Run, mate: User) -> None:
    first, second = list_sample_ids(run)[:2]
    store_labels(run, mate, [Answer(first, "quality", 3), Answer(first, "review", "ok"), Answer(second, "flag", "bad")])
    size = load_run_sizes([run])[run.pk]
    assert (size.samples, size.flags, size.labels, size.pins) == (6, 1, 2, 0)


def test_only_actions_of_the_last_day_can_be_undone(run: Run, mate: User) -> None:
    store_labels(run, mate, [Answer(list_sample_ids(run)[0], "quality", 3)])
    LabelAction.objects.update(created_at=timezone.now() - timedelta(days=2))
    with pytest.raises(NotFoundError):
        undo_label_action(run, mate)


def test_a_rubric_has_versions_and_an_outdated_edit_is_refused(project: Project, owner: User) -> None:
    assert (load_rubric(project).number, load_rubric(project).questions[0].key) == (0, "review")
    first = save_rubric(project, owner, ROWS, "one", base=0)
    assert (first.number, first.guidelines, first.created_by) == (1, "one", "olga")
    assert save_rubric(project, owner, ROWS, "one", base=1).number == 1, "the same questions are no new version"
    assert save_rubric(project, owner, ROWS[:1], "two", base=1).number == 2
    with pytest.raises(OutdatedError, match="now version 2, not 1"):
        save_rubric(project, owner, ROWS, "three", base=1)
    assert (load_rubric(project).guidelines, len(load_rubric(project, 1).questions)) == ("two", len(ROWS))
    with pytest.raises(NotFoundError, match="no version 9"):
        load_rubric(project, 9)


def test_a_sample_that_is_dropped_before_the_lock_gets_no_label(
    run: Run, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = list_sample_ids(run)[0]
    monkeypatch.setattr(store_module, "lock_steps", lambda _steps: Sample.objects.filter(pk=first).delete())
    with pytest.raises(NotFoundError):
        store_labels(run, mate, [Answer(first, "correct", True)])
    assert not Label.objects.filter(sample=first).exists()
