from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts import labels
from rollouts.errors import InvalidInputError
from rollouts.flags import bulk, flags
from rollouts.indexing.indexer import index_dump, reindex_run
from rollouts.labels import store
from rollouts.models import AuditEntry, Dump, Label, Project, Run, Sample
from tests.rollouts.query.test_search import ROWS, push
from tests.support import builders


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    push(run, ROWS)
    return run


@pytest.fixture
def notifications(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    received: list[Any] = []
    monkeypatch.setattr(store, "notify_run_changed", lambda run, **what: received.append((run.uid, what)))
    return received


def get_sample_id(run: Run, ordinal: int = 0) -> str:
    return Sample.objects.get(step__run=run, ordinal=ordinal).id


def read_flag_count(run: Run) -> int:
    return run.steps.get().flags


def test_a_flag_is_stored_counted_and_notified_once(run: Run, mate: User, notifications: list[Any]) -> None:
    first = builders.flag(get_sample_id(run), mate, reason="reward-hack", text="no work shown")
    again = builders.flag(get_sample_id(run), mate, reason="reward-hack", text="no work shown")
    assert first.pk == again.pk and (first.value, first.run_id) == ("bad", run.pk)
    assert read_flag_count(run) == 1
    assert notifications == [(run.uid, {"split": "train", "step": 1, "sparse": True})]


def test_flagging_again_replaces_value_and_text_and_restores_a_withdrawn_flag(run: Run, mate: User) -> None:
    flag = builders.flag(get_sample_id(run), mate, text="hm")
    bulk.withdraw_flag(flag, mate)
    assert read_flag_count(run) == 0
    flag = builders.flag(get_sample_id(run), mate, label="unsure", text="look again")
    assert (flag.value, flag.rationale, flag.withdrawn_at) == ("unsure", "look again", None)
    assert (Label.objects.count(), read_flag_count(run)) == (1, 1)


def test_a_step_counts_flagged_samples_not_flags(run: Run, mate: User, owner: User) -> None:
    builders.flag(get_sample_id(run), mate)
    builders.flag(get_sample_id(run), mate, reason="other")
    builders.flag(get_sample_id(run), owner)
    builders.flag(get_sample_id(run, 1), owner)
    assert read_flag_count(run) == 2


def test_a_withdrawn_flag_stays_readable_and_is_in_the_audit_log(
    run: Run, mate: User, owner: User, notifications: list[Any]
) -> None:
    flag = builders.flag(get_sample_id(run), mate, reason="other", text="why")
    bulk.withdraw_flag(flag, owner)
    bulk.withdraw_flag(flag, owner)
    assert flags.load_flags([get_sample_id(run)]) == {}
    assert [item.rationale for item in flags.load_flags([get_sample_id(run)], withdrawn=True)[get_sample_id(run)]] == [
        "why"
    ]
    entry = AuditEntry.objects.get(verb="flag.withdraw")
    assert (entry.user, entry.subject, entry.detail["flagged_by"]) == (owner, flag.sample, "mina")
    assert len(notifications) == 2


def test_flags_are_loaded_per_sample_with_their_authors(run: Run, mate: User, owner: User) -> None:
    builders.flag(get_sample_id(run), mate, reason="other")
    builders.flag(get_sample_id(run), owner, label="good")
    builders.flag(get_sample_id(run, 1), owner)
    result = flags.load_flags([get_sample_id(run), get_sample_id(run, 2)])
    assert [(flag.user.username, flag.value, flag.reason) for flag in result[get_sample_id(run)]] == [
        ("mina", "bad", "other"),
        ("olga", "good", ""),
    ]
    assert set(result) == {get_sample_id(run)}


def test_flags_survive_a_reindex(run: Run, mate: User) -> None:
    marked = get_sample_id(run, 2)
    builders.flag(marked, mate)
    reindex_run(run)
    index_dump(Dump.objects.get().pk)
    assert set(flags.load_flags([marked])) == {marked}
    assert Sample.objects.filter(pk=marked, visible=True).exists()
    assert read_flag_count(run) == 1


def test_a_flag_follows_its_sample_into_a_superseding_dump_and_the_others_are_no_longer_counted(
    run: Run, mate: User
) -> None:
    builders.flag(get_sample_id(run, 0), mate)
    builders.flag(get_sample_id(run, 1), mate)
    push(run, ROWS[:1])
    assert read_flag_count(run) == 1
    assert Label.objects.filter(withdrawn_at=None).count() == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"label": "ugly"}, "`label` must be one of bad, good, unsure"),
        ({"reason": "bored"}, "`reason` must be one of reward-hack, wrong-grader"),
        ({"text": "x" * 10_001}, "at most 10,000 characters"),
        ({"text": "a\x00"}, "NUL or an unpaired surrogate"),
        ({"text": None}, "must be text"),
        ({"text": "\ud800"}, "NUL or an unpaired surrogate"),
    ],
)
def test_an_invalid_flag_is_refused(run: Run, mate: User, wrong: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        builders.flag(get_sample_id(run), mate, **wrong)
    assert Label.objects.count() == 0


def test_only_its_author_and_maintainers_can_withdraw_a_flag(
    run: Run, project: Project, owner: User, mate: User, stranger: User
) -> None:
    viewer = builders.member(project, "vera", "viewer")
    other = builders.member(project, "otto", "annotator")
    flag = builders.flag(get_sample_id(run), mate)
    allowed = [labels.can_withdraw_label(user, flag) for user in (owner, mate, other, viewer, stranger)]
    assert allowed == [True, True, False, False, False]
