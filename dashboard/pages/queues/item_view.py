"""An item as the review page shows it: its texts, and the questions with what the person has entered."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User
from django.http import QueryDict
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from dashboard.pages import common
from dashboard.pages.sample import build_text_view
from rollouts import queues
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.labels import CORRECTION_QUESTION, REVIEW_QUESTION, Question
from rollouts.models import Label, Queue, QueueItem, QueueSlot
from rollouts.samples import SampleImage
from rollouts.samples.responses import find_passage

CANNOT_JUDGE = "cannot-judge"
FIELD_PREFIX = "q."  # of the answers in the form
PAIR_PREFIX = "pair."


@dataclass(frozen=True, slots=True)
class ShownOption:
    value: str
    title: str
    key: str  # the digit that chooses it, empty from the tenth on
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class QuestionField:
    """A question with the entered answer. `options` is empty for texts and numbers, whose answer is `value`."""

    question: Question
    number: int
    options: list[ShownOption] = field(default_factory=list)
    value: str = ""
    rationale: str = ""
    start: Any = None
    end: Any = None

    @property
    def is_multiple(self) -> bool:
        return self.question.kind == "choices"

    @property
    def field_name(self) -> str:
        return FIELD_PREFIX + self.question.key


@dataclass(frozen=True, slots=True)
class ShownResponse:
    """`key`: the digit that places it, empty from the tenth on. `place`: its place in the entered order."""

    number: int
    key: str
    html: SafeString
    content: queues.ResponseContent
    place: int | None = None
    images: list[common.ShownImage] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ShownPair:
    """Two responses of a group by their numbers, with the entered answer."""

    number: int
    left: int
    right: int
    options: list[ShownOption]

    @property
    def key(self) -> str:
        return queues.format_pair(self.left, self.right)

    @property
    def field_name(self) -> str:
        return PAIR_PREFIX + self.key


def build_item_context(queue: Queue, slot: QueueSlot, user: User) -> dict[str, Any]:
    """The context of `queues/item.html`. If the text cannot be read, it has the reason."""
    item: QueueItem = slot.item
    item.queue = queue
    context: dict[str, Any] = {"queue": queue, "item": item, "slot": slot, "is_group": queue.unit == Queue.Unit.GROUP}
    try:
        content = queues.load_item_content(item, user)
    except RolloutError as error:
        return context | {"unread": str(error)}
    entered = queues.load_entered_content(slot)
    order = entered.get("order", {}).get("value", []) if context["is_group"] else []
    places = {number: place for place, numbers in enumerate(order, 1) for number in numbers}
    responses = [
        ShownResponse(
            row.number,
            get_digit(row.number),
            render_text(row.response, f"r{row.number}-"),
            row,
            places.get(row.number),
            build_item_images(item, row.images),
        )
        for row in content.responses
    ]
    return context | {
        "content": content,
        "prompt": render_text(content.prompt, "p"),
        "images": build_item_images(item, content.images),
        "responses": responses,
        "pairs": build_pair_choices(content.pairs, entered),
        "questions": [] if context["is_group"] else build_question_fields(queue, entered),
        "correction": entered.get(CORRECTION_QUESTION.key, {}).get("value", ""),
        "cannot_judge": entered.get(REVIEW_QUESTION.key, {}).get("value") == CANNOT_JUDGE,
        "cannot_judge_reason": entered.get(REVIEW_QUESTION.key, {}).get("rationale", ""),
    }


def build_item_images(item: QueueItem, images: Iterable[SampleImage]) -> list[common.ShownImage]:
    """With addresses below that of the queue: that of a sample would name it."""
    return [
        common.ShownImage(
            image, reverse("queue-image", args=[item.queue_id, item.pk, image.sha256]) if image.sha256 else ""
        )
        for image in images
    ]


def get_digit(number: int) -> str:
    """The key for a number, empty from the tenth on."""
    return str(number) if number < 10 else ""


def render_text(text: str | None, id_prefix: str) -> SafeString:
    return build_text_view(text or "", mark_answers=False, id_prefix=id_prefix).html


def build_question_fields(queue: Queue, entered: Mapping[str, Mapping[str, Any]]) -> list[QuestionField]:
    return [
        build_question_field(question, number, entered.get(question.key, {}))
        for number, question in enumerate(queues.list_questions(queue), 1)
    ]


def build_question_field(question: Question, number: int, answer: Mapping[str, Any]) -> QuestionField:
    value = answer.get("value")
    chosen = {format_value(one) for one in (value if isinstance(value, list) else [value]) if one is not None}
    options = [
        ShownOption(key, title, get_digit(at), key in chosen)
        for at, (key, title) in enumerate(list_options(question), 1)
    ]
    text = "" if options or value is None else str(value)
    details = {name: answer.get(name) for name in ("start", "end")}
    return QuestionField(question, number, options, text, answer.get("rationale") or "", **details)


def format_value(value: Any) -> str:
    """The value of an option. A rating of 4 is 4.0 in a draft."""
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def list_options(question: Question) -> list[tuple[str, str]]:
    match question.kind:
        case "yes-no":
            return [("true", _("yes")), ("false", _("no"))]
        case "rating":
            return [(str(rating), str(rating)) for rating in question.ratings]
        case _:
            return question.shown_options


def parse_answers(
    item: QueueItem, user: User, form: QueryDict, *, drops_refused_marks: bool = False
) -> dict[str, dict[str, Any]]:
    """The answers of a form, {question: {value, rationale, start, end}}, without empty ones. `submit_answers` checks
    them. Raises InvalidInputError for a mark that is not in the response, unless it is dropped."""
    answers: dict[str, dict[str, Any]] = {}
    for question in queues.list_questions(item.queue):
        name = FIELD_PREFIX + question.key
        values = [value for value in form.getlist(name) if value != ""]
        if not values:
            continue
        answer: dict[str, Any] = {"value": parse_value(question, values)}
        if rationale := form.get(f"{name}.rationale"):
            answer["rationale"] = rationale
        try:
            answer |= parse_marked_range(item, user, form, name)
        except InvalidInputError:
            if not drops_refused_marks:
                raise
        answers[question.key] = answer
    if form.get("has_correction") and (text := form.get("correction", "").replace("\r\n", "\n")).strip():
        answers[CORRECTION_QUESTION.key] = {"value": text}
    if form.get("cannot_judge"):
        reason = form.get("cannot_judge_reason", "")
        answers[REVIEW_QUESTION.key] = {"value": CANNOT_JUDGE, **({"rationale": reason} if reason else {})}
    return answers


def parse_marked_range(item: QueueItem, user: User, form: QueryDict, name: str) -> dict[str, Any]:
    """`start` and `end` of the marked part of the response, in characters. A new mark is the selected text and its
    approximate position: a browser counts in other units and does not see all characters. Raises InvalidInputError."""
    selected = form.get(f"{name}.quote")
    if not selected:
        return {part: form[f"{name}.{part}"] for part in ("start", "end") if form.get(f"{name}.{part}")}
    (response,) = queues.load_item_content(item, user).responses
    near = common.parse_integer_param(form.get(f"{name}.near", "")) or 0
    span = find_passage(response.response or "", selected, near)
    if span is None:
        raise InvalidInputError(_("The response does not contain the selected text. Select it again."), name)
    return {"start": span[0], "end": span[1]}


def parse_value(question: Question, values: list[str]) -> Any:
    """The value in the type of the question; a text if it has another one, which the question refuses."""
    match question.kind:
        case "choices":
            return values
        case "yes-no":
            return {"true": True, "false": False}.get(values[0], values[0])
        case "rating" | "number":
            try:
                return float(values[0])
            except ValueError:
                return values[0]
        case _:
            return values[0]


def build_pair_choices(pairs: list[tuple[int, int]], entered: Mapping[str, Mapping[str, Any]]) -> list[ShownPair]:
    given = entered.get(queues.PAIRS_KEY, {}).get("value") or {}
    titles = {
        "left": ("1", _("left is better")), "right": ("2", _("right is better")), "equal": ("=", _("equal")),
        "skip": ("0", _("cannot say")),
    }  # fmt: skip
    shown = []
    for number, (left, right) in enumerate(pairs, 1):
        chosen = given.get(queues.format_pair(left, right))
        options = [ShownOption(name, title, key, name == chosen) for name, (key, title) in titles.items()]
        shown.append(ShownPair(number, left, right, options))
    return shown


def parse_pairs(form: QueryDict) -> dict[str, str]:
    """The pairs of a group: `pair.LEFT-RIGHT` says which of two responses is better."""
    return {name.removeprefix(PAIR_PREFIX): str(form[name]) for name in form if name.startswith(PAIR_PREFIX)}


def parse_order(form: QueryDict) -> list[list[int]]:
    """The order of a group: `place.NUMBER` is the place of the response with this number."""
    places: dict[int, list[int]] = {}
    for name, text in form.items():
        prefix, _dot, number = name.partition(".")
        if prefix == "place" and number.isdecimal() and str(text).isdecimal() and len(str(text)) < 4:
            places.setdefault(int(str(text)), []).append(int(number))
    return [sorted(places[place]) for place in sorted(places)]


def summarise_own_answers(queue: Queue, user: User) -> list[tuple[str, list[tuple[str, int]]]]:
    """Titles of the questions with the number of each answer of the person."""
    samples = queue.slots.filter(user=user).exclude(done_at=None).values("item__sample")
    summary = []
    for question in queues.list_questions(queue):
        if question.kind in ("text", "number"):
            continue
        rows = Label.objects.active().filter(name=question.key, author=user.get_username(), sample__in=samples)
        counts: Counter[str] = Counter()
        for value in rows.filter(source="human").values_list("value", flat=True):
            for one in value if isinstance(value, list) else [value]:
                counts[question.format_value(one)] += 1
        if counts:
            summary.append((question.shown_title, counts.most_common()))
    return summary
