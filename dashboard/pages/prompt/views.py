"""One prompt over steps, attempts and runs: how it went, when it was solved, and two of its answers side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponseBase
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import (
    SampleRow,
    StepUrlState,
    attempt_or_404,
    build_sample_rows,
    clean_param,
    find_step_kind,
    load_step_strip,
    render_page_or_panel,
    role_allows,
)
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
class ReadAnswer:
    """One of the two answers; `why` says which it is among those of its step."""

    head: SampleRow
    body: SampleBody
    why: str

    @property
    def sample(self) -> Sample:
        return self.head.sample


@login_required
@require_safe
def prompt_page(request: HttpRequest, uid: str, key: str) -> HttpResponseBase:
    """`?at=` a step of this run, by default the last that has the prompt; `sel` and `vs` name two answers."""
    run = permissions.run_or_404(request, uid)
    role, status = run.project.role_of(request.user), run.status
    seen = run.project.runs.order_by("pk").values_list("pk", "version", "deleted_at")
    return render_page_or_panel(
        request,
        "prompt/page.html",
        PANELS,
        lambda panel: (
            build_prompt_context(request, run, clean_param(key), panel)
            | {"status": status, "may_flag": role_allows(role, "annotator")}
        ),
        *(list(seen), status, role, run.project.reasons),
    )


def build_prompt_context(request: HttpRequest, run: Run, key: str, panel: str) -> dict[str, Any]:
    look = PromptUrlState.from_query(request.GET)
    splits = splits_of(run, key)
    split = look.split or splits[0]
    told = load_prompt_history(run, key, split)
    track = load_step_strip(run, split)
    line = chosen_line(run, look, told.histories, split)
    shown: dict[str, Any] = {
        "run": run, "project": run.project, "url_state": StepUrlState(split=look.split),
        "look": look, "split": split, "key": key,
        "splits": splits, "told": told, "line": line, "strip": track, "current": None, "tab": "samples",
    }  # fmt: skip
    if panel in {"strip", "alive"}:
        return shown
    here = find_requested_prompt_step(line, look, request, key) if line else None
    shown |= {
        "here": here,
        "drawn": build_history_rows(told.histories, line, here, look, key),
        "axis": axis(told.histories),
    }
    if panel == "lines" or line is None or here is None:
        return shown
    return shown | build_answers_context(request, line, here, look, key, split)


def axis(lines: list[PromptRunHistory]) -> tuple[int, int] | None:
    """The first and the last step of all lines."""
    steps = [one.step for line in lines for one in line.steps]
    return (min(steps), max(steps)) if steps else None


def splits_of(run: Run, key: str) -> list[str]:
    """Those in which the run has the prompt, train first. 404 where it has none."""
    found = set(Sample.objects.filter(prompt_key=key, step__run=run).values_list("step__split", flat=True).distinct())
    if not found:
        raise Http404(_("Prompt not found in this run."))
    return [split for split in SPLITS if split in found]


def chosen_line(run: Run, look: PromptUrlState, lines: list[PromptRunHistory], split: str) -> PromptRunHistory | None:
    attempt = attempt_or_404(run, look.attempt)
    kind = find_step_kind(run, split)
    old = find_run_history(lines, run, attempt, kind) if attempt else None
    return old or find_run_history(lines, run, None, kind)


def find_requested_prompt_step(
    line: PromptRunHistory, look: PromptUrlState, request: HttpRequest, key: str
) -> PromptStepStats:
    """The step that the address names, or that of the answer which it names, else the last. 404 where the prompt was
    not asked at it."""
    wanted = int(look.at) if look.at else None
    if wanted is None and look.sel:
        selected = answer_or_404(request, look.sel, key)
        wanted = selected.step.step if selected.step.run_id == line.run.pk else None
    if wanted is None:
        return line.steps[-1]
    found = next((one for one in line.steps if one.step == wanted), None)
    if found is None and look.at:
        said = _("Step {step} of {run} does not contain this prompt.")
        raise Http404(said.format(step=wanted, run=line.run.name))
    return found or line.steps[-1]


def answer_or_404(request: HttpRequest, pk: str, key: str) -> Sample:
    sample = permissions.sample_or_404(request, pk)
    if sample.prompt_key != key:
        raise Http404(_("This sample answers a different prompt."))
    return sample


def build_answers_context(
    request: HttpRequest, line: PromptRunHistory, here: PromptStepStats, look: PromptUrlState, key: str, split: str
) -> dict[str, Any]:
    """The answers of the step, the two that are read, and the steps around it."""
    found = load_prompt_answers(line, key, split, here.step)
    read = answer_or_404(request, look.sel, key) if look.sel else find_best_answer(found) or found[0]
    beside, why = choose_second_answer(request, line, here, look, key, split, [one for one in found if one != read])
    both = [one for one in (read, beside) if one is not None]
    texts, heads = load_bodies(both), build_sample_rows(both)
    if any(one.pk not in texts for one in both):
        raise Http404(_(MISSING_BODY_MESSAGE))
    at = line.steps.index(here)
    return {
        "rows": build_sample_rows(found),
        "more": here.answers - len(found),
        "read": ReadAnswer(heads[0], texts[read.pk], "" if look.sel else _("best of its step")),
        "beside": ReadAnswer(heads[1], texts[beside.pk], why) if beside else None,
        "earlier": line.steps[at - 1] if at else None,
        "later": line.steps[at + 1] if at + 1 < len(line.steps) else None,
        "view": look.view if beside else "both",
    }


def choose_second_answer(
    request: HttpRequest,
    line: PromptRunHistory,
    here: PromptStepStats,
    look: PromptUrlState,
    key: str,
    split: str,
    others: list[Sample],
) -> tuple[Sample | None, str]:
    """The answer beside the one that is read, and why that one."""
    if look.vs:
        return answer_or_404(request, look.vs, key), ""
    if earlier := find_comparison_step(line, here.step):
        return find_best_answer(load_prompt_answers(line, key, split, earlier[0].step)), _(BEST_OF[earlier[1]])
    return find_best_answer(others), _("best of its step")
