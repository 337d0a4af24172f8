"""Reviewers compare the responses of a group in pairs: the pairs are the same for all, the sides are not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts import queues
from rollouts.errors import InvalidInputError, OutdatedError
from rollouts.indexing.renamed_samples import move_user_records
from rollouts.models import Label, Queue, QueueDraft, QueueItem, Run, Sample
from rollouts.queues.groups import draw_pairs, place_pair, shuffle_for
from tests.rollouts.queues.conftest import create_queue

Answers = dict[str, dict[str, Any]]


def create_pairs(run: Run, lead: User, **settings: object) -> Queue:
    return create_queue(run, lead, **{"unit": "group", "pairs_per_group": 3, "q": "step:1 source:zh", **settings})


def build_answers(item: QueueItem, user: User, *outcomes: str) -> Answers:
    """Returns answers of the user to the first pairs that they see."""
    pairs = [queues.format_pair(*pair) for pair in queues.load_item_content(item, user).pairs]
    return {"pairs": {"value": dict(zip(pairs, outcomes, strict=False))}}


def load_pairs() -> list[tuple[str, str, str]]:
    rows = Label.objects.active().filter(name__in=("better-than", "equal-to")).order_by("name", "sample")
    return [(label.sample, label.name, other) for label in rows for other in label.value]


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
def test_pairs_have_each_response_equally_often_and_connect_all_of_them(size: int) -> None:
    item = QueueItem(queue=Queue(seed=7), sample="a")
    samples = [f"s{number}" for number in range(size)]
    every = draw_pairs(item, samples, 1000)
    assert len({frozenset(pair) for pair in every}) == len(every) == size * (size - 1) // 2
    for count in range(1, len(every)):
        seen = Counter(sample for pair in every[:count] for sample in pair)
        assert max(seen.values()) - min(seen[sample] for sample in samples) <= 1 + size % 2
    linked = {every[0][0]}
    for _ in samples:
        linked |= {sample for pair in every[:size] if linked & set(pair) for sample in pair}
    assert len(linked) == size
    assert draw_pairs(item, reversed(samples), 1000) == every
    assert size == 2 or draw_pairs(QueueItem(queue=Queue(seed=8), sample="a"), samples, 1000) != every


def test_a_response_is_on_both_sides_equally_often_and_on_one_side_for_each_user() -> None:
    item = QueueItem(pk=1, queue=Queue(seed=1), sample="a")
    people = [User(pk=number) for number in range(1, 401)]
    left = [place_pair(item, user, ("a", "b"))[0] for user in people]
    assert 160 < left.count("a") < 240
    assert left == [place_pair(item, user, ("b", "a"))[0] for user in people]


def test_the_label_of_the_chosen_response_has_the_id_of_the_other_one(run: Run, lead: User, ann: User) -> None:
    queue = create_pairs(run, lead, is_blind=True)
    item = queue.items.get()
    with pytest.raises(InvalidInputError, match="Compare each pair"):
        queues.store_pairs(item, ann, build_answers(item, ann, "left")["pairs"]["value"])
    assert queues.load_entered_answers(item, ann) == build_answers(item, ann, "left"), "what was refused is a draft"
    with pytest.raises(InvalidInputError, match="at least one pair"):
        queues.store_pairs(item, ann, build_answers(item, ann, "skip", "skip", "skip")["pairs"]["value"])
    with pytest.raises(InvalidInputError, match="does not ask about the pair"):
        queues.store_pairs(item, ann, {"9-8": "left"})
    ids = [sample.pk for sample in shuffle_for(ann, item, queues.list_group_samples(item))]
    first, second, _third = ([ids[number - 1] for number in pair] for pair in queues.load_item_content(item, ann).pairs)
    queues.store_pairs(item, ann, build_answers(item, ann, "right", "equal", "skip")["pairs"]["value"], seconds=2.0)
    assert load_pairs() == [(first[1], "better-than", first[0]), (second[0], "equal-to", second[1])]
    assert queues.load_entered_answers(item, ann) == build_answers(item, ann, "right", "equal", "skip")
    queues.store_pairs(item, ann, build_answers(item, ann, "left", "left", "skip")["pairs"]["value"])
    assert load_pairs() == sorted([(first[0], "better-than", first[1]), (second[0], "better-than", second[1])])
    queues.undo_submission(queue, ann)
    assert queues.load_entered_answers(item, ann) == build_answers(item, ann, "left", "left", "skip")


def test_labels_of_pairs_that_only_another_queue_has_stay(run: Run, lead: User, ann: User) -> None:
    every = create_pairs(run, lead, pairs_per_group=6).items.get()
    queues.store_pairs(every, ann, build_answers(every, ann, *["left"] * 6)["pairs"]["value"])
    assert len(load_pairs()) == 6
    one = create_pairs(run, lead, name="one", pairs_per_group=1).items.get()
    queues.store_pairs(one, ann, build_answers(one, ann, "equal")["pairs"]["value"])
    assert Counter(name for _sample, name, _other in load_pairs()) == {"better-than": 5, "equal-to": 1}


def test_pairs_need_groups(run: Run, lead: User) -> None:
    with pytest.raises(InvalidInputError, match="set `unit` to group"):
        create_queue(run, lead, pairs_per_group=2)


def claim_item(queue: Queue, user: User) -> QueueItem:
    slot = queues.claim_next(queue, user)
    assert slot is not None
    return slot.item


def test_answers_and_drafts_get_the_new_ids_of_samples(run: Run, lead: User, ann: User) -> None:
    queue = create_pairs(run, lead, q="step:1")
    item = claim_item(queue, ann)
    queues.store_pairs(item, ann, build_answers(item, ann, "left", "left", "left")["pairs"]["value"])
    pairs_draft = claim_item(queue, ann)
    queues.save_pairs_draft(pairs_draft, ann, build_answers(pairs_draft, ann, "left")["pairs"]["value"])
    ordered = claim_item(create_queue(run, lead, name="order", unit="group", q="step:1"), ann)
    members = [sample.pk for sample in queues.list_group_samples(ordered)]
    queues.save_order_draft(ordered, ann, [members[:1], members[1:]], "close")
    label = Label.objects.exclude(answer="").first()
    assert label is not None and label.value
    renamed = {pk: f"new{pk}"[:52] for pk in Sample.objects.filter(step=item.step).values_list("pk", flat=True)}
    move_user_records(item.step, renamed)
    new = Label.objects.get(pk=label.pk)
    assert new.sample == renamed[label.sample] and new.value == [renamed[name] for name in label.value]
    assert new.answer == f" {' '.join(new.value)} "
    drafts = {draft.item_id: draft.answers for draft in QueueDraft.objects.filter(user=ann)}
    moved = [renamed[pk] for pk in members]
    assert drafts[ordered.pk]["order"] == {"value": [moved[:1], moved[1:]], "rationale": "close"}
    assert drafts[pairs_draft.pk] == {}


def test_pairs_of_a_group_that_has_changed_since_are_dropped(run: Run, lead: User, ann: User) -> None:
    item = create_pairs(run, lead).items.get()
    version = queues.load_item_content(item, ann).version
    queues.save_pairs_draft(item, ann, build_answers(item, ann, "left")["pairs"]["value"])
    queues.check_group_version(item, ann, version)
    Sample.objects.filter(pk=queues.list_group_samples(item)[-1].pk).update(group="elsewhere")
    assert queues.load_entered_answers(item, ann) == {}
    with pytest.raises(OutdatedError, match="have changed since you opened it"):
        queues.check_group_version(item, ann, version)
    queues.check_group_version(item, ann, "")  # a script that knows no versions
