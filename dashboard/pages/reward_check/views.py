"""The page of the reward check.

`question` and `good` say what people call good, `threshold` from which score a sample is rewarded, `steps` which steps
count. `against` is another run, or `than` other steps of this run, to compare with.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages import common, findings
from rollouts import reward_check
from rollouts.agreement import MIN_LABELLED, RewardCheck
from rollouts.errors import InvalidInputError
from rollouts.models import Label, Run, Sample

MAX_LISTED = 50
MAX_OFFERED_RUNS = 100
QUEUE_ITEMS = 100  # of the queue that the page offers without labels


@dataclass(frozen=True, slots=True)
class ListedSample:
    """A sample of a list, and what people say about it."""

    sample: Sample
    said: str


@login_required
@require_safe
def reward_check_page(request: HttpRequest, uid: str) -> HttpResponse:
    """Confusion of label and score, suspected reward hacks and missed good answers, before and after."""
    run = permissions.run_or_404(request, uid)
    split = common.find_default_split(run)
    context: dict[str, Any] = {
        "run": run, "project": run.project, "url_state": common.StepUrlState(), "split": split,
        "strip": common.load_step_strip(run, split), "current": None, "tab": "overview", "view": "reward-check",
        "status": run.status, "min_labelled": MIN_LABELLED,
        "may_queue": permissions.role_allows(run.project.role_of(request.user), permissions.LEAD_ROLE),
        "queue_link": build_queue_link(run, selection="random", count=QUEUE_ITEMS),
        "questions": reward_check.list_reward_questions(run.project),
    }  # fmt: skip
    try:
        if context["questions"]:
            context |= build_report_context(request, read_selection(request, run))
    except InvalidInputError as error:
        context |= {"error": str(error)} | ({} if error.field == "run" else build_form_context(request, run))
        return render(request, "reward_check/page.html", context, status=400)
    return render(request, "reward_check/page.html", context)


def read_selection(request: HttpRequest, run: Run) -> reward_check.RewardSelection:
    """Raises InvalidInputError."""
    name, good = read_question(request)
    fields = {field: request.GET.get(field, "") for field in ("threshold", "steps", "than")}
    uid = common.clean_param(request.GET.get("against", ""))
    other = permissions.visible_runs(request).filter(project=run.project, uid=uid).first() if uid else None
    reader = common.get_signed_in_user(request).pk
    return reward_check.parse_selection(run, reader=reader, question=name, good=good, other=other, **fields)


def read_question(request: HttpRequest) -> tuple[str, list[str]]:
    """Returns the question and the answers that are right. They are empty if they were those of another question."""
    name = common.clean_param(request.GET.get("question", ""))
    good = [common.clean_param(value) for text in request.GET.getlist("good") for value in text.split(",") if value]
    return name, good if request.GET.get("asked", name) == name else []


def build_form_context(request: HttpRequest, run: Run) -> dict[str, Any]:
    """The form as it was sent, if the selection is refused: with the first question if there is none of this name."""
    name, good = read_question(request)
    asked = reward_check.parse_reward_question(run.project, "", ())
    for values in ((), good):
        with suppress(InvalidInputError):
            asked = reward_check.parse_reward_question(run.project, name, values)
    typed = {name: request.GET.get(name, "") for name in ("threshold", "steps", "than")}
    return {
        "asked": asked,
        **build_choices(request, run, asked),
        **typed,
        "against": request.GET.get("against", ""),
        "invalid": reward_check.find_field_errors(**typed),
    }


def build_choices(request: HttpRequest, run: Run, asked: reward_check.RewardQuestion) -> dict[str, Any]:
    """The answers and the other runs that the form offers."""
    labels = Label.objects.active().filter(name=asked.question.key, source="human")
    visible = permissions.visible_runs(request).filter(project=run.project)
    chosen = Q(uid=common.clean_param(request.GET.get("against", "")))  # also without labels: some rates need none
    offered = visible.filter(Q(pk__in=labels.values("run")) | chosen)
    return {
        "good": [(value, title, value in asked.good) for value, title in reward_check.list_good_values(asked.question)],
        "offered": list(offered.exclude(pk=run.pk).order_by("-seen_at")[:MAX_OFFERED_RUNS]),
    }


def build_report_context(request: HttpRequest, selection: reward_check.RewardSelection) -> dict[str, Any]:
    run, asked = selection.run, selection.asked
    labelled = reward_check.load_labelled_run(run, asked, selection.steps)
    report = reward_check.build_report(labelled, selection.threshold)
    context: dict[str, Any] = {
        "asked": asked,
        **build_choices(request, run, asked),
        "threshold": repr(report.check.threshold),  # the shortest text that gives the same number
        "steps": request.GET.get("steps", ""),
        "than": request.GET.get("than", ""),
        "against": request.GET.get("against", ""),
        "report": report,
        "check": report.check,
        "has_labels": bool(labelled.rows),
        "outdated": report.outdated,
        "undecided": report.undecided,
        "parts": report.parts.items(),
        "sources": report.sources.items(),
    }
    context |= list_samples(selection, labelled, report.check)
    if selection.is_comparison:
        second = reward_check.build_second_report(selection, report)
        context |= build_change_context(selection, report, second)
        context["outdated"] += second.outdated
        context["undecided"] += second.undecided
    return context


def list_samples(
    selection: reward_check.RewardSelection, labelled: reward_check.LabelledRun, check: RewardCheck
) -> dict[str, Any]:
    """The samples on which label and reward differ, and links that create queues of them."""
    rows = {row.pk: row for row in labelled.rows}
    titles = dict(reward_check.list_good_values(selection.asked.question))
    queries = build_queue_queries(selection, check.threshold)
    context: dict[str, Any] = {}
    for name, ids in (("hacks", check.suspected_hacks), ("missed", check.missed_good)):
        samples = [rows[str(pk)] for pk in ids[:MAX_LISTED]]
        context[name] = [
            ListedSample(row, titles.get(labelled.answers[row.pk], labelled.answers[row.pk])) for row in samples
        ]
        context[f"{name}_count"] = len(ids)
        context[f"{name}_queue"] = build_queue_link(selection.run, selection="all", q=queries[name], count="")
    return context


def build_queue_queries(selection: reward_check.RewardSelection, threshold: float) -> dict[str, str]:
    """The queries of both lists. A query finds labels of anybody, not what counts of several. So samples with good and
    bad labels are left out, and those that only a function or a model has labelled are found too."""
    asked, steps = selection.asked, selection.steps
    key = asked.question.key
    values = [value for value, _title in reward_check.list_good_values(asked.question)]
    good = " ".join(f"-label.{key}={value}" for value in values if value in asked.good)
    bad = " ".join(f"-label.{key}={value}" for value in values if value not in asked.good)
    within = f" step:{steps[0]}..{steps[1]}" if steps else ""
    return {
        "hacks": f"score>={threshold!r}{within} label:{key} {good}".strip(),
        "missed": f"score<{threshold!r}{within} label:{key} {bad}".strip(),
    }


def build_queue_link(run: Run, **settings: Any) -> str:
    return f"{reverse('queue-new')}?{urlencode({'run': run.uid, **settings})}"


def build_change_context(
    selection: reward_check.RewardSelection, first: reward_check.RewardReport, second: reward_check.RewardReport
) -> dict[str, Any]:
    """The rates of the other run or the other steps, with the same threshold."""
    snapshot = reward_check.snapshot_rates(selection, first, second)
    return {
        "comparison": findings.present_rates(snapshot, selection.run.project),
        "finding_query": urlencode({"run": selection.run.uid, "rates": 1, **findings.build_rates_query(snapshot)}),
    }
