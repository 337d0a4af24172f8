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
from dashboard.pages.common import lookups, panels, sample_rows, step_strip
from dashboard.pages.common.url_state import Ask, clean
from dashboard.pages.prompt.history_chart import drawn
from dashboard.pages.prompt.url_state import Look
from rolloutdeck.protocol import wire
from rollouts.models import Run, Sample
from rollouts.prompts import history
from rollouts.prompts.history import At, Line
from rollouts.samples import bodies
from rollouts.samples.bodies import Body

PANELS = {
    "strip": "common/strip.html",
    "alive": "common/last_update.html",
    "history": "prompt/history.html",
    "lines": "prompt/lines.html",
}
BEST_OF = {
    "the step before": N_("best of the step before"),
    "the last step that solved it": N_("best of the last step that solved it"),
}


@dataclass(slots=True)
class Side:
    """One of the two answers; `why` says which it is among those of its step."""

    head: sample_rows.Row
    body: Body
    why: str

    @property
    def sample(self) -> Sample:
        return self.head.sample


@login_required
@require_safe
def prompt(request: HttpRequest, uid: str, key: str) -> HttpResponseBase:
    """`?at=` a step of this run, by default the last that has the prompt; `sel` and `vs` name two answers."""
    run = permissions.run_or_404(request, uid)
    role, status = run.project.role_of(request.user), run.status
    seen = run.project.runs.order_by("pk").values_list("pk", "version", "deleted_at")
    return panels.answer(
        request,
        "prompt/page.html",
        PANELS,
        lambda: context(request, run, clean(key)) | {"status": status, "may_flag": lookups.may(role, "annotator")},
        *(list(seen), status, role, run.project.reasons),
    )


def context(request: HttpRequest, run: Run, key: str) -> dict[str, Any]:
    look = Look.of(request.GET)
    splits = splits_of(run, key)
    split = look.split or splits[0]
    told = history.tell(run, key, split)
    track = step_strip.of(run, split)
    line = chosen_line(run, look, told.lines, split)
    shown: dict[str, Any] = {
        "run": run, "project": run.project, "ask": Ask(split=look.split), "look": look, "split": split, "key": key,
        "splits": splits, "told": told, "line": line, "strip": track, "current": None, "tab": "samples",
    }  # fmt: skip
    panel = panels.target(request)
    if panel in {"strip", "alive"}:
        return shown
    here = step_of(line, look, request, key) if line else None
    shown |= {"here": here, "drawn": drawn(told.lines, line, here, look, key), "axis": axis(told.lines)}
    if panel == "lines" or line is None or here is None:
        return shown
    return shown | reading(request, line, here, look, key, split)


def axis(lines: list[Line]) -> tuple[int, int] | None:
    """The first and the last step of all lines."""
    steps = [one.step for line in lines for one in line.steps]
    return (min(steps), max(steps)) if steps else None


def splits_of(run: Run, key: str) -> list[str]:
    """Those in which the run has the prompt, train first. 404 where it has none."""
    found = set(Sample.objects.filter(prompt_key=key, step__run=run).values_list("step__split", flat=True).distinct())
    if not found:
        raise Http404(_("This run has no such prompt."))
    return [split for split in wire.SPLITS if split in found]


def chosen_line(run: Run, look: Look, lines: list[Line], split: str) -> Line | None:
    attempt = lookups.attempt_of(run, look.attempt)
    kind = step_strip.kind_of(run, split)
    old = history.line_of(lines, run, attempt, kind) if attempt else None
    return old or history.line_of(lines, run, None, kind)


def step_of(line: Line, look: Look, request: HttpRequest, key: str) -> At:
    """The step that the address names, or that of the answer which it names, else the last. 404 where the prompt was
    not asked at it."""
    wanted = int(look.at) if look.at else None
    if wanted is None and look.sel:
        selected = answer_of(request, look.sel, key)
        wanted = selected.step.step if selected.step.run_id == line.run.pk else None
    if wanted is None:
        return line.steps[-1]
    found = next((one for one in line.steps if one.step == wanted), None)
    if found is None and look.at:
        said = _("This prompt was not asked at step {step} of {run}.")
        raise Http404(said.format(step=wanted, run=line.run.name))
    return found or line.steps[-1]


def answer_of(request: HttpRequest, pk: str, key: str) -> Sample:
    sample = permissions.sample_or_404(request, pk)
    if sample.prompt_key != key:
        raise Http404(_("That is an answer to another prompt."))
    return sample


def reading(request: HttpRequest, line: Line, here: At, look: Look, key: str, split: str) -> dict[str, Any]:
    """The answers of the step, the two that are read, and the steps around it."""
    found = history.answers(line, key, split, here.step)
    read = answer_of(request, look.sel, key) if look.sel else history.best(found) or found[0]
    beside, why = partner(request, line, here, look, key, split, [one for one in found if one != read])
    both = [one for one in (read, beside) if one is not None]
    texts, heads = bodies.read(both), sample_rows.rows(both)
    if any(one.pk not in texts for one in both):
        raise Http404(_(bodies.GONE))
    at = line.steps.index(here)
    return {
        "rows": sample_rows.rows(found),
        "more": here.answers - len(found),
        "read": Side(heads[0], texts[read.pk], "" if look.sel else _("best of its step")),
        "beside": Side(heads[1], texts[beside.pk], why) if beside else None,
        "earlier": line.steps[at - 1] if at else None,
        "later": line.steps[at + 1] if at + 1 < len(line.steps) else None,
        "view": look.view if beside else "both",
    }


def partner(
    request: HttpRequest, line: Line, here: At, look: Look, key: str, split: str, others: list[Sample]
) -> tuple[Sample | None, str]:
    """The answer beside the one that is read, and why that one."""
    if look.vs:
        return answer_of(request, look.vs, key), ""
    if earlier := history.before(line, here.step):
        return history.best(history.answers(line, key, split, earlier[0].step)), _(BEST_OF[earlier[1]])
    return history.best(others), _("best of its step")
