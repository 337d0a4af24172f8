"""What a reviewer sees of an item. This is the only place that decides what a blind queue hides."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _

from rollouts.errors import NotFoundError, StorageUnavailableError
from rollouts.models import Queue, QueueItem, Sample
from rollouts.queues.groups import ORDER_KEY, build_pairs, hash_responses, list_group_samples, shuffle_for
from rollouts.queues.slots import load_entered_answers
from rollouts.samples import (
    IMAGE_KEYS,
    MISSING_BODY_MESSAGE,
    SampleBody,
    SampleImage,
    list_images,
    load_bodies,
    split_shared_images,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.contrib.auth.models import User

    from rollouts.models import QueueSlot


@dataclass(frozen=True, slots=True)
class ResponseContent:
    """A response of the item. `number`, from 1, is its place for this person: those of a group are shuffled. `sample`,
    `score` and `rewards` are None in a blind queue."""

    number: int
    response: str | None
    sample: str | None = None
    score: float | None = None
    rewards: dict[str, Any] | None = None
    images: list[SampleImage] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ItemContent:
    """The prompt and the responses of an item. `context` says where it comes from and why it was drawn; it is empty
    in a blind queue. `pairs`: the numbers of the responses that are compared, the left one first. `images` are
    those of all responses; in a blind queue those of the messages and of columns of images, without their paths.
    `version` is that of a group, see `check_group_version`."""

    prompt: str | None
    messages: list[dict[str, Any]] | None
    tools: Any
    responses: list[ResponseContent]
    context: dict[str, Any] = field(default_factory=dict)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    images: list[SampleImage] = field(default_factory=list)
    version: str = ""


def load_item_content(item: QueueItem, user: User) -> ItemContent:
    """Raises NotFoundError if the sample is gone, StorageUnavailableError if its text cannot be read."""
    samples = shuffle_for(user, item, list_item_samples(item))
    try:
        bodies = load_bodies(samples)
    except StorageUnavailableError as error:
        if not item.queue.is_blind:
            raise
        # Its message names the dump and the file, and so the run and the split, which a blind queue hides.
        message = _("Cannot read the sample texts of this run. Try again, or re-index the run.")
        raise StorageUnavailableError(message) from error.__cause__
    if not samples or samples[0].pk not in bodies:
        raise NotFoundError(_(MISSING_BODY_MESSAGE), "item")
    blind = item.queue.is_blind
    read = [(number, sample) for number, sample in enumerate(samples, 1) if sample.pk in bodies]
    images, own_images = split_shared_images(
        [select_images(bodies[sample.pk], blind=blind) for _number, sample in read]
    )
    responses = [
        build_response(number, sample, bodies, own, blind=blind)
        for (number, sample), own in zip(read, own_images, strict=True)
    ]
    first = bodies[samples[0].pk]
    context = {} if blind else build_context(item, samples[0], first)
    pairs = build_pairs(item, user, samples) if item.queue.asks_pairs else []
    version = hash_responses(user, item, samples) if item.queue.unit == Queue.Unit.GROUP else ""
    return ItemContent(first.prompt, first.messages, first.tools, responses, context, pairs, images, version)


def select_images(body: SampleBody, *, blind: bool) -> list[SampleImage]:
    images = list_images(body)
    if not blind:
        return images
    shown = {str(message.get("role", "")) for message in body.messages or ()} | IMAGE_KEYS
    return [replace(image, location="") for image in images if image.origin.lower() in shown]


def list_item_samples(item: QueueItem) -> list[Sample]:
    if item.queue.unit == Queue.Unit.GROUP:
        samples = list_group_samples(item)
    else:
        samples = list(Sample.objects.filter(pk=item.sample).select_related("step"))
    for sample in samples:
        sample.step.run = item.run
    return samples


def build_response(
    number: int, sample: Sample, bodies: Mapping[str, SampleBody], images: list[SampleImage], *, blind: bool
) -> ResponseContent:
    body = bodies[sample.pk]
    text = None if body.textless else body.response
    if blind:
        return ResponseContent(number, text, images=images)
    return ResponseContent(number, text, sample.pk, sample.score, body.rewards, images)


def build_context(item: QueueItem, sample: Sample, body: SampleBody) -> dict[str, Any]:
    """Without stratum and probability: known items have none, and reviewers must not recognise them."""
    return {
        "run": sample.step.run.uid,
        "run_name": sample.step.run.name,
        "split": sample.step.split,
        "step": sample.step.step,
        "group": sample.group,
        "data_source": sample.data_source,
        "ground_truth": body.ground_truth,
        "reason": explain_item(item),
    }


def explain_item(item: QueueItem) -> str:
    """Returns why the item is in its queue, in the user's language. A known item has the reason of the others."""
    queue = item.queue
    match queue.per:
        case Queue.Stratum.STEP:
            part = _("its step")
        case Queue.Stratum.SOURCE:
            part = _("its data source")
        case _:
            part = _("the query")
    match queue.selection:
        case Queue.Selection.RANDOM:
            return _("drawn at random from {part}").format(part=part)
        case Queue.Selection.WORST:
            return _("one of the lowest scores of {part}").format(part=part)
        case Queue.Selection.DISAGREEING:
            return _("score and length disagree most, in {part}").format(part=part)
        case _:
            return _("matches the query")


def resolve_order(item: QueueItem, user: User, order: list[list[int]]) -> list[list[str]]:
    """Returns the sample ids of an order of numbers, see `ResponseContent`. Unknown numbers become empty ids, which
    `store_order` refuses."""
    samples = shuffle_for(user, item, list_item_samples(item))
    ids = {number: sample.pk for number, sample in enumerate(samples, 1)}
    return [[ids.get(number, "") for number in place] for place in order]


def load_entered_content(slot: QueueSlot) -> dict[str, dict[str, Any]]:
    """Returns what the user of the slot has entered, see `load_entered_answers`. The order of a group has numbers as
    values, since ids of samples are hidden in a blind queue."""
    item, user = slot.item, slot.user
    assert user is not None
    entered = load_entered_answers(item, user, slot.done_at is not None)
    if ORDER_KEY not in entered or item.queue.unit != Queue.Unit.GROUP:
        return entered
    samples = shuffle_for(user, item, list_item_samples(item))
    numbers = {sample.pk: number for number, sample in enumerate(samples, 1)}
    known = [[numbers[pk] for pk in place if pk in numbers] for place in entered[ORDER_KEY]["value"]]
    return {ORDER_KEY: {**entered[ORDER_KEY], "value": [place for place in known if place]}}
