"""Answers to items: which are accepted, replaced, undone and kept."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from rollouts import queues
from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.labels import Answer, store_labels, undo_label_action
from rollouts.models import Label, LabelAction, QueueSlot, Run, Sample
from rollouts.queues import SlotTakenError
from tests.rollouts.queues.conftest import YES, answer_next_item, claim_slot, create_queue


def test_required_questions_need_an_answer_or_cannot_judge(run: Run, lead: User, ann: User) -> None:
    queue = create_queue(run, lead)
    item = claim_slot(queue, ann).item
    for answers, message in (
        ({"quality": {"value": 3}}, "Is the answer correct"),
        ({}, "Is the answer correct"),
        ({**YES, "nope": {"value": 1}}, "does not ask"),
        ({"correct": {"value": "maybe"}}, "true or false"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            queues.submit_answers(item, ann, answers)
    assert not Label.objects.exists()
    queues.submit_answers(item, ann, {"review": {"value": "cannot-judge", "rationale": "language"}})
    assert (Label.objects.get().name, Label.objects.get().rationale) == ("review", "language")


def test_an_answer_replaces_cannot_judge_and_keeps_an_own_ok(run: Run, lead: User, ann: User) -> None:
    item = claim_slot(create_queue(run, lead), ann).item
    labels = Label.objects.active().filter(author="ann", sample=item.sample)
    queues.submit_answers(item, ann, {"review": {"value": "cannot-judge"}})
    queues.submit_answers(item, ann, YES)
    assert {label.name: label.value for label in labels} == {"correct": True}
    store_labels(run, ann, [Answer(item.sample, "review", "ok")])
    queues.submit_answers(item, ann, {"correct": {"value": False}})
    assert {label.name: label.value for label in labels.all()} == {"correct": False, "review": "ok"}


def test_a_first_answer_removes_no_answers_of_another_queue(run: Run, lead: User, ann: User) -> None:
    first, second = (create_queue(run, lead, name=name, q="step:1 source:zh n<2") for name in ("first", "second"))
    labels = Label.objects.active().filter(author="ann")
    more = {"quality": {"value": 4}, "correction": {"value": "better"}}
    queues.submit_answers(claim_slot(first, ann).item, ann, {**YES, **more})
    item = claim_slot(second, ann).item
    queues.submit_answers(item, ann, {"correct": {"value": False}})
    rows = labels.filter(sample=item.sample)
    assert {label.name: label.value for label in rows} == {"correct": False, "quality": 4, "correction": "better"}
    queues.submit_answers(claim_slot(first, ann).item, ann, {"review": {"value": "cannot-judge"}})
    item = claim_slot(second, ann).item
    for correct in (True, False):  # as a page sends a first answer again
        queues.submit_answers(item, ann, {"correct": {"value": correct}}, was_shown=False)
    rows = labels.filter(sample=item.sample)
    assert {label.name: label.value for label in rows} == {"correct": False, "review": "cannot-judge"}
    queues.submit_answers(item, ann, YES)
    assert {label.name: label.value for label in rows.all()} == {"correct": True}, "what the page showed is taken back"


def test_cannot_judge_replaces_the_answers_of_another_queue(run: Run, lead: User, ann: User) -> None:
    first, second = (create_queue(run, lead, name=name, q="step:1 source:zh n:0") for name in ("first", "second"))
    queues.submit_answers(claim_slot(first, ann).item, ann, {**YES, "correction": {"value": "better"}})
    queues.submit_answers(claim_slot(second, ann).item, ann, {"review": {"value": "cannot-judge"}})
    stored = {label.name: label.value for label in Label.objects.active()}
    assert stored == {"correction": "better", "review": "cannot-judge"}


def test_an_answer_is_replaced_and_undone(run: Run, lead: User, ann: User) -> None:
    queue = create_queue(run, lead)
    slot = answer_next_item(queue, ann)
    queues.submit_answers(slot.item, ann, {"correct": {"value": False}, "quality": {"value": 5}})
    labels = Label.objects.active().filter(author="ann")
    assert {label.name: label.value for label in labels} == {"correct": False, "quality": 5}
    assert queues.load_progress([queue])[queue.pk].done == 1
    queues.submit_answers(slot.item, ann, YES)
    assert {label.name: label.value for label in labels.all()} == {"correct": True}
    last = answer_next_item(queue, ann)
    assert queues.undo_submission(queue, ann).pk == last.item_id
    assert not labels.filter(sample=last.item.sample).exists()
    assert queues.load_entered_answers(last.item, ann)["correct"]["value"] is True
    assert claim_slot(queue, ann).pk == last.pk
    queues.undo_submission(queue, ann)
    assert not labels.filter(sample=slot.item.sample).exists(), "nothing is left of an answer that was edited"
    with pytest.raises(NotFoundError, match="Nothing to undo"):
        queues.undo_submission(queue, ann)


def test_undo_in_one_queue_leaves_the_answers_of_another(run: Run, lead: User, ann: User) -> None:
    first, second = (create_queue(run, lead, name=name, q="step:1 source:zh n:0") for name in ("first", "second"))
    answer_next_item(first, ann)
    slot = claim_slot(second, ann)
    queues.submit_answers(slot.item, ann, {"correct": {"value": False}})
    store_labels(run, ann, [Answer(slot.item.sample, "quality", 3)])  # undo takes back this one, not the answer
    queues.undo_submission(second, ann)
    assert {label.name: label.value for label in Label.objects.active()} == {"correct": False, "quality": 3}
    assert [queues.load_progress([queue])[queue.pk].done for queue in (first, second)] == [1, 0]


def test_an_item_is_open_again_after_its_answer_was_undone_outside_the_queue(
    run: Run, lead: User, ann: User, bob: User
) -> None:
    queue = create_queue(run, lead, q="step:1 source:zh n:0", questions=["correct"])
    sample = claim_slot(queue, ann).item.sample
    store_labels(run, ann, [Answer(sample, "quality", 3), Answer(sample, "review", "ok")])  # which it does not ask
    slot = answer_next_item(queue, ann)
    queues.submit_answers(slot.item, ann, {"correct": {"value": False}})
    labels = Label.objects.active().filter(name="correct")
    undo_label_action(run, ann)
    assert labels.get().value is True and queues.claim_next(queue, bob) is None
    undo_label_action(run, ann)
    assert not labels.exists() and queues.load_progress([queue])[queue.pk].done == 0
    assert claim_slot(queue, bob).pk == slot.pk


def test_the_same_answers_are_saved_again_on_another_day(run: Run, lead: User, ann: User) -> None:
    slot = answer_next_item(create_queue(run, lead), ann)
    LabelAction.objects.update(created_at=timezone.now() - timedelta(days=2))
    queues.submit_answers(slot.item, ann, YES)
    assert not LabelAction.objects.exists() and QueueSlot.objects.get(pk=slot.pk).done_at


def test_refused_answers_are_kept_and_the_error_does_not_name_the_run(run: Run, lead: User, ann: User) -> None:
    queue = create_queue(run, lead, is_blind=True)
    item = claim_slot(queue, ann).item
    entered = {"quality": {"value": 3}}
    with pytest.raises(InvalidInputError, match="Is the answer correct"):
        queues.submit_answers(item, ann, entered)
    assert queues.load_entered_answers(item, ann) == entered
    Sample.objects.filter(pk=item.sample).delete()
    with pytest.raises(NotFoundError, match="no longer available") as caught:
        queues.submit_answers(item, ann, YES)
    assert run.name not in str(caught.value)


def test_the_order_of_a_group_becomes_a_rank_for_each_response(run: Run, lead: User, ann: User) -> None:
    queue = create_queue(run, lead, unit="group", q="step:1", count=1, selection="worst")
    item = claim_slot(queue, ann).item
    a, b, c, d = (sample.pk for sample in queues.list_group_samples(item))
    with pytest.raises(InvalidInputError, match="each response"):
        queues.store_order(item, ann, [[a], [b, b], [c]])
    queues.store_order(item, ann, [[c], [a, b], [d]], rationale="shortest")
    ranks = dict(Label.objects.filter(name="rank").values_list("sample", "number"))
    assert ranks == {c: 1, a: 2, b: 2, d: 4}
    assert queues.claim_next(queue, ann) is None
    stored = {"order": {"value": [[c], sorted([a, b]), [d]], "rationale": "shortest"}}
    assert queues.load_entered_answers(item, ann) == stored
    assert queues.undo_submission(queue, ann) == item and queues.load_entered_answers(item, ann) == stored


def test_a_draft_of_a_group_is_stored_without_invalid_characters(run: Run, lead: User, ann: User) -> None:
    item = claim_slot(create_queue(run, lead, unit="group"), ann).item
    queues.save_order_draft(item, ann, [[sample.pk for sample in queues.list_group_samples(item)]], "\0 \ud800")
    assert queues.load_entered_answers(item, ann)["order"]["rationale"] == "\ufffd \ufffd"
    pairs = claim_slot(create_queue(run, lead, name="pairs", unit="group", pairs_per_group=1), ann).item
    queues.save_pairs_draft(pairs, ann, {"\0": "left", "1-2": "\ud800"})
    assert queues.load_entered_answers(pairs, ann) == {"pairs": {"value": {"\ufffd": "left", "1-2": "\ufffd"}}}


def test_an_order_that_was_refused_because_it_came_too_late_is_kept(run: Run, lead: User, ann: User, bob: User) -> None:
    queue = create_queue(run, lead, unit="group", q="step:1", count=1, selection="worst")
    item = claim_slot(queue, ann).item
    a, b, c, d = (sample.pk for sample in queues.list_group_samples(item))
    queues.save_order_draft(item, ann, [[d], ["strange"], [c]])
    assert queues.load_entered_answers(item, ann)["order"]["value"] == [[d], [c]]
    QueueSlot.objects.update(reserved_until=timezone.now() - timedelta(minutes=1))
    assert claim_slot(queue, bob).item == item
    with pytest.raises(SlotTakenError, match="bob"):
        queues.store_order(item, ann, [[d], [c], [a, b]], rationale="clear")
    assert queues.load_entered_answers(item, ann) == {"order": {"value": [[d], [c], [a, b]], "rationale": "clear"}}
    queues.skip_item(item, bob)
    assert claim_slot(queue, ann).item == item
    queues.store_order(item, ann, [[d], [c], [a, b]])


def test_an_item_that_is_answered_without_being_opened_has_no_negative_duration(
    run: Run, lead: User, ann: User
) -> None:
    queue = create_queue(run, lead)
    queues.submit_answers(queue.items.first(), ann, YES)
    slot = queue.slots.get(user=ann)
    assert 0 <= slot.seconds < 60 and slot.done_at >= slot.opened_at
