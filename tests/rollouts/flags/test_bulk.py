"""Flagging many samples in one act, and undoing it."""

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
    return filled(builders.run(project))


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    received: list[Any] = []
    monkeypatch.setattr(store, "notify_run_changed", lambda run, **what: received.append((run.uid, what)))
    return received


def filled(run: Run) -> Run:
    """Two steps of three samples."""
    for step in (1, 2):
        index_file(run, lines(*(generation(f"ask {n}", f"{n} of {step}", n / 2, step) for n in range(3))), step)
    return run


def samples(run: Run, **which: Any) -> list[str]:
    result = Sample.objects.filter(step__run=run, **which).order_by("step__step", "ordinal")
    return list(result.values_list("pk", flat=True))


def counted(run: Run) -> list[int]:
    return list(run.steps.order_by("step").values_list("flags", flat=True))


def test_many_are_flagged_in_one_act_counted_per_step_and_rung_once(run: Run, mate: User, rings: list[Any]) -> None:
    act = bulk.flag_samples(run, samples(run), mate, reason="truncated", text="all cut")
    assert (Label.objects.filter(name="flag.truncated", rationale="all cut", user=mate).count(), counted(run)) == (
        6,
        [3, 3],
    )
    assert act.description == "“truncated” (bad) on 6 samples"
    assert rings == [(run.uid, {"sparse": True})]


def test_an_act_on_one_step_rings_for_that_step(run: Run, mate: User, rings: list[Any]) -> None:
    bulk.flag_samples(run, samples(run, step__step=2), mate)
    assert rings == [(run.uid, {"split": "train", "step": 2, "sparse": True})]


def test_flagging_again_changes_nothing_and_leaves_nothing_to_undo(run: Run, mate: User, rings: list[Any]) -> None:
    bulk.flag_samples(run, samples(run), mate)
    assert bulk.flag_samples(run, samples(run), mate).pk is None
    assert (Label.objects.count(), LabelAction.objects.count(), len(rings)) == (6, 1, 1)


def test_undo_withdraws_what_was_new_and_puts_back_what_was_changed(run: Run, mate: User) -> None:
    first, second, *_ = samples(run)
    builders.flag(first, mate, reason="other", label="unsure", text="hm")
    bulk.flag_samples(run, [first, second], mate, reason="other", text="sure now")
    assert undo.undo_label_action(run, mate) == undo.UndoResult(
        "“other” (bad) on 2 samples", 2, 0, "", frozenset({"flag.other"})
    )
    assert [(flag.value, flag.rationale) for flag in flags.load_flags([first, second])[first]] == [("unsure", "hm")]
    assert flags.load_flags([second]) == {}
    assert len(flags.load_flags([second], withdrawn=True)[second]) == 1, "withdrawn, never deleted"
    assert counted(run) == [1, 0]
    entry = AuditEntry.objects.get(verb="flag.undo")
    assert (entry.user, sorted(entry.detail["samples"])) == (mate, sorted([first, second]))


def test_undo_goes_back_act_by_act_and_then_says_that_there_is_nothing(run: Run, mate: User) -> None:
    for pk in samples(run)[:2]:
        bulk.flag_samples(run, [pk], mate)
    assert [undo.undo_label_action(run, mate).sample for _ in range(2)] == samples(run)[1::-1]
    with pytest.raises(NotFoundError, match="Nothing to undo in this run. You can undo your own actions"):
        undo.undo_label_action(run, mate)


def test_what_was_changed_since_stays(run: Run, mate: User) -> None:
    first, second, *_ = samples(run)
    bulk.flag_samples(run, [first, second], mate)
    builders.flag(first, mate, text="and here is why")
    undone = undo.undo_label_action(run, mate)
    assert (undone.restored_count, undone.unchanged_count) == (1, 1)
    assert set(flags.load_flags([first, second])) == {first}


def test_a_withdrawal_can_be_undone(run: Run, mate: User, owner: User) -> None:
    first = samples(run)[0]
    bulk.withdraw_flag(builders.flag(first, mate, text="why"), owner)
    assert counted(run) == [0, 0]
    assert undo.undo_label_action(run, owner).sample == first
    assert [flag.rationale for flag in flags.load_flags([first])[first]] == ["why"]
    assert counted(run) == [1, 0]


