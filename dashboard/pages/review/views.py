"""Review: a queue of samples at the left, one of them in the middle, what may be said of it at the right."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Exists, OuterRef
from django.http import Http404, HttpRequest, HttpResponseBase, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import (
    StepUrlState,
    UrlState,
    find_default_split,
    find_step_kind,
    get_requested_panel,
    get_signed_in_user,
    load_step_strip,
    parse_integer_param,
    parse_step_number,
    render_page_or_panel,
    render_query_error,
    role_allows,
)
from dashboard.pages.review import queue_list
from dashboard.pages.sample import build_pane_context
from rollouts.errors import InvalidInputError
from rollouts.models import Run, RunQuerySet, Sample, Step
from rollouts.review import (
    MAX_SEED,
    QUERY_QUEUE,
    QUEUE_NAMES,
    REVIEW_QUEUES,
    QueueRequest,
    ReviewBatch,
    ReviewQueue,
    find_newest_step,
    find_queue,
    is_changeable_queue,
    list_id_prefixes,
    load_review_batch,
    load_viewer_state,
)

PANELS = {"queue": "review/queue.html", "strip": "common/strip.html", "alive": "common/last_update.html"}
MAX_OFFERED_RUNS = 50


@dataclass(frozen=True, slots=True)
class ReviewUrlState(UrlState):
    """`queue` empty is the query's where there is one, else the first; `upto`, `seed` and `batch` say which samples it
    holds, whatever arrives meanwhile, or `ids` where judging them changes what the query finds."""

    run: str = ""
    queue: str = ""
    q: str = ""
    upto: str = ""
    seed: str = ""
    batch: str = ""
    ids: str = ""
    sel: str = ""

    @classmethod
    def is_valid(cls, name: str, value: str) -> bool:
        match name:
            case "queue":
                return value in QUEUE_NAMES
            case "upto":
                return parse_step_number(value) is not None
            case "seed":
                return parse_integer_param(value, least=1, most=MAX_SEED) is not None
            case "batch":
                return parse_integer_param(value, least=1) is not None
            case _:
                return UrlState.is_valid(name, value)

    @property
    def named(self) -> ReviewQueue:
        return find_queue(self.queue or ("query" if self.q.strip() else ""))

    @property
    def exact(self) -> bool:
        """Whether it says which samples are meant."""
        told = self.seed if self.named.name == "random" else self.ids or not is_changeable_queue(self.named, self.q)
        return bool(self.run and self.upto and self.batch and told)

    @property
    def only(self) -> tuple[str, ...]:
        return tuple(one for one in self.ids.split(",") if one)

    def other(self, queue: str) -> str:
        """The link of another queue, opened anew."""
        return self.anew(queue=queue, seed="", q=self.q if queue == "query" else "")

    def anew(self, **changes: str) -> str:
        """The link of the same queue as it is now."""
        return self.link(**{"upto": "", "batch": "", "ids": "", "sel": "", **changes})


@dataclass(frozen=True, slots=True)
class QueueTab:
    title: str
    about: str
    link: str
    on: bool


@dataclass(slots=True)
class QueueResult:
    """What an address asks for: `look` says it exactly. `error` is the sentence for a query that cannot be read, which
    has no batch; `newest` the newest step that has samples."""

    look: ReviewUrlState
    asked: QueueRequest
    newest: int
    batch: ReviewBatch | None = None
    error: Any = ""


@login_required
@require_safe
def review_page(request: HttpRequest) -> HttpResponseBase:
    """`?run=&split=&queue=&q=`; an address that leaves open which samples are meant is answered with one that does
    not."""
    look = ReviewUrlState.from_query(request.GET)
    run = permissions.run_or_404(request, look.run) if look.run else runs_with_samples(request).first()
    if run is None:
        return render_page_or_panel(request, "review/empty.html", {}, lambda panel: {})
    if not look.exact and not get_requested_panel(request):
        found = load_queue(request, run, look)
        if found.batch and found.look != look:
            return HttpResponseRedirect(request.path + found.look.link())
    role, status = run.project.role_of(request.user), run.status
    return render_page_or_panel(
        request,
        "review/page.html",
        PANELS,
        lambda panel: build_review_context(request, run, look, role, panel) | {"status": status},
        *(run.version, status, role, run.project.reasons, load_viewer_state(run, request.user.pk)),
    )


def runs_with_samples(request: HttpRequest) -> RunQuerySet:
    """Runs to choose from, those with the latest news first."""
    there = Exists(Step.objects.filter(run=OuterRef("pk"), samples__gt=0))
    runs = permissions.visible_runs(request).filter(there, archived_at=None)
    return runs.select_related("project").order_by("-seen_at")


def load_queue(request: HttpRequest, run: Run, look: ReviewUrlState) -> QueueResult:
    split = look.split or find_default_split(run)
    kind = find_step_kind(run, split)
    newest = find_newest_step(run, split, kind)
    upto = parse_step_number(look.upto)
    seed = parse_integer_param(look.seed, least=1) or 1 + secrets.randbelow(MAX_SEED)
    asked = QueueRequest(look.named, split, kind, newest if upto is None else upto, seed, look.q, look.only)
    try:
        batch = load_review_batch(run, asked, get_signed_in_user(request), parse_integer_param(look.batch, least=1))
    except InvalidInputError as problem:
        return QueueResult(look, asked, newest, error=render_query_error(look.q, problem))
    drawn = str(seed) if asked.queue.name == "random" else ""
    exact = replace(look, run=run.uid, upto=str(asked.max_step), seed=drawn, batch=str(batch.number))
    if is_changeable_queue(asked.queue, asked.q) and not look.ids:
        exact = replace(exact, batch="1", ids=",".join(list_id_prefixes(batch.samples)))
    return QueueResult(exact, asked, newest, batch)


def build_review_context(request: HttpRequest, run: Run, look: ReviewUrlState, role: str, panel: str) -> dict[str, Any]:
    found = load_queue(request, run, look)
    ask = StepUrlState.from_query(request.GET)
    frame = {
        "run": run, "project": run.project, "role": role, "url_state": ask, "split": found.asked.split, "current": None,
        "tab": "review", "found": found, "look": found.look,
        "rows": queue_list.build_queue_rows(run, found.asked, found.batch, request.user.pk),
        "may_judge": role_allows(role, "annotator"), "queues": build_queue_tabs(found.look),
        "about": _(found.asked.queue.description),
    }  # fmt: skip
    if panel == "queue":
        return frame
    frame["strip"] = load_step_strip(run, found.asked.split)
    if panel in {"strip", "alive"}:
        return frame
    sample = choose_sample(request, run, found)
    others = list(runs_with_samples(request).exclude(pk=run.pk)[: MAX_OFFERED_RUNS - 1])
    frame |= {"runs": [run, *others], "reasons": run.project.reasons}
    if sample is None:
        return frame
    after = queue_list.find_next_sample(found.batch, sample.pk)
    back = found.look.link(sel=after) if after else found.look.anew()
    return frame | {"selected": sample.pk, "next": request.path + back} | build_pane_context(request, sample, ask, role)


def build_queue_tabs(look: ReviewUrlState) -> list[QueueTab]:
    """The queues as tabs; the query's where there is a query."""
    shown = [*REVIEW_QUEUES, QUERY_QUEUE] if look.q.strip() else REVIEW_QUEUES
    return [QueueTab(_(one.title), _(one.description), look.other(one.name), one is look.named) for one in shown]


def choose_sample(request: HttpRequest, run: Run, found: QueueResult) -> Sample | None:
    """The sample that the address names, else the first that nothing was said of. Raises Http404."""
    if found.look.sel:
        sample = permissions.sample_or_404(request, found.look.sel)
        if sample.step.run_id != run.pk:
            raise Http404(_("This sample belongs to another run."))
        return sample
    if not found.batch or not found.batch.samples:
        return None
    todo = [one for one in found.batch.samples if one.pk not in found.batch.decisions]
    sample = (todo or found.batch.samples)[0]
    sample.step.run = run
    return sample
