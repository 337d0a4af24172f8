"""Two people never hold the same slot, and nothing that they answer is lost or counted twice."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.db import connections
from django.utils import timezone

from rollouts import queues
from rollouts.errors import ConflictError, NotFoundError
from rollouts.models import Label, Project, Queue, QueueDraft, QueueSlot, Run
from rollouts.queues import QueueClosedError, SlotTakenError
from tests.rollouts.queues.conftest import YES, answer_next_item, claim_slot, create_queue
from tests.rollouts.support.query_rows import push
from tests.support import builders


def test_two_people_get_different_items_and_each_gets_their_own_again(
    run: Run, lead: User, ann: User, bob: User
) -> None:
    queue = create_queue(run, lead)
    first, second = claim_slot(queue, ann), claim_slot(queue, bob)
    assert [first.position, second.position] == [0, 1]
    assert claim_slot(queue, ann).pk == first.pk
    queues.submit_answers(first.item, ann, YES)
    assert claim_slot(queue, ann).position == 2


def test_an_item_gets_as_many_answers_as_reviewers_and_of_different_people(
    run: Run, lead: User, ann: User, bob: User
) -> None:
    queue = create_queue(run, lead, q="step:1 source:zh", num_reviewers_per_item=2)
    cat = builders.member(run.project, "cat", "annotator")
    for user in (ann, bob):
        assert [answer_next_item(queue, user).position for _ in range(4)] == [0, 1, 2, 3]
        assert queues.claim_next(queue, user) is None
    assert queues.claim_next(queue, cat) is None
    assert Counter(QueueSlot.objects.values_list("user", flat=True)) == {ann.pk: 4, bob.pk: 4}
    assert Label.objects.filter(name="correct", value=True).count() == 8
    with pytest.raises(SlotTakenError, match="ann, bob"):
        queues.claim_item(queue.items.get(position=0), cat)


@pytest.mark.parametrize(("max_exact", "reviewers"), [(500, 1), (500, 2), (-1, 1), (-1, 2)])
def test_the_number_of_remaining_items_is_the_same_in_small_and_large_queues(
    run: Run,
    lead: User,
    ann: User,
    bob: User,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    max_exact: int,
    reviewers: int,
) -> None:
    monkeypatch.setattr(queues.progress, "MAX_EXACT_LEFT", max_exact)  # -1: every queue is large
    queue = create_queue(run, lead, num_reviewers_per_item=reviewers)
    count = queue.items.count()

    def count_left(user: User) -> int:
        cache.clear()  # what others did shows up a moment later
        return queues.load_own_progress(queue, user).left

    request.addfinalizer(cache.clear)
    assert count_left(ann) == count_left(bob) == count
    first = claim_slot(queue, ann)
    assert count_left(ann) == count
    assert count_left(bob) == count - (reviewers == 1)  # ann holds the only slot
    queues.submit_answers(first.item, ann, YES)
    assert count_left(ann) == count - 1
    queues.skip_item(claim_slot(queue, ann).item, ann)
    assert count_left(ann) == count - 2
    answer_next_item(queue, bob)
    assert count_left(bob) == count - 1 - (reviewers == 1)
    if max_exact < 0:  # one's own answers count at once
        before = queues.load_own_progress(queue, ann).left
        answer_next_item(queue, ann)
        assert queues.load_own_progress(queue, ann).left == before - 1


def test_an_expired_slot_goes_to_another_user_and_its_draft_stays(run: Run, lead: User, ann: User, bob: User) -> None:
    queue = create_queue(run, lead, q="step:1 source:zh n:0")
    slot = claim_slot(queue, ann)
    queues.save_draft(slot.item, ann, {"quality": {"value": 2}, "unknown": {"value": 1}})
    assert queues.claim_next(queue, bob) is None
    QueueSlot.objects.update(reserved_until=timezone.now() - timedelta(seconds=1))
    assert claim_slot(queue, bob).pk == slot.pk
    with pytest.raises(SlotTakenError, match="all its reviewers: bob"):
        queues.submit_answers(slot.item, ann, {**YES, "quality": {"value": 4}})
    assert queues.load_entered_answers(slot.item, ann)["quality"] == {"value": 4}
    assert not Label.objects.filter(author="ann").exists()
    queues.submit_answers(slot.item, bob, YES)
    assert Label.objects.get(name="correct").author == "bob"


def test_a_late_answer_counts_if_nobody_has_taken_the_slot(run: Run, lead: User, ann: User) -> None:
    queue = create_queue(run, lead)
    slot = claim_slot(queue, ann)
    QueueSlot.objects.update(reserved_until=timezone.now() - timedelta(hours=1))
    queues.submit_answers(slot.item, ann, YES)
    assert QueueSlot.objects.get(pk=slot.pk).done_at


def test_a_skipped_item_goes_to_others_and_returns_only_when_it_is_opened(
    run: Run, lead: User, ann: User, bob: User
) -> None:
    queue = create_queue(run, lead, q="step:1 source:zh n<2")
    slot = claim_slot(queue, ann)
    queues.skip_item(slot.item, ann)
    assert claim_slot(queue, ann).position == 1
    assert claim_slot(queue, bob).position == 0
    assert queues.load_own_progress(queue, ann).skipped == 1
    QueueSlot.objects.update(user=None, reserved_until=None)
    assert queues.claim_item(slot.item, ann).position == 0
    assert queues.load_own_progress(queue, ann).skipped == 0


def test_a_user_who_holds_an_item_does_not_get_its_other_slot(run: Run, lead: User, ann: User) -> None:
    queue = create_queue(run, lead, q="step:1", num_reviewers_per_item=2)
    slots = [claim_slot(queue, ann)]
    while slot := queues.claim_next(queue, ann, after=slots[-1].position):
        slots.append(slot)
    assert [slot.position for slot in slots] == list(range(8))


def test_an_item_whose_answers_are_on_their_way_is_not_offered_again(run: Run, lead: User, ann: User) -> None:
    queue = create_queue(run, lead, q="step:1")
    last = queue.items.latest("position")
    for item in queue.items.exclude(pk__in=[last.pk, queue.items.get(position=0).pk]):
        queues.submit_answers(item, lead, YES)
    queues.claim_item(last, ann)
    before = queues.claim_next(queue, ann, after=last.position)
    assert before and before.position == 0
    assert queues.claim_next(queue, ann, after=0, left=[last.pk]) is None
    held = queues.claim_next(queue, ann, after=0)
    assert held and held.item == last, "without it the page would show it a second time"


def test_an_answered_item_is_not_skipped(run: Run, lead: User, ann: User) -> None:
    queue = create_queue(run, lead)
    item = claim_slot(queue, ann).item
    queues.submit_answers(item, ann, YES)
    with pytest.raises(ConflictError, match="You have answered this item"):
        queues.skip_item(item, ann)


def test_a_closed_queue_takes_no_answers(run: Run, lead: User, ann: User) -> None:
    queue = create_queue(run, lead)
    slot = claim_slot(queue, ann)
    queues.close_queue(queue, lead)
    closed = Queue.objects.get()
    for call in (lambda: queues.claim_next(closed, ann), lambda: queues.undo_submission(queue, ann)):
        with pytest.raises((QueueClosedError, NotFoundError)):
            call()
    item = closed.items.select_related("queue", "run__project").get(pk=slot.item_id)
    with pytest.raises(QueueClosedError, match="is closed"):
        queues.submit_answers(item, ann, YES)
    assert queues.load_entered_answers(item, ann) == YES


def test_items_of_a_run_in_the_trash_are_not_handed_out(run: Run, lead: User, ann: User, bob: User) -> None:
    other = builders.run(run.project, "other")
    push(other, [{"response": "x", "score": 0.5}], step=1)
    queue = create_queue(run, lead, runs=[run, other], q="step:1", grows=True)
    Run.objects.update(outcome="finished", seen_at=timezone.now() - timedelta(hours=1))
    queues.extend_queue(queue)
    held = claim_slot(queue, ann)
    assert held.item.run == run and queues.load_own_progress(queue, bob).left == 8
    queues.skip_item(claim_slot(queue, bob).item, bob)
    Run.objects.filter(pk=run.pk).update(deleted_at=timezone.now())
    assert claim_slot(queue, ann).item.run == other and not queues.find_skipped(queue, bob).exists()
    assert queues.load_own_progress(queue, ann).left == 1
    push(run, [{"response": "y", "score": 0.5}], step=1, attempt="later")
    assert queues.extend_queue(queue) == 0
    answer_next_item(queue, ann)
    assert queues.claim_next(queue, bob) is None and not queues.has_items_to_answer(bob, Project.objects.all())
    Run.objects.filter(pk=run.pk).update(deleted_at=None)
    assert claim_slot(queue, ann).pk == held.pk


def test_progress_of_the_queue_of_one_user_and_of_each_reviewer(run: Run, lead: User, ann: User, bob: User) -> None:
    queue = create_queue(run, lead, q="source:zh", num_reviewers_per_item=2, reviewers=["ann", "bob"])
    for _ in range(10):
        answer_next_item(queue, ann)
    answer_next_item(queue, bob)
    claim_slot(queue, bob)
    progress = queues.load_progress([queue])[queue.pk]
    assert (progress.items, progress.slots, progress.done, progress.complete, progress.begun, progress.held) == (
        12, 24, 11, 1, 9, 1,
    )  # fmt: skip
    own = queues.load_own_progress(queue, ann)
    assert (own.done, own.left, own.pace, own.seconds_left) == (10, 2, 4.0, 8.0)
    assert queues.load_own_progress(queue, bob).pace is None
    people = {person.user.username: (person.done, person.held) for person in queues.load_people_progress(queue)}
    assert people == {"ann": (10, 0), "bob": (1, 1)}
    assert [row.pk for row in queues.list_open_queues(ann, type(run.project).objects.all())] == [queue.pk]


def test_the_speed_of_people_and_the_forecast_have_the_same_basis(run: Run, lead: User, ann: User, bob: User) -> None:
    queue = create_queue(run, lead)
    slots = [answer_next_item(queue, user) for user in (ann, ann, ann, bob)]

    def measure_speeds() -> tuple[dict[str, float], float]:
        now, progress = timezone.now(), queues.load_progress([queue])[queue.pk]
        ends_at = queues.forecast_end(queue, progress, now)
        assert ends_at
        speeds = {row.user.username: round(row.per_day, 2) for row in queues.load_people_progress(queue)}
        return speeds, round((ends_at - now) / timedelta(days=1), 2)

    assert measure_speeds() == ({"ann": 3, "bob": 1}, 5)  # 20 of 24 are left, and the first day is not over
    QueueSlot.objects.filter(pk=slots[0].pk).update(done_at=timezone.now() - timedelta(days=2))
    assert measure_speeds() == ({"ann": 1.5, "bob": 0.5}, 10)
    QueueSlot.objects.filter(pk=slots[0].pk).update(done_at=timezone.now() - timedelta(days=9))
    assert measure_speeds() == ({"ann": 2, "bob": 1}, 6.67)


@pytest.mark.django_db(transaction=True)
def test_concurrent_reviewers_share_the_items(run: Run, lead: User) -> None:
    queue = create_queue(run, lead, num_reviewers_per_item=2)
    people = [builders.member(run.project, f"p{n}", "annotator") for n in range(4)]
    errors: list[Exception] = []

    def answer_all_items(user: User) -> None:
        try:
            while slot := queues.claim_next(queue, user):
                queues.submit_answers(slot.item, user, YES)
        except Exception as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=answer_all_items, args=(user,)) for user in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert not QueueSlot.objects.filter(done_at=None).exists()
    assert Label.objects.filter(name="correct").count() == QueueSlot.objects.count() == 48
    assert not QueueDraft.objects.exists()
