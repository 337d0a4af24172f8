"""The page of the reward check.

`question` and `good` say what people call good, `threshold` from which score a sample is rewarded, `steps` which steps
count. `against` is another run, or `than` other steps of this run, to compare with.
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages import common
from rollouts import reward_check
from rollouts.agreement import MIN_LABELLED, RateChange, RewardCheck
from rollouts.errors import InvalidInputError
from rollouts.models import Label, Run, Sample

LEAD_ROLE = "maintainer"
MAX_LISTED = 50
MAX_OFFERED_RUNS = 100
QUEUE_ITEMS = 100  # of the queue that the page offers without labels
SHOWN_RATES = {
    "wrong_of_rewarded": N_("wrong, of the rewarded"),
    "unrewarded_of_good": N_("not rewarded, of the right"),
    "good": N_("right according to people"),
    "rewarded": N_("rewarded"),
    "mean_score": N_("score, mean"),
}


@dataclass(frozen=True, slots=True)
class ListedSample:
    """A sample of a list, and what people say about it."""

    sample: Sample
    said: str


@dataclass(frozen=True, slots=True)
class ChangeLine:
    title: str
    change: RateChange
    is_share: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """What the page is asked for."""

    asked: reward_check.RewardQuestion
    threshold: float | None
    steps: tuple[int, int] | None
    than: tuple[int, int] | None


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
        "may_queue": common.role_allows(run.project.role_of(request.user), LEAD_ROLE),
        "queue_link": build_queue_link(run, selection="random", count=QUEUE_ITEMS),
        "questions": reward_check.list_reward_questions(run.project),
    }  # fmt: skip
    try:
        if context["questions"]:
            context |= build_report_context(request, run, read_choice(request, run))
    except InvalidInputError as error:
        return render(request, "reward_check/page.html", context | {"error": str(error)}, status=400)
    return render(request, "reward_check/page.html", context)


def read_choice(request: HttpRequest, run: Run) -> Choice:
    """Raises InvalidInputError."""
    name = common.clean_param(request.GET.get("question", ""))
    good = [common.clean_param(value) for value in request.GET.getlist("good")]
    if request.GET.get("asked", name) != name:  # the answers were those of another question
        good = []
    asked = reward_check.parse_reward_question(run.project, name, good)
    steps, than = (parse_steps(request.GET.get(field, ""), field) for field in ("steps", "than"))
    return Choice(asked, parse_threshold(request.GET.get("threshold", "")), steps, than)


def parse_threshold(text: str) -> float | None:
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e300:
        raise InvalidInputError(_("The threshold must be a number."), "threshold")
    return value


def parse_steps(text: str, field: str) -> tuple[int, int] | None:
    """`41-80`, or one step; None if it is empty."""
    if not text.strip():
        return None
    first, _dash, last = text.replace("–", "-").strip().partition("-")
    numbers = [common.parse_step_number(part.strip()) for part in (first, last or first)]
    if numbers[0] is None or numbers[1] is None or numbers[0] > numbers[1]:
        raise InvalidInputError(_("Give steps as 41-80."), field)
    return numbers[0], numbers[1]


def build_report_context(request: HttpRequest, run: Run, choice: Choice) -> dict[str, Any]:
    asked = choice.asked
    labelled = reward_check.load_labelled_run(run, asked, choice.steps)
    report = reward_check.build_report(labelled, choice.threshold)
    labels = Label.objects.active().filter(name=asked.question.key, source="human")
    offered = permissions.visible_runs(request).filter(project=run.project, pk__in=labels.values("run"))
    context: dict[str, Any] = {
        "asked": asked,
        "threshold": f"{report.check.threshold:.6g}",
        "good": [(value, title, value in asked.good) for value, title in reward_check.list_good_values(asked.question)],
        "steps": request.GET.get("steps", ""),
        "than": request.GET.get("than", ""),
        "against": request.GET.get("against", ""),
        "offered": list(offered.exclude(pk=run.pk).order_by("-seen_at")[:MAX_OFFERED_RUNS]),
        "report": report,
        "check": report.check,
        "has_labels": bool(labelled.rows),
        "parts": report.parts.items(),
        "sources": report.sources.items(),
    }
    context |= list_samples(run, labelled, report.check, asked)
    return context | compare(request, run, choice, report)


def list_samples(
    run: Run, labelled: reward_check.LabelledRun, check: RewardCheck, asked: reward_check.RewardQuestion
) -> dict[str, Any]:
    """The samples on which label and reward differ, and links that create queues of them."""
    rows = {row.pk: row for row in labelled.rows}
    titles = dict(reward_check.list_good_values(asked.question))
    key, good = asked.question.key, sorted(asked.good)
    is_good = " or ".join(f"label.{key}={value}" for value in good)
    queries = {
        "hacks": f"score>={check.threshold:.12g} label:{key} " + " ".join(f"-label.{key}={value}" for value in good),
        "missed": f"score<{check.threshold:.12g} ({is_good})"
        if len(good) > 1
        else f"score<{check.threshold:.12g} {is_good}",
    }
    context: dict[str, Any] = {}
    for name, ids in (("hacks", check.suspected_hacks), ("missed", check.missed_good)):
        samples = [rows[str(pk)] for pk in ids[:MAX_LISTED]]
        context[name] = [
            ListedSample(row, titles.get(labelled.answers[row.pk], labelled.answers[row.pk])) for row in samples
        ]
        context[f"{name}_count"] = len(ids)
        context[f"{name}_queue"] = build_queue_link(run, selection="all", q=queries[name], count="")
    return context


def build_queue_link(run: Run, **settings: Any) -> str:
    return f"{reverse('queue-new')}?{urlencode({'run': run.uid, **settings})}"


def compare(request: HttpRequest, run: Run, choice: Choice, report: reward_check.RewardReport) -> dict[str, Any]:
    """The change to the other run, with the same threshold, or to the other steps."""
    uid = common.clean_param(request.GET.get("against", ""))
    other = permissions.visible_runs(request).filter(uid=uid).exclude(pk=run.pk).first() if uid else None
    if other is None and choice.than is None:
        return {}
    target, steps = other or run, choice.than or choice.steps
    labelled = reward_check.load_labelled_run(target, choice.asked, steps)
    second = reward_check.build_report(labelled, report.check.threshold)
    changes = reward_check.compare_reports(report, second)
    lines = [ChangeLine(_(title), changes[name], name != "mean_score") for name, title in SHOWN_RATES.items()]
    return {"other": other, "second": second.check, "changes": lines}
