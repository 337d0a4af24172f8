"""One prompt over steps, attempts and runs: its history, and two of its answers side by side."""

from dataclasses import dataclass, replace
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.prompt.history_chart import build_history_rows
from dashboard.pages.prompt.url_state import PromptUrlState
from rolloutdeck.protocol import SPLITS
from rollouts.models import Run, Sample
from rollouts.prompts import (
    PromptRunHistory,
    PromptStepStats,
    find_best_answer,
    find_comparison_step,
    find_run_history,
    load_prompt_answers,
    load_prompt_history,
)
from rollouts.samples import MISSING_BODY_MESSAGE, SampleBody, load_bodies

PANELS = {
    "strip": "common/strip.html",
    "alive": "common/last_update.html",
    "history": "prompt/history.html",
    "lines": "prompt/lines.html",
}
BEST_OF = {
    "the step before": N_("best of the previous step"),
    "the last step that solved it": N_("best of the last step that solved it"),
}


@dataclass(slots=True)
class ShownAnswer:
    """`reason` is why the page chose it; empty if the URL names it."""

    head: common.SampleRow
    body: SampleBody
    reason: str

    @property
    def sample(self) -> Sample:
        return self.head.sample


@login_required
@require_safe
def prompt_page(request: HttpRequest, uid: str, key: str) -> HttpResponseBase:
    """`?at=` is a step of this run, by default the last with the prompt; `sel` and `vs` name two answers."""
    run = permissions.run_or_404(request, uid)
    role, status = run.project.role_of(request.user), run.status
    common_context = {"status": status, "may_flag": permissions.role_allows(role, "annotator")}
    versions = run.project.runs.order_by("pk").values_list("pk", "version", "deleted_at")
    return common.render_page_or_panel(
        request,
        "prompt/page.html",
        PANELS,
        lambda panel: build_prompt_context(request, run, common.clean_param(key), panel) | common_context,
        *(list(versions), status, role, run.project.reasons, common.load_blind_queues(request).queues),
    )


def build_prompt_context(request: HttpRequest, run: Run, key: str, panel: str) -> dict[str, Any]:
    prompt_state = PromptUrlState.from_query(request.GET)
    splits = find_prompt_splits(run, key)
    split = prompt_state.split or splits[0]
    prompt_state = replace(prompt_state, split="" if split == SPLITS[0] else split)
    url_state = common.StepUrlState(split=common.build_split_param(run, split))
    prompt_history = load_prompt_history(run, key, split)
    histories = prompt_history.histories
    attempt, kind = common.attempt_or_404(run, prompt_state.attempt), common.find_step_kind(run, split)
    chosen = find_run_history(histories, run, attempt, kind) or find_run_history(histories, run, None, kind)
    context: dict[str, Any] = {
        "run": run, "project": run.project, "url_state": url_state, "prompt_state": prompt_state,
        "split": split, "key": key, "splits": splits, "prompt_history": prompt_history, "chosen": chosen,
        "strip": common.load_step_strip(run, split), "current": None, "tab": "samples",
        "all_attempts": reverse("step", args=[run.uid, "all"]) + url_state.link(q=f"prompt:{key}", attempt="all"),
    }  # fmt: skip
    if panel in {"strip", "alive"}:
        return context
    here = find_requested_prompt_step(chosen, prompt_state, request, key) if chosen else None
    steps = [stats.step for history in histories for stats in history.steps]
    context |= {
        "here": here,
        "history_rows": build_history_rows(histories, chosen, here, prompt_state, key),
        "axis": (min(steps), max(steps)) if steps else None,
    }
    if panel == "lines" or chosen is None or here is None:
        return context
    return context | build_answers_context(request, chosen, here, prompt_state, key, split)


def find_prompt_splits(run: Run, key: str) -> list[str]:
    """The splits in which the run has the prompt, train first. Raises Http404 if there are none."""
    splits = set(Sample.objects.filter(prompt_key=key, step__run=run).values_list("step__split", flat=True).distinct())
    if not splits:
        raise Http404(_("Prompt not found in this run."))
    return [split for split in SPLITS if split in splits]


def find_requested_prompt_step(
    history: PromptRunHistory, prompt_state: PromptUrlState, request: HttpRequest, key: str
) -> PromptStepStats:
    """The step that the URL names, or the step of the selected answer, else the last. Raises Http404 if the named step
    does not have the prompt."""
    requested = int(prompt_state.at) if prompt_state.at else None
    if requested is None and prompt_state.sel:
        selected = answer_or_404(request, prompt_state.sel, key)
        requested = selected.step.step if selected.step.run_id == history.run.pk else None
    step = next((stats for stats in history.steps if stats.step == requested), None)
    if step is None and prompt_state.at:
        message = _("Step {step} of {run} does not contain this prompt.")
        raise Http404(message.format(step=requested, run=history.run.name))
    return step or history.steps[-1]


def answer_or_404(request: HttpRequest, pk: str, key: str) -> Sample:
    sample = permissions.sample_or_404(request, pk)
    if sample.prompt_key != key:
        raise Http404(_("This sample answers a different prompt."))
    return sample


def build_answers_context(
    request: HttpRequest,
    history: PromptRunHistory,
    here: PromptStepStats,
    prompt_state: PromptUrlState,
    key: str,
    split: str,
) -> dict[str, Any]:
    """The answers of the step, the selected and the second one, and the steps before and after."""
    blind = common.load_blind_queues(request)
    answers = load_prompt_answers(history, key, split, here.step)
    second: Sample | None
    if prompt_state.sel:
        selected = answer_or_404(request, prompt_state.sel, key)
    else:
        selected = find_best_answer(answers) or answers[0]
    if prompt_state.vs:
        second, reason = answer_or_404(request, prompt_state.vs, key), ""
    elif comparison := find_comparison_step(history, here.step):
        earlier, kind = comparison
        second, reason = find_best_answer(load_prompt_answers(history, key, split, earlier.step)), _(BEST_OF[kind])
    else:
        second, reason = find_best_answer([answer for answer in answers if answer != selected]), _("best of its step")
    shown = [answer for answer in (selected, second) if answer is not None]
    bodies, heads = load_bodies(shown), common.build_sample_rows(shown, blind)
    if any(answer.pk not in bodies for answer in shown):
        raise Http404(_(MISSING_BODY_MESSAGE))
    at = history.steps.index(here)
    selected_reason = "" if prompt_state.sel else _("best of its step")
    return {
        "rows": common.build_sample_rows(answers, blind),
        "more": here.answers - len(answers),
        "selected": ShownAnswer(heads[0], bodies[selected.pk], selected_reason),
        "second": ShownAnswer(heads[1], bodies[second.pk], reason) if second else None,
        "earlier": history.steps[at - 1] if at else None,
        "later": history.steps[at + 1] if at + 1 < len(history.steps) else None,
        "view": prompt_state.view if second else "both",
    }
