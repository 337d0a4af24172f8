"""The items on which people differ, and the texts and answers of the open one."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from dashboard.pages import common
from dashboard.pages.queues import item_view
from dashboard.pages.queues.agreement_table import build_link, format_value
from rollouts import queues
from rollouts.errors import RolloutError
from rollouts.labels import Question, load_labels
from rollouts.models import ItemDecision, Label, Queue, Sample

MAX_LISTED = 200  # items of the list
MAX_MARK_CHARS = 120


@dataclass(frozen=True, slots=True)
class ListedItem:
    """`said`: people with their answers to the first question in which they differ."""

    pk: int
    position: int
    sample: Sample | None
    said: str
    link: str
    is_chosen: bool
    is_decided: bool


@dataclass(frozen=True, slots=True)
class PersonAnswer:
    """`marked` is the beginning of the marked part of the response. `key` is the digit that takes the answer."""

    person: str
    text: str
    rationale: str = ""
    marked: str = ""
    key: str = ""
    may_take: bool = False


@dataclass(frozen=True, slots=True)
class ComparedQuestion:
    """The answers of all people to one question about one item, and the decision."""

    question: Question
    answers: list[PersonAnswer]
    differs: bool
    decided: str = ""
    decision: ItemDecision | None = None
    form: item_view.QuestionField | None = None


def build_list(
    request: HttpRequest, queue: Queue, measured: queues.QueueAgreement, name: str, show: str
) -> dict[str, Any]:
    """The items on which people differ, the open one, and the ones before and behind it."""
    differing = measured.list_differing(name)
    decided = {pk for pk, names in differing.items() if measured.is_decided(pk, names)}
    shown = [pk for pk in differing if (pk in decided) == (show == "decided")]
    wanted = common.parse_integer_param(request.GET.get("item", ""), minimum=1)
    chosen = wanted if wanted in differing else next(iter(shown), None)
    listed = shown[:MAX_LISTED]
    samples = Sample.objects.in_bulk([measured.answers[pk].item.sample for pk in listed])
    state = {"question": name, "show": show if show == "decided" else ""}
    items = []
    for pk in listed:
        entry = measured.answers[pk]
        said = describe_answers(measured, pk, differing[pk][0])
        link = build_link(queue, **state, item=pk)
        row = (pk, entry.item.position, samples.get(entry.item.sample), said, link, pk == chosen, pk in decided)
        items.append(ListedItem(*row))
    at = next((place for place, pk in enumerate(listed) if pk == chosen), None)
    context: dict[str, Any] = {
        "items": items,
        "more": len(shown) - len(listed),
        "counts": {"open": len(differing) - len(decided), "decided": len(decided)},
        "links": {
            "open": build_link(queue, question=name, show=""),
            "decided": build_link(queue, question=name, show="decided"),
        },
        "all_link": build_link(queue, show=state["show"]),
    }
    if at is not None:
        context |= {"previous": items[at - 1] if at else None, "next": items[at + 1] if at + 1 < len(items) else None}
    if chosen is not None:
        context |= build_item(request, queue, measured, chosen, differing[chosen], name)
        left = [key for key in differing[chosen] if key not in measured.answers[chosen].decided]
        follows = context.get("next")
        context["after"] = build_link(
            queue, **state, item=chosen if len(left) > 1 else follows.pk if follows and show == "open" else ""
        )
    return context


def describe_answers(measured: queues.QueueAgreement, pk: int, name: str) -> str:
    question = next(row.question for row in measured.questions if row.question.key == name)
    given = queues.list_given(measured.answers[pk], question)
    return " · ".join(
        f"{answer.person} {format_value(question, answer.value)}" for answer in given if answer.value is not None
    )


def build_item(
    request: HttpRequest, queue: Queue, measured: queues.QueueAgreement, pk: int, differing: list[str], name: str
) -> dict[str, Any]:
    """Texts and answers of one item. No score: the lead decides without it, as the people did."""
    entry = measured.answers[pk]
    item = entry.item
    item.queue = queue
    context: dict[str, Any] = {"item": item}
    response = ""
    try:
        content = queues.load_item_content(item, common.get_signed_in_user(request))
    except RolloutError as error:
        context["unread"] = str(error)
    else:
        response = content.responses[0].response or ""
        context |= {
            "prompt": item_view.render_text(content.prompt, "p"),
            "images": item_view.build_item_images(item, content.images),
            "response": item_view.render_text(response, "r"),
            "truth": content.context.get("ground_truth"),
        }
    labels = {(label.name, label.author): label for label in load_labels([item.sample]).get(item.sample, [])}
    decisions = {decision.name: decision for decision in item.decisions.select_related("user")}
    questions = [row.question for row in measured.questions if not row.option]
    questions.sort(key=lambda question: question.key not in differing)
    to_decide = [key for key in differing if key not in decisions and name in ("", key)]
    first = to_decide[0] if to_decide else (name or differing[0])
    context["compared"] = [
        compare_question(question, entry, labels, response, decisions.get(question.key), differing, first)
        for question in questions
    ]
    return context


def compare_question(
    question: Question,
    entry: queues.ItemAnswers,
    labels: dict[tuple[str, str], Label],
    response: str,
    decision: ItemDecision | None,
    differing: list[str],
    first: str,
) -> ComparedQuestion:
    """The digits take the answers to the `first` question."""
    answers = []
    for at, answer in enumerate(queues.list_given(entry, question), 1):
        label = labels.get((question.key, answer.person))
        text = "–" if answer.value is None else format_value(question, answer.value)
        may_take = question.key in differing and (label is not None or answer.value == [])
        answers.append(
            PersonAnswer(
                answer.person,
                text,
                label.rationale if label else "",
                response[label.start : label.end][:MAX_MARK_CHARS] if label and label.start is not None else "",
                item_view.get_digit(at) if question.key == first and may_take else "",
                may_take,
            )
        )
    given = {"value": decision.value} if decision else {}
    return ComparedQuestion(
        question,
        answers,
        question.key in differing,
        format_value(question, decision.value) if decision else "",
        decision,
        item_view.build_question_field(question, 0, given) if question.key in differing else None,
    )
