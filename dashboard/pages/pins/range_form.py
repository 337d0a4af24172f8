"""The form that pins a range of steps and adds them to the plan."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Exists, Max, Min, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST

from dashboard import permissions
from dashboard.pages import common
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.models import Artifact, Pin, Project, Run, Step
from rollouts.pins import PER_PROMPT_ROLE
from rollouts.replay import DEFAULT_PLAN_NAME, MAX_RANGE_STEPS, PinnedRange, pin_range

MAX_PINNABLE_RUNS = 40
MAX_SKIPPED_REASONS = 3
MAX_STEP_CHARS = 15  # of a step in the form


def find_pinnable_runs(project: Project) -> list[Run]:
    """The newest runs that have files of a step that can be loaded again."""
    lost = (Artifact.State.UNSAFE, Artifact.State.GONE)
    files = Artifact.objects.filter(run=OuterRef("pk"), split="train").exclude(role="tokenizer").exclude(state__in=lost)
    return list(project.runs.filter(Exists(files), deleted_at=None).order_by("-seen_at")[:MAX_PINNABLE_RUNS])


def describe_steps_with_files(runs: list[Run]) -> list[tuple[Run, str]]:
    """Each run with its first and last step that has files, so that a wrong choice shows before the form is sent."""
    files = Artifact.objects.filter(run__in=runs, split="train").exclude(role="tokenizer")
    of_prompts = files.filter(role=PER_PROMPT_ROLE)
    trained = Step.objects.current().filter(run__in=of_prompts.values("run"), split="train")
    trained = trained.exclude(step_kind__in=of_prompts.values("step_kind"))
    bounds = load_bounds(files) | load_bounds(trained) | load_bounds(files.exclude(role=PER_PROMPT_ROLE))
    texts = []
    for run in runs:
        first, last = bounds[run.pk]
        text = _("step {first}") if first == last else _("steps {first} to {last}")
        texts.append((run, text.format(first=first, last=last)))
    return texts


def load_bounds(rows: QuerySet[Artifact] | QuerySet[Step]) -> dict[int, tuple[int, int]]:
    """{run id: (first step, last step)}."""
    found = rows.order_by().values_list("run").annotate(Min("step"), Max("step"))
    return {pk: (first, last) for pk, first, last in found}


def build_range_context(query: QueryDict, runs: list[Run]) -> dict[str, Any]:
    """The form's values. `range` in the URL opens it for a run, `from` and `to` are its first and last step, `at` the
    step that replays the first one. Unless the URL names a plan, the steps go into the plan that runs follow by
    default, which the page may not show."""
    chosen = query.get("range", "")
    uid = chosen or find_last_pinned_run(runs)
    return {
        "range_open": bool(chosen),
        "range_choices": describe_steps_with_files(runs),
        "range_run": next((run for run in runs if run.uid == uid), runs[0] if runs else None),
        "range_first": query.get("from", "")[:MAX_STEP_CHARS],
        "range_last": query.get("to", "")[:MAX_STEP_CHARS],
        "range_target": query.get("at", "")[:MAX_STEP_CHARS],
        "range_limit": MAX_RANGE_STEPS,
        "range_plan": query.get("plan", "").strip()[:80] or DEFAULT_PLAN_NAME,
    }


def find_last_pinned_run(runs: list[Run]) -> str:
    """The run with the newest pin: the order of live runs changes each second. Empty if no run has a pin."""
    pins = Pin.objects.filter(run__in=runs, removed_at=None).order_by("-pk")
    return pins.values_list("run__uid", flat=True).first() or ""


@login_required
@require_POST
def pin_range_view(request: HttpRequest) -> HttpResponse:
    run = permissions.run_or_404(request, request.POST.get("run", ""), role="maintainer")
    plan = request.POST.get("plan", "").strip()
    try:
        first = parse_step_field(request, "first", required=True)
        last = parse_step_field(request, "last", required=True)
        target = parse_step_field(request, "target", required=False)
        user = common.get_signed_in_user(request)
        kind = find_step_kind(run)
        result = pin_range(run, first or 0, last or 0, user, target=target, plan=plan, step_kind=kind)
    except RolloutError as error:
        messages.error(request, str(error))
        params = {
            "project": run.project.slug,
            "plan": plan,
            "range": run.uid,
            "from": request.POST.get("first", "")[:MAX_STEP_CHARS],
            "to": request.POST.get("last", "")[:MAX_STEP_CHARS],
            "at": request.POST.get("target", "")[:MAX_STEP_CHARS],
        }
        return common.redirect_see_other(f"{reverse('pins')}?{urlencode(params)}")
    report_result(request, result)
    params = {"project": run.project.slug} | ({"plan": plan} if plan else {})
    return common.redirect_see_other(f"{reverse('pins')}?{urlencode(params)}")


def find_step_kind(run: Run) -> str:
    """What the steps of the run's newest files count. Files of single prompts belong to training steps."""
    files = run.artifacts.filter(split="train").exclude(role="tokenizer").order_by("-pk")
    newest = files.first()
    if newest is None:
        return "global_step"
    trained = run.steps.filter(split="train").exclude(step_kind=newest.step_kind)
    return (newest.role == PER_PROMPT_ROLE and trained.find_kind()) or newest.step_kind


def parse_step_field(request: HttpRequest, name: str, *, required: bool) -> int | None:
    """Raises InvalidInputError."""
    text = request.POST.get(name, "").strip()
    if not text and not required:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_STEP_CHARS):
        raise InvalidInputError(_("Enter whole step numbers, for example 1 and 50."), name)
    return int(text)


def report_result(request: HttpRequest, result: PinnedRange) -> None:
    count = len(result.targets)
    text = ngettext("{count} step is in the plan.", "{count} steps are in the plan.", count).format(count=count)
    if result.skipped:
        skipped = ngettext(
            "{count} step was skipped: {reasons}", "{count} steps were skipped: {reasons}", len(result.skipped)
        )
        reasons = list(dict.fromkeys(result.skipped.values()))
        listed = " ".join(reasons[:MAX_SKIPPED_REASONS]) + (" …" if len(reasons) > MAX_SKIPPED_REASONS else "")
        text += " " + skipped.format(count=len(result.skipped), reasons=listed)
    messages.success(request, text)