def test_a_flag_that_its_owner_raised_and_withdrew_since_stays_withdrawn(run: Run, mate: User, owner: User) -> None:
    first = samples(run)[0]
    flag = builders.flag(first, mate, text="why")
    bulk.withdraw_flag(flag, owner)
    builders.flag(first, mate, text="why")
    bulk.withdraw_flag(flag, mate)
    undone = undo.undo_label_action(run, owner)
    assert (undone.restored_count, undone.unchanged_count) == (0, 1)
    assert (flags.load_flags([first]), counted(run)) == ({}, [0, 0])


def test_an_act_is_undone_after_the_act_that_came_upon_it_was_undone(run: Run, mate: User, owner: User) -> None:
    first = samples(run)[0]
    bulk.flag_samples(run, [first], mate)
    bulk.flag_samples(run, [first], mate, text="looped")
    bulk.withdraw_flag(Label.objects.get(), owner)
    undone = [undo.undo_label_action(run, by) for by in (owner, mate, mate)]
    assert [(item.restored_count, item.unchanged_count) for item in undone] == [(1, 0)] * 3
    assert flags.load_flags([first]) == {}


def test_a_withdrawal_that_came_too_late_is_nothing_to_undo(run: Run, mate: User, owner: User) -> None:
    first = samples(run)[0]
    seen = builders.flag(first, mate)
    bulk.withdraw_flag(Label.objects.get(), mate)
    assert bulk.withdraw_flag(seen, owner).pk is None
    with pytest.raises(NotFoundError):
        undo.undo_label_action(run, owner)
    assert flags.load_flags([first]) == {}


def test_nobody_undoes_what_another_did_nor_what_was_done_in_another_run_or_long_ago(
    run: Run, project: Project, mate: User, owner: User
) -> None:
    bulk.flag_samples(run, samples(run)[:1], mate)
    for who, where in ((owner, run), (mate, builders.run(project, "other"))):
        with pytest.raises(NotFoundError):
            undo.undo_label_action(where, who)
    LabelAction.objects.update(created_at=timezone.now() - timedelta(days=2))
    with pytest.raises(NotFoundError):
        undo.undo_label_action(run, mate)
    assert counted(run) == [1, 0]


def test_all_that_a_query_finds_is_marked_unless_it_is_more_than_was_seen_or_than_one_act_holds(
    run: Run, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = search.find_samples(run, q="score>0")
    assert sorted(bulk.collect_sample_ids(answer, 4)) == sorted(samples(run, score__gt=0))
    with pytest.raises(InvalidInputError, match="now matches 4 samples instead of 3"):
        bulk.collect_sample_ids(answer, 3)
    monkeypatch.setattr(bulk, "MAX_SAMPLES", 3)
    with pytest.raises(InvalidInputError, match="matches 4 samples. You can flag at most 3 at once"):
        bulk.collect_sample_ids(answer)


def test_samples_of_another_run_none_and_too_many_are_refused(
    run: Run, project: Project, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = filled(builders.run(project, "other"))
    with pytest.raises(NotFoundError, match="in grpo"):
        bulk.flag_samples(run, [*samples(run), samples(other)[0]], mate)
    monkeypatch.setattr(store, "MAX_SAMPLES", 5)
    for wrong in ([], samples(run)):
        with pytest.raises(InvalidInputError, match="Select 1 to 5 samples"):
            bulk.flag_samples(run, wrong, mate)
    assert Label.objects.count() == 0


def test_an_act_on_hundreds_takes_as_many_queries_as_one_on_two(
    project: Project, mate: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    run = builders.run(project, "many")
    index_file(run, lines(*(generation(f"ask {n}", str(n)) for n in range(400))))
    with django_assert_max_num_queries(26):  # 8 of them insert 55 labels each, since SQLite limits parameters
        bulk.flag_samples(run, samples(run), mate)
    with django_assert_max_num_queries(24):
        assert undo.undo_label_action(run, mate).restored_count == 400
