"""How the items of a queue are drawn, and which settings are refused."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from rollouts import queues
from rollouts.errors import ConflictError, InvalidInputError, StorageUnavailableError
from rollouts.labels import Answer, store_labels
from rollouts.models import Queue, QueueItem, QueueSlot, Run, Sample, Step
from rollouts.queues import create as create_module
from rollouts.queues import draw as draw_module
from rollouts.queues import growth
from tests.rollouts.queues.conftest import create_queue
from tests.rollouts.support.query_rows import push
from tests.support import builders


def list_items(queue: Queue) -> list[QueueItem]:
    return list(queue.items.select_related("step").order_by("position"))


def get_scores(queue: Queue) -> list[float | None]:
    scores = dict(Sample.objects.values_list("pk", "score"))
    return [scores[item.sample] for item in list_items(queue)]


def set_last_seen(run: Run, hours: int, **changes: object) -> None:
    """Sets the time of the newest data to some hours ago."""
    Run.objects.filter(pk=run.pk).update(seen_at=timezone.now() - timedelta(hours=hours), **changes)


def test_all_matches_are_items_in_the_order_of_the_run_each_with_its_slots(run: Run, lead: User) -> None:
    queue = create_queue(run, lead, q="step:2..3 source:zh", num_reviewers_per_item=2)
    items = list_items(queue)
    assert [item.step.step for item in items] == [2] * 4 + [3] * 4
    assert {item.probability for item in items} == {1.0}
    assert Counter(QueueSlot.objects.filter(queue=queue).values_list("item", flat=True)) == {
        item.pk: 2 for item in items
    }


def test_a_random_draw_is_the_same_for_a_seed_and_has_its_probability(run: Run, lead: User) -> None:
    settings = {"selection": "random", "per": "step", "count": 2}
    first = create_queue(run, lead, **settings, seed=7)
    again = create_queue(run, lead, name="again", **settings, seed=7)
    other = create_queue(run, lead, name="other", **settings, seed=8)
    assert create_queue(run, lead, name="zero", **settings, seed=0).seed == 0
    assert [item.sample for item in list_items(first)] == [item.sample for item in list_items(again)]
    assert {item.sample for item in list_items(first)} != {item.sample for item in list_items(other)}
    assert Counter(item.step.step for item in list_items(first)) == {1: 2, 2: 2, 3: 2}
    assert {item.probability for item in list_items(first)} == {2 / 8}


def test_a_count_for_the_whole_queue_is_drawn_from_all_runs_together(run: Run, lead: User) -> None:
    other = builders.run(run.project, "other")
    push(other, [{"response": f"other {n}", "score": n / 10, "group": str(n)} for n in range(8)])
    drawn = list_items(create_queue(run, lead, runs=[run, other], selection="random", count=10))
    assert len(drawn) == 10 and {item.run for item in drawn} == {run, other}
    assert {item.probability for item in drawn} == {10 / 32}
    worst = create_queue(run, lead, name="worst", runs=[run, other], selection="worst", count=2)
    assert len(list_items(worst)) == 2


def test_a_seed_draws_each_sample_equally_often(run: Run, lead: User) -> None:
    drawn: Counter[str] = Counter()
    for seed in range(200):
        settings = {"runs": [run], "q": "step:1", "selection": "random", "count": 2, "seed": seed}
        drawn.update(item.sample for item in queues.preview_queue(run.project, lead, settings).items)
    assert len(drawn) == 8
    assert all(25 <= count <= 80 for count in drawn.values())  # 50 expected, within four standard deviations


def test_worst_and_disagreeing_samples_are_selected_without_a_probability(run: Run, lead: User) -> None:
    worst = create_queue(run, lead, selection="worst", per="source", count=1)
    assert get_scores(worst) == [0.1, 0.1]
    assert {item.stratum for item in list_items(worst)} == {"gsm8k", "zh"}
    assert {item.probability for item in list_items(worst)} == {None}
    differing = create_queue(run, lead, name="differing", q="step:1", selection="disagreeing", count=4)
    assert sorted(get_scores(differing), key=str) == [0.1, 0.1, 0.13, 0.13]  # long and bad, short and good


def test_a_group_is_one_item(run: Run, lead: User) -> None:
    queue = create_queue(run, lead, unit="group", selection="worst", count=2)
    assert sorted((item.step.step, item.group) for item in list_items(queue)) == [(1, "a"), (1, "b")]
    assert len(queues.list_group_samples(list_items(queue)[0])) == 4


def test_a_growing_queue_draws_from_a_step_when_it_is_complete(run: Run, lead: User) -> None:
    queue = create_queue(run, lead, grows=True, selection="worst", per="step", count=1)
    assert [item.step.step for item in list_items(queue)] == [1, 2]  # step 3 may get more samples
    assert queues.extend_growing_queues() == 0
    push(run, [{"response": "x", "group": "c", "score": 0.0}], step=4)
    assert queues.extend_growing_queues() == 1
    assert [item.step.step for item in list_items(queue)] == [1, 2, 3]
    assert [item.position for item in list_items(queue)] == [0, 1, 2]
    set_last_seen(run, hours=6 * 24)
    run.refresh_from_db()
    assert run.status == "silent" and queues.extend_growing_queues() == 0, "it may go on"
    set_last_seen(run, hours=0, outcome="finished")
    assert queues.extend_growing_queues() == 0, "dumps of its last step may be on their way"
    set_last_seen(run, hours=1)
    assert queues.extend_growing_queues() == 1
    queues.close_queue(queue, lead)
    push(run, [{"response": "y", "group": "c", "score": 0.0}], step=5)
    assert queues.extend_growing_queues() == 0


def test_a_growing_queue_searches_only_the_new_steps(run: Run, lead: User, monkeypatch: pytest.MonkeyPatch) -> None:
    push(run, [{"response": "x", "group": "c", "score": 0.0, "acc": 1}], step=4)
    push(run, [{"response": "x", "group": "c", "score": 0.0}], step=5)
    queue = create_queue(run, lead, q="acc=1", grows=True)
    for step in (6, 7):
        push(run, [{"response": "y", "group": "c", "score": 0.0}], step=step)
        queues.extend_queue(queue)
    push(run, [{"response": "y", "group": "c", "score": 0.0}], step=8)
    searched: list[str] = []
    find = draw_module.find_samples

    def record(run: Run, **options: Any) -> Any:
        searched.append(options["q"])
        return find(run, **options)

    monkeypatch.setattr(draw_module, "find_samples", record)
    assert queues.extend_queue(queue) == 0, "a step without the key has no match"
    assert searched == ["(acc=1) step:7..7"]
    assert [item.step.step for item in list_items(queue)] == [4]
    with pytest.raises(InvalidInputError, match="accc"):
        create_queue(run, lead, name="typo", q="accc=1", grows=True)


def test_a_growing_queue_that_fell_behind_takes_the_steps_that_fit(
    run: Run, lead: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = create_queue(run, lead, grows=True)  # 8 items of each of two steps
    for step, count in ((4, 5), (5, 2), (6, 1)):
        push(run, [{"response": f"{step} {n}", "score": 0.0} for n in range(count)], step=step)
    monkeypatch.setattr(growth, "MAX_ITEMS", 16 + 8 + 3)
    assert queues.count_steps_without_room(queue) == 0
    assert queues.extend_growing_queues() == 8 + 2
    assert [item.step.step for item in list_items(queue)][16:] == [3] * 8 + [5] * 2
    assert queues.count_steps_without_room(queue) == 1, "the page says that the queue is full"
    assert queues.extend_growing_queues() == 0


def test_a_drawn_item_that_the_queue_has_already_is_not_counted_as_new(run: Run, lead: User) -> None:
    queue = create_queue(run, lead, grows=True)
    sample = Sample.objects.filter(step__step=3)[0]
    known = QueueItem(queue=queue, run=run, sample=sample.pk, step_id=sample.step_id, gold={"correct": True})
    assert create_module.add_items(queue, [known]) == 1
    set_last_seen(run, hours=1, outcome="finished")
    assert queues.extend_growing_queues() == 7
    assert queue.items.count() == 24


def test_samples_that_are_dropped_between_the_draw_and_the_lock_are_no_items(
    run: Run, lead: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = create_module.draw_from_runs

    def draw_and_drop(*args: Any) -> Any:
        found = draw(*args)
        Sample.objects.filter(step__step=1, group="a").delete()
        return found

    monkeypatch.setattr(create_module, "draw_from_runs", draw_and_drop)
    assert create_queue(run, lead, q="step:1").items.count() == 4


def test_a_growing_queue_waits_for_the_newest_step_of_each_split_and_kind(run: Run, lead: User) -> None:
    dump = push(run, [{"response": "x", "score": 0.5}], step=900)  # of another axis, whose numbers are larger
    Step.objects.filter(run=run, step=900).update(step_kind="feed_index")
    queue = create_queue(run, lead, grows=True)
    assert {item.step.step for item in list_items(queue)} == {1, 2} and dump.step == 900
    push(run, [{"response": "x", "score": 0.5}], step=901)
    Step.objects.filter(run=run, step=901).update(step_kind="feed_index")
    queues.extend_growing_queues()
    assert {item.step.step for item in list_items(queue)} == {1, 2, 900}


def test_steps_of_different_splits_with_the_same_number_are_separate_strata(run: Run, lead: User) -> None:
    push(run, [{"response": f"e{n}", "score": 0.5} for n in range(3)], step=1, split="eval")
    queue = create_queue(run, lead, q="step:1", selection="random", per="step", count=2)
    drawn = Counter((item.step.split, item.stratum, item.probability) for item in list_items(queue))
    assert drawn == {("train", f"{run.uid}/1", 2 / 8): 2, ("eval", f"{run.uid}/eval/1", 2 / 3): 2}


def test_a_query_that_fails_does_not_stop_the_other_growing_queues(run: Run, lead: User) -> None:
    failing_queue = create_queue(run, lead, grows=True)
    other_queue = create_queue(run, lead, name="other", grows=True)
    Queue.objects.filter(pk=failing_queue.pk).update(q="reason:gone")  # a flag reason that was removed
    set_last_seen(run, hours=1, outcome="finished")
    assert queues.extend_growing_queues() == 8
    assert {item.step.step for item in list_items(other_queue)} == {1, 2, 3}


def test_a_run_that_cannot_be_searched_does_not_stop_the_growth_from_other_runs(
    run: Run, lead: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = builders.run(run.project, "other")
    push(other, [{"response": "x", "score": 0.5}], step=1)
    queue = create_queue(run, lead, grows=True, runs=[run, other])
    QueueItem.objects.filter(queue=queue).delete()
    queue.drawn_steps.all().delete()
    set_last_seen(run, hours=1, outcome="finished")
    set_last_seen(other, hours=1, outcome="finished")
    extend = growth.extend_by_steps

    def fail(queue: Queue, searched: Run, steps: Any) -> int:
        if searched == run:
            raise StorageUnavailableError("A body file is missing.")
        return extend(queue, searched, steps)

    monkeypatch.setattr(growth, "extend_by_steps", fail)
    with pytest.raises(StorageUnavailableError):
        queues.extend_queue(queue)
    assert [item.run for item in list_items(queue)] == [other]


def test_gold_items_with_the_answers_of_the_lead_are_added(run: Run, lead: User) -> None:
    known = list(Sample.objects.filter(step__step=1).values_list("pk", flat=True))[:3]
    store_labels(run, lead, [Answer(sample, "correct", True) for sample in known])
    queue = create_queue(run, lead, q="step:3", gold_count=2)
    gold = {item.sample: item.gold for item in list_items(queue) if item.gold}
    assert len(gold) == 2 and gold.keys() <= set(known)
    assert list(gold.values()) == [{"correct": True}] * 2
    assert len(list_items(queue)) == 10
    with pytest.raises(InvalidInputError, match="You have answered 3 samples"):
        create_queue(run, lead, name="more", gold_count=4)


def test_a_preview_says_what_matches_and_stores_nothing(run: Run, lead: User) -> None:
    settings = {"runs": [run], "selection": "random", "per": "source", "count": 3}
    preview = queues.preview_queue(run.project, lead, settings)
    assert (preview.total, preview.matched, preview.drawn) == (24, {"gsm8k": 12, "zh": 12}, {"gsm8k": 3, "zh": 3})
    assert not Queue.objects.exists()


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"name": " "}, "name", "Give the queue a name"),
        ({"q": "score<"}, "q", "incomplete"),
        ({"q": "step:99"}, "q", "the queue would be empty"),
        ({"runs": []}, "runs", "1 to 50 runs"),
        ({"selection": "best"}, "selection", "all, random, worst, disagreeing"),
        ({"selection": "random"}, "count", "how many items"),
        ({"selection": "random", "count": 3, "grows": True}, "per", "each step"),
        ({"count": 3, "grows": True}, "count", "leave `count` empty"),
        ({"unit": "group", "gold_count": 1}, "gold_count", "Known items are samples"),
        ({"questions": ["nope"]}, "questions", "correct, quality"),
        ({"reviewers": ["vera"]}, "reviewers", "vera cannot review"),
        ({"roles": ["viewer"]}, "roles", "annotator"),
        ({"due_at": "tomorrow"}, "due_at", "2026-11-30T18:00"),
        ({"num_reviewers_per_item": 21}, "num_reviewers_per_item", "20"),
    ],
)
def test_an_invalid_setting_is_named_in_the_error(
    run: Run, lead: User, changes: dict[str, object], field: str, message: str
) -> None:
    builders.member(run.project, "vera", "viewer")
    with pytest.raises(InvalidInputError, match=message) as caught:
        create_queue(run, lead, **changes)
    assert caught.value.field == field
    assert not Queue.objects.exists()


def test_two_queues_do_not_have_the_same_name(run: Run, lead: User) -> None:
    create_queue(run, lead)
    with pytest.raises(ConflictError, match="already a queue"):
        create_queue(run, lead)


def test_people_and_date_can_change_and_items_cannot(run: Run, lead: User, ann: User, bob: User) -> None:
    queue = create_queue(run, lead, reviewers=["ann"])
    assert queue.accepts(ann) and not queue.accepts(bob)
    queues.update_queue(queue, lead, {"roles": ["annotator"], "due_at": "2026-12-01T12:00"})
    again = Queue.objects.get()
    assert again.accepts(bob) and again.due_at is not None and list(again.reviewers.all()) == [ann]
    with pytest.raises(InvalidInputError, match="cannot be changed after the start"):
        queues.update_queue(queue, lead, {"q": "step:1"})


def test_a_save_does_not_open_a_queue_that_was_closed_meanwhile(run: Run, lead: User) -> None:
    queue = create_queue(run, lead)
    queues.close_queue(Queue.objects.get(pk=queue.pk), lead)
    closed_at = Queue.objects.get(pk=queue.pk).closed_at
    queues.update_queue(queue, lead, {"reservation_minutes": 5})
    queue.refresh_from_db()
    assert queue.closed_at is not None and queue.reservation_minutes == 5
    queue.closed_at = None  # as another lead read it before
    queues.close_queue(queue, lead)
    assert Queue.objects.get(pk=queue.pk).closed_at == closed_at


def test_two_leads_who_each_remove_a_reviewer_do_not_open_the_queue(run: Run, lead: User, ann: User, bob: User) -> None:
    queue = create_queue(run, lead, reviewers=["ann", "bob"])
    seen = {"reviewers": ["ann", "bob"]}
    queues.update_queue(queue, lead, {"reviewers": ["bob"]}, seen=seen)
    with pytest.raises(ConflictError, match="removed the other reviewers"):
        queues.update_queue(queue, lead, {"reviewers": ["ann"]}, seen=seen)
    assert list(queue.reviewers.all()) == [bob]
    queues.update_queue(queue, lead, {"reviewers": []}, seen={"reviewers": ["bob"]})
    assert not queue.reviewers.exists() and queue.accepts(ann)
