"""Agreement of people on a queue, and the decisions of a lead where they differ."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.queues import item_view
from dashboard.pages.queues.agreement_orders import build_orders_context
from dashboard.pages.queues.agreement_table import build_confusion_table, build_question_rows, choose_row, list_gold
from dashboard.pages.queues.disagreements import build_list
from rollouts import queues
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.models import Queue

MAX_PAIRS = 20
PANELS = {"agreement": "queues/agreement_panel.html"}


@login_required
@require_safe
def agreement_page(request: HttpRequest, pk: int) -> HttpResponseBase:
    """`question` filters the list, `show` is `decided` for the decided items, `item` is the open one."""
    queue = permissions.queue_or_404(request, pk)
    permissions.require_role(request, queue.project, permissions.LEAD_ROLE)
    return common.render_page_or_panel(
        request, "queues/agreement.html", PANELS, lambda panel: build_agreement_context(request, queue)
    )


def build_agreement_context(request: HttpRequest, queue: Queue) -> dict[str, Any]:
    measured = queues.measure_queue_agreement(queue)
    if measured.orders is not None:
        return build_orders_context(queue, measured, measured.orders)
    keys = [row.question.key for row in measured.questions]
    name = request.GET.get("question", "")
    name = name if name in keys else ""
    show = "decided" if request.GET.get("show") == "decided" else "open"
    context: dict[str, Any] = {
        "tab": "review",
        "queue": queue,
        "measured": measured,
        "rows": build_question_rows(measured, queue, name),
        "chosen": choose_row(measured, name),
        "question": name,
        "show": show,
        "gold": list_gold(measured),
    }
    if (row := context["chosen"]) is not None:
        context |= {"confusion": build_confusion_table(row), "pairs": row.agreement.pairs[:MAX_PAIRS]}
    return context | build_list(request, queue, measured, name, show)


@login_required
@require_POST
def decide_item_view(request: HttpRequest, pk: int, item: int) -> HttpResponse:
    """`take` is the person whose answer to `question` holds; without it the answer of the form does. `withdraw` removes
    the decision."""
    queue = permissions.queue_or_404(request, pk)
    permissions.require_role(request, queue.project, permissions.LEAD_ROLE)
    user = common.get_signed_in_user(request)
    row, form = permissions.queue_item_or_404(queue, item), request.POST
    name = common.clean_param(form.get("question", ""))
    try:
        if "withdraw" in form:
            queues.withdraw_decision(row, user, name, seen=form.get("seen"))
            return common.respond_success(request, _("The question is open again."), "queue-agreement", pk)
        if author := common.clean_param(form.get("take", "")):
            value = queues.load_answer_of(row, name, author)
        else:
            value = item_view.parse_answers(row, user, form).get(name, {}).get("value")
            if value is None:
                raise InvalidInputError(_("Take the answer of a person, or choose one."), name)
        queues.decide_answer(row, user, name, value, common.clean_param(form.get("reason", "")), seen=form.get("seen"))
    except RolloutError as error:
        return common.respond_error(request, error, "queue-agreement", pk)
    return common.respond_success(request, _("Decided. The answers of the people stay."), "queue-agreement", pk)
