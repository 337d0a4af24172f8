"""Agreement of people on a queue, and the decisions of a lead where they differ."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.queues import item_view
from dashboard.pages.queues.agreement_orders import build_orders_context
from dashboard.pages.queues.views import LEAD_ROLE
from rollouts import queues
from rollouts.agreement import CANNOT_JUDGE, Accuracy
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.labels import Question, load_labels
from rollouts.models import ItemDecision, Label, Queue, Sample

MAX_LISTED = 200  # items of the list
MAX_CONFUSION = 12  # values of a confusion table
MAX_PAIRS = 20
MAX_MARK_CHARS = 120
LIST_ID = "to-decide"


@dataclass(frozen=True, slots=True)
class ShownQuestion:
    """A line of the table. `link` opens its details and filters the list."""

    row: queues.QuestionAgreement
    title: str
    kind: str
    measure: str
    link: str
    is_chosen: bool
    note: str = ""

    @property
    def differing(self) -> int:
        return len(self.row.differing)


@dataclass(frozen=True, slots=True)
class GoldLine:
    """How a person does on the known items, in one question."""

    question: str
    accuracy: Accuracy


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
    form: item_view.ShownQuestion | None = None


@login_required
@require_safe
def agreement_page(request: HttpRequest, pk: int) -> HttpResponse:
    """`question` filters the list, `show` is `decided` for the decided items, `item` is the open one."""
    queue = permissions.queue_or_404(request, pk)
    permissions.require_role(request, queue.project, LEAD_ROLE)
    measured = queues.measure_queue_agreement(queue)
    if measured.orders is not None:
        return render(request, "queues/agreement.html", build_orders_context(queue, measured, measured.orders))
    keys = [row.question.key for row in measured.questions]
    name = request.GET.get("question", "")
    name = name if name in keys else ""
    show = "decided" if request.GET.get("show") == "decided" else "open"
    context: dict[str, Any] = {
        "tab": "review",
        "queue": queue,
        "measured": measured,
        "rows": show_questions(measured, queue, name),
        "chosen": choose_row(measured, name),
        "question": name,
        "show": show,
        "gold": list_gold(measured),
    }
    if (row := context["chosen"]) is not None:
        context |= {"confusion": show_confusion(row), "pairs": row.agreement.pairs[:MAX_PAIRS]}
    context |= build_list(request, queue, measured, name, show)
    return render(request, "queues/agreement.html", context)


def build_link(queue: Queue, **params: Any) -> str:
    """The page with these parameters, scrolled to the list if one of them selects its items."""
    query = urlencode({name: value for name, value in params.items() if value})
    anchor = f"#{LIST_ID}" if "item" in params or "show" in params else ""
    return reverse("queue-agreement", args=[queue.pk]) + (f"?{query}" if query else "") + anchor


def show_questions(measured: queues.QueueAgreement, queue: Queue, name: str) -> list[ShownQuestion]:
    rows = []
    for row in measured.questions:
        question = row.question
        options = {option.key: _(option.title) for option in question.options}
        link = build_link(queue, question="" if name == question.key else question.key)
        note = _("counted when 2 or more apart") if row.tolerance else ""
        title = options[row.option] if row.option else _(question.title)
        kind = _("of “{title}”").format(title=_(question.title)) if row.option else name_kind(question)
        is_chosen = name == question.key and not row.option
        rows.append(ShownQuestion(row, title, kind, name_level(row.agreement.level), link, is_chosen, note))
    return rows


def name_kind(question: Question) -> str:
    if question.kind == "rating":
        return _("rating {low}–{high}").format(low=question.ratings[0], high=question.ratings[-1])
    kinds = {
        "choice": _("one choice"), "choices": _("several choices"), "number": _("number"), "text": _("text"),
        "yes-no": _("yes or no"),
    }  # fmt: skip
    return kinds[question.kind]


def name_level(level: str) -> str:
    levels = {
        "nominal": _("alpha, nominal"), "ordinal": _("alpha, ordinal"), "interval": _("alpha, interval"),
        "set": _("alpha, sets (MASI)"),
    }  # fmt: skip
    return levels.get(level, "")


def choose_row(measured: queues.QueueAgreement, name: str) -> queues.QuestionAgreement | None:
    """The question whose details are shown: the named one, else the first one."""
    rows = [row for row in measured.questions if not row.option and row.question.kind != "text"]
    return next((row for row in rows if row.question.key == name), rows[0] if rows else None)


def show_confusion(row: queues.QuestionAgreement) -> dict[str, Any]:
    """Names of the values and, for each row, its cells; empty if there are too many values for a table."""
    confusion = row.agreement.confusion
    if confusion is None or len(confusion.values) > MAX_CONFUSION:
        return {}
    names = [format_value(row.question, value) for value in confusion.values]
    lines = [
        (name, [(count, at == other) for other, count in enumerate(counts)])
        for at, (name, counts) in enumerate(zip(names, confusion.counts, strict=True))
    ]
    return {"names": names, "lines": lines, "total": sum(map(sum, confusion.counts))}


def format_value(question: Question, value: Any) -> str:
    """An answer for people. An empty choice of several is `none`."""
    if value == CANNOT_JUDGE:
        return _("cannot judge")
    if isinstance(value, list | tuple):
        return question.format_value(list(value)) or _("none")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return question.format_value(value)


def list_gold(measured: queues.QueueAgreement) -> list[GoldLine]:
    return [
        GoldLine(_(row.question.title), accuracy)
        for row in measured.questions
        if not row.option
        for accuracy in row.accuracy
        if accuracy.judged or accuracy.cannot_judge
    ]


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
            "images": item_view.show_images(item, content.images),
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
        differs = question.key in differing
        answers.append(
            PersonAnswer(
                answer.person,
                text,
                label.rationale if label else "",
                response[label.start : label.end][:MAX_MARK_CHARS] if label and label.start is not None else "",
                item_view.get_digit(at) if question.key == first and label and differs else "",
                differs and label is not None,
            )
        )
    given = {"value": decision.value} if decision else {}
    return ComparedQuestion(
        question,
        answers,
        question.key in differing,
        format_value(question, decision.value) if decision else "",
        decision,
        item_view.show_question(question, 0, given) if question.key in differing else None,
    )


@login_required
@require_POST
def decide_item_view(request: HttpRequest, pk: int, item: int) -> HttpResponse:
    """`take` is the person whose answer to `question` holds; without it the answer of the form does. `withdraw` removes
    the decision."""
    queue = permissions.queue_or_404(request, pk)
    permissions.require_role(request, queue.project, LEAD_ROLE)
    user = common.get_signed_in_user(request)
    row, name, form = permissions.queue_item_or_404(queue, item), request.POST.get("question", ""), request.POST
    try:
        if "withdraw" in form:
            queues.withdraw_decision(row, user, name)
            return common.respond_success(request, _("The question is open again."), "queue-agreement", pk)
        if author := form.get("take"):
            value = queues.load_answer_of(row, name, author)
        else:
            value = item_view.parse_answers(queue, form).get(name, {}).get("value")
            if value is None:
                raise InvalidInputError(_("Take the answer of a person, or choose one."), name)
        queues.decide_answer(row, user, name, value, form.get("reason", ""))
    except RolloutError as error:
        return common.respond_error(request, error, "queue-agreement", pk)
    return common.respond_success(request, _("Decided. The answers of the people stay."), "queue-agreement", pk)
