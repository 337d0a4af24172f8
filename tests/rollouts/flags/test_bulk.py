"""Flagging many samples in one action, and undoing it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.flags import bulk, flags
from rollouts.labels import store, undo
from rollouts.models import AuditEntry, Label, LabelAction, Project, Run, Sample
from rollouts.query import search
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders


@pytest.fixture
def run(project: Project) -> Run:
    return index_two_steps(builders.run(project))


@pytest.fixture
def notifications(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    received: list[Any] = []
    monkeypatch.setattr(store, "notify_run_changed", lambda run, **what: received.append((run.uid, what)))
    return received


def index_two_steps(run: Run) -> Run:
    """Adds two steps of three samples to the run."""
    for step in (1, 2):
        index_file(run, lines(*(generation(f"ask {n}", f"{n} of {step}", n / 2, step) for n in range(3))), step)
    return run


def list_sample_ids(run: Run, **which: Any) -> list[str]:
    result = Sample.objects.filter(step__run=run, **which).order_by("step__step", "ordinal")
    return list(result.values_list("pk", flat=True))


def read_flag_counts(run: Run) -> list[int]:
    return list(run.steps.order_by("step").values_list("flags", flat=True))


def test_many_samples_are_flagged_in_one_action_with_one_notification(
    run: Run, mate: User, notifications: list[Any]
) -> None:
    action = bulk.flag_samples(run, list_sample_ids(run), mate, reason="truncated", text="all cut")
    assert (
        Label.objects.filter(name="flag.truncated", rationale="all cut", user=mate).count(),
        read_flag_counts(run),
    ) == (
        6,
        [3, 3],
    )
    assert action.description == "“truncated” (bad) on 6 samples"
    assert notifications == [(run.uid, {"sparse": True})]


def test_an_action_on_one_step_notifies_of_that_step(run: Run, mate: User, notifications: list[Any]) -> None:
    bulk.flag_samples(run, list_sample_ids(run, step__step=2), mate)
    assert notifications == [(run.uid, {"split": "train", "step": 2, "sparse": True})]


def test_flagging_again_changes_nothing_and_leaves_nothing_to_undo(
    run: Run, mate: User, notifications: list[Any]
) -> None:
    bulk.flag_samples(run, list_sample_ids(run), mate)
    assert bulk.flag_samples(run, list_sample_ids(run), mate).pk is None
    assert (Label.objects.count(), LabelAction.objects.count(), len(notifications)) == (6, 1, 1)


def test_undo_withdraws_new_flags_and_restores_changed_ones(run: Run, mate: User) -> None:
    first, second, *_ = list_sample_ids(run)
    builders.flag(first, mate, reason="other", label="unsure", text="hm")
    bulk.flag_samples(run, [first, second], mate, reason="other", text="sure now")
    assert undo.undo_label_action(run, mate) == undo.UndoResult(
        "“other” (bad) on 2 samples", 2, 0, "", frozenset({"flag.other"})
    )
    assert [(flag.value, flag.rationale) for flag in flags.load_flags([first, second])[first]] == [("unsure", "hm")]
    assert flags.load_flags([second]) == {}
    assert len(flags.load_flags([second], withdrawn=True)[second]) == 1, "withdrawn, never deleted"
    assert read_flag_counts(run) == [1, 0]
    entry = AuditEntry.objects.get(verb="flag.undo")
    assert (entry.user, sorted(entry.detail["samples"])) == (mate, sorted([first, second]))


def test_undo_reverts_one_action_after_the_other_until_there_is_none(run: Run, mate: User) -> None:
    for pk in list_sample_ids(run)[:2]:
        bulk.flag_samples(run, [pk], mate)
    assert [undo.undo_label_action(run, mate).sample for _ in range(2)] == list_sample_ids(run)[1::-1]
    with pytest.raises(NotFoundError, match="Nothing to undo in this run. You can undo your own actions"):
        undo.undo_label_action(run, mate)


def test_undo_keeps_a_flag_that_was_changed_since(run: Run, mate: User) -> None:
    first, second, *_ = list_sample_ids(run)
    bulk.flag_samples(run, [first, second], mate)
    builders.flag(first, mate, text="and here is why")
    undone = undo.undo_label_action(run, mate)
    assert (undone.restored_count, undone.unchanged_count) == (1, 1)
    assert set(flags.load_flags([first, second])) == {first}


def test_a_withdrawal_can_be_undone(run: Run, mate: User, owner: User) -> None:
    first = list_sample_ids(run)[0]
    bulk.withdraw_flag(builders.flag(first, mate, text="why"), owner)
    assert read_flag_counts(run) == [0, 0]
    assert undo.undo_label_action(run, owner).sample == first
    assert [flag.rationale for flag in flags.load_flags([first])[first]] == ["why"]
    assert read_flag_counts(run) == [1, 0]


def test_undo_does_not_restore_a_flag_that_its_author_has_withdrawn_since(run: Run, mate: User, owner: User) -> None:
    first = list_sample_ids(run)[0]
    flag = builders.flag(first, mate, text="why")
    bulk.withdraw_flag(flag, owner)
    builders.flag(first, mate, text="why")
    bulk.withdraw_flag(flag, mate)
    undone = undo.undo_label_action(run, owner)
    assert (undone.restored_count, undone.unchanged_count) == (0, 1)
    assert (flags.load_flags([first]), read_flag_counts(run)) == ({}, [0, 0])


def test_an_action_can_be_undone_after_a_later_action_was_undone(run: Run, mate: User, owner: User) -> None:
    first = list_sample_ids(run)[0]
    bulk.flag_samples(run, [first], mate)
    bulk.flag_samples(run, [first], mate, text="looped")
    bulk.withdraw_flag(Label.objects.get(), owner)
    undone = [undo.undo_label_action(run, by) for by in (owner, mate, mate)]
    assert [(item.restored_count, item.unchanged_count) for item in undone] == [(1, 0)] * 3
    assert flags.load_flags([first]) == {}


def test_withdrawing_a_withdrawn_flag_leaves_nothing_to_undo(run: Run, mate: User, owner: User) -> None:
    first = list_sample_ids(run)[0]
    seen = builders.flag(first, mate)
    bulk.withdraw_flag(Label.objects.get(), mate)
    assert bulk.withdraw_flag(seen, owner).pk is None
    with pytest.raises(NotFoundError):
        undo.undo_label_action(run, owner)
    assert flags.load_flags([first]) == {}


def test_actions_of_other_users_other_runs_and_earlier_days_cannot_be_undone(
    run: Run, project: Project, mate: User, owner: User
) -> None:
    bulk.flag_samples(run, list_sample_ids(run)[:1], mate)
    for who, where in ((owner, run), (mate, builders.run(project, "other"))):
        with pytest.raises(NotFoundError):
            undo.undo_label_action(where, who)
    LabelAction.objects.update(created_at=timezone.now() - timedelta(days=2))
    with pytest.raises(NotFoundError):
        undo.undo_label_action(run, mate)
    assert read_flag_counts(run) == [1, 0]


def test_the_samples_of_a_query_are_collected_unless_there_are_too_many_or_more_than_shown(
    run: Run, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = search.find_samples(run, q="score>0")
    assert sorted(bulk.collect_sample_ids(answer, 4)) == sorted(list_sample_ids(run, score__gt=0))
    with pytest.raises(InvalidInputError, match="now matches 4 samples instead of 3"):
        bulk.collect_sample_ids(answer, 3)
    monkeypatch.setattr(bulk, "MAX_SAMPLES", 3)
    with pytest.raises(InvalidInputError, match="matches 4 samples. You can flag at most 3 at once"):
        bulk.collect_sample_ids(answer)


def test_samples_of_another_run_none_and_too_many_are_refused(
    run: Run, project: Project, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = index_two_steps(builders.run(project, "other"))
    with pytest.raises(NotFoundError, match="in grpo"):
        bulk.flag_samples(run, [*list_sample_ids(run), list_sample_ids(other)[0]], mate)
    monkeypatch.setattr(store, "MAX_SAMPLES", 5)
    for wrong in ([], list_sample_ids(run)):
        with pytest.raises(InvalidInputError, match="Select 1 to 5 samples"):
            bulk.flag_samples(run, wrong, mate)
    assert Label.objects.count() == 0


def test_an_action_on_hundreds_of_samples_takes_few_queries(
    project: Project, mate: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    run = builders.run(project, "many")
    index_file(run, lines(*(generation(f"ask {n}", str(n)) for n in range(400))))
    with django_assert_max_num_queries(26):  # 8 of them insert 55 labels each, since SQLite limits parameters
        bulk.flag_samples(run, list_sample_ids(run), mate)
    with django_assert_max_num_queries(24):
        assert undo.undo_label_action(run, mate).restored_count == 400
