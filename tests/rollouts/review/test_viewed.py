"""Samples that a user has viewed or approved, and the query terms that depend on the user."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.flags import bulk
from rollouts.indexing.indexer import index_dump, reindex_run
from rollouts.models import Label, LabelAction, Project, Run, Sample, ViewedSample
from rollouts.query import completion
from rollouts.query.search import find_samples
from rollouts.review import quick_lists, viewed
from tests.rollouts.flags.test_bulk import index_two_steps, list_sample_ids
from tests.support import builders


@pytest.fixture
def run(project: Project) -> Run:
    return index_two_steps(builders.run(project))


def search_samples(run: Run, q: str, by: User) -> set[str]:
    return set(find_samples(run, q=q, reader=by.pk).samples.values_list("pk", flat=True))


def test_viewed_samples_are_seen_only_for_that_user(run: Run, mate: User, owner: User) -> None:
    every = list_sample_ids(run)
    assert viewed.mark_viewed(run, [*every[:2], every[0]], mate) == 2
    assert search_samples(run, "is:seen", mate) == set(every[:2])
    assert search_samples(run, "is:unseen", mate) == search_samples(run, "-is:seen", mate) == set(every[2:])
    assert search_samples(run, "is:seen", owner) == set()
    assert search_samples(run, "is:unseen score>=0.5", owner) == {*every[1:3], *every[4:]}


def test_viewing_again_changes_nothing_and_unknown_ids_are_left_out(run: Run, project: Project, mate: User) -> None:
    other = index_two_steps(builders.run(project, "other"))
    every = list_sample_ids(run)
    viewed.approve_sample(run, every[0], mate)
    before = viewed.load_viewer_state(run, mate.pk)
    assert viewed.mark_viewed(run, [every[0], list_sample_ids(other)[0], "nope", "a\x00b", "\ud800"], mate) == 1
    assert (viewed.load_viewer_state(run, mate.pk), ViewedSample.objects.count()) == (before, 1)
    assert search_samples(run, "is:fine", mate) == {every[0]}


def test_too_many_samples_in_one_request_are_refused(run: Run, mate: User) -> None:
    with pytest.raises(InvalidInputError, match="mark at most 500 samples at once, not 501"):
        viewed.mark_viewed(run, [f"a{n}" for n in range(501)], mate)


def test_viewed_marks_survive_a_re_index(run: Run, mate: User) -> None:
    expected = list_sample_ids(run)[0]
    viewed.mark_viewed(run, [expected], mate)
    reindex_run(run)
    for dump in run.dumps.all():
        index_dump(dump.pk)
    assert search_samples(run, "is:seen", mate) == {expected}


def test_an_approved_sample_is_seen_and_approving_it_again_changes_nothing(run: Run, mate: User) -> None:
    expected = list_sample_ids(run)[1]
    viewed.mark_viewed(run, [expected], mate)
    version = Run.objects.get().version
    assert viewed.approve_sample(run, expected, mate).pk
    changed = Run.objects.get().version
    assert changed > version, "pages that everybody sees are outdated"
    assert viewed.approve_sample(run, expected, mate).pk is None
    assert Run.objects.get().version == changed
    assert search_samples(run, "is:fine", mate) == search_samples(run, "is:seen", mate) == {expected}


def test_an_ok_withdraws_the_users_bad_flags_and_a_bad_flag_the_users_ok(run: Run, mate: User, owner: User) -> None:
    first = list_sample_ids(run)[0]
    builders.flag(first, owner)
    for label, reason in (("bad", "truncated"), ("bad", "other"), ("unsure", "")):
        builders.flag(first, mate, label=label, reason=reason)
    viewed.approve_sample(run, first, mate)
    active = Label.objects.active().filter(sample=first).values_list("author", "name", "value")
    assert set(active) == {("olga", "flag", "bad"), ("mina", "flag", "unsure"), ("mina", "review", "ok")}
    builders.flag(first, mate, reason="other")
    assert not Label.objects.approvals().active().exists()
    viewed.undo_review_action(run, mate)  # of the OK: its label has changed since, the flag without a change has not
    assert set(active.filter(author="mina")) == {
        ("mina", "flag", "unsure"), ("mina", "flag.other", "bad"), ("mina", "flag.truncated", "bad"),
    }  # fmt: skip


@pytest.mark.parametrize("bad", ["nope", "", "a\x00", "\ud800"])
def test_an_unknown_sample_cannot_be_approved(run: Run, mate: User, bad: str) -> None:
    with pytest.raises(NotFoundError, match=f"Sample {bad} not found in grpo"):
        viewed.approve_sample(run, bad, mate)


def test_undo_reverts_the_newest_flag_or_approval(run: Run, mate: User, owner: User) -> None:
    first, second, third = list_sample_ids(run)[:3]
    bulk.flag_samples(run, [first], mate, reason="truncated")
    viewed.approve_sample(run, second, mate)
    bulk.flag_samples(run, [third], mate, reason="other")
    viewed.approve_sample(run, second, owner)  # an approval of another user
    assert viewed.undo_review_action(run, mate).sample == third
    assert (viewed.undo_review_action(run, mate).description, search_samples(run, "is:seen", mate)) == (
        "“OK” on 1 sample",
        set(),
    )
    assert viewed.undo_review_action(run, mate).sample == first
    assert not Label.objects.active().filter(user=mate).exists()
    with pytest.raises(NotFoundError, match="Nothing to undo in this run"):
        viewed.undo_review_action(run, mate)
    assert search_samples(run, "is:fine", owner) == {second}


def test_only_approvals_of_the_last_day_can_be_undone(run: Run, mate: User) -> None:
    viewed.approve_sample(run, list_sample_ids(run)[0], mate)
    LabelAction.objects.update(created_at=timezone.now() - timedelta(days=2))
    with pytest.raises(NotFoundError):
        viewed.undo_review_action(run, mate)


def test_labels_that_a_user_imported_for_others_are_no_decisions_of_that_user(run: Run, mate: User) -> None:
    first, second = list_sample_ids(run)[:2]
    builders.flag(first, mate)
    viewed.approve_sample(run, second, mate)
    assert quick_lists.load_decisions(run, mate).keys() == {first, second}
    Label.objects.update(author="someone else")
    ViewedSample.objects.all().delete()
    assert quick_lists.load_decisions(run, mate) == {}
    assert viewed.load_viewed_marks(Sample.objects.select_related("step"), mate.pk) == {}
    assert search_samples(run, "is:fine", mate) == set()


def test_flagged_by_others_depends_on_the_user(run: Run, mate: User, owner: User) -> None:
    first, second = list_sample_ids(run)[:2]
    builders.flag(first, mate)
    bulk.withdraw_flag(builders.flag(second, mate), mate)
    assert search_samples(run, "is:flagged-by-others", owner) == {first}
    assert search_samples(run, "is:flagged-by-others", mate) == set()


@pytest.mark.parametrize("term", ["is:seen", "is:unseen", "is:fine", "is:flagged-by-others"])
def test_terms_about_the_user_are_refused_without_a_user(run: Run, term: str) -> None:
    with pytest.raises(InvalidInputError, match=f"`{term}` needs a signed-in user"):
        find_samples(run, q=f"score>0 {term}")


def test_terms_about_the_user_are_completed_with_counts_and_only_for_a_user(run: Run, mate: User) -> None:
    viewed.mark_viewed(run, list_sample_ids(run)[:2], mate)
    requested = completion.complete_query(run, "is:", step=1, reader=mate.pk).choices
    counts = {
        choice.text: choice.count for choice in completion.complete_query(run, "is:uns", step=1, reader=mate.pk).choices
    }
    assert counts == {"is:unseen": 1}
    assert "is:seen" in {item.text for item in requested}
    assert not completion.complete_query(run, "is:uns", step=1).choices
    assert [choice.text for choice in completion.complete_query(run, "uns", step=1, reader=mate.pk).choices] == [
        "is:unseen"
    ]
    assert not completion.complete_query(run, "uns", step=1).choices
