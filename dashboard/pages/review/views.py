"""Review: a queue of samples, one of them open, and the review decisions."""

import secrets
from dataclasses import dataclass, replace
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Exists, OuterRef
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect, JsonResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.flags import parse_flag_form
from dashboard.pages.review import queue_list
from dashboard.pages.sample import build_pane_context
from rollouts import review
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.flags import flag_samples
from rollouts.models import Run, RunQuerySet, Sample, Step

PANELS = {"queue": "review/queue.html", "strip": "common/strip.html", "alive": "common/last_update.html"}
MAX_OFFERED_RUNS = 50


@dataclass(frozen=True, slots=True)
class ReviewUrlState(common.UrlState):
    """`queue` defaults to the query's if there is one, else to the first. `upto`, `seed` and `batch` fix the samples of
    the queue while new ones arrive; `ids` fixes them if decisions change what the query matches."""

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
                return value in review.QUEUE_NAMES
            case "upto":
                return common.parse_step_number(value) is not None
            case "seed":
                return common.parse_integer_param(value, minimum=1, maximum=review.MAX_SEED) is not None
            case "batch":
                return common.parse_integer_param(value, minimum=1) is not None
            case _:
                return common.UrlState.is_valid(name, value)

    @property
    def selected_queue(self) -> review.ReviewQueue:
        return review.find_queue(self.queue or ("query" if self.q.strip() else ""))

    @property
    def is_exact(self) -> bool:
        """Whether it fixes the samples."""
        queue = self.selected_queue
        fixed = self.seed if queue.name == "random" else self.ids or not review.depends_on_decisions(queue, self.q)
        return bool(self.run and self.upto and self.batch and fixed)

    def link_queue(self, queue: str) -> str:
        return self.link_newest(queue=queue, seed="", q=self.q if queue == "query" else "")

    def link_newest(self, **changes: str) -> str:
        """The link of the queue with its present samples."""
        return self.link(**{"upto": "", "batch": "", "ids": "", "sel": "", **changes})


@dataclass(frozen=True, slots=True)
class QueueTab:
    title: str
    about: str
    link: str
    on: bool


@dataclass(slots=True)
class QueueResult:
    """`state` is exact. `error` is the message for an invalid query, which has no batch; `newest` is the newest step
    with samples."""

    state: ReviewUrlState
    queue_request: review.QueueRequest
    newest: int
    batch: review.ReviewBatch | None = None
    error: Any = ""


@login_required
@require_safe
def review_page(request: HttpRequest) -> HttpResponseBase:
    """A URL that does not fix the samples of the queue is redirected to one that does."""
    state = ReviewUrlState.from_query(request.GET)
    run = permissions.run_or_404(request, state.run) if state.run else runs_with_samples(request).first()
    if run is None:
        return common.render_page_or_panel(request, "review/empty.html", {}, lambda panel: {})
    if not state.is_exact and not common.get_requested_panel(request):
        result = load_queue(request, run, state)
        if result.batch and result.state != state:
            return HttpResponseRedirect(request.path + result.state.link())
    role, status = run.project.role_of(request.user), run.status
    return common.render_page_or_panel(
        request,
        "review/page.html",
        PANELS,
        lambda panel: build_review_context(request, run, state, role, panel) | {"status": status},
        *(run.version, status, role, run.project.reasons, review.load_viewer_state(run, request.user.pk)),
    )


def runs_with_samples(request: HttpRequest) -> RunQuerySet:
    """The most recently updated first."""
    has_samples = Exists(Step.objects.filter(run=OuterRef("pk"), samples__gt=0))
    runs = permissions.visible_runs(request).filter(has_samples, archived_at=None)
    return runs.select_related("project").order_by("-seen_at")


def load_queue(request: HttpRequest, run: Run, state: ReviewUrlState) -> QueueResult:
    split = state.split or common.find_default_split(run)
    kind = common.find_step_kind(run, split)
    newest = review.find_newest_step(run, split, kind)
    upto = common.parse_step_number(state.upto)
    seed = common.parse_integer_param(state.seed, minimum=1) or 1 + secrets.randbelow(review.MAX_SEED)
    queue, ids = state.selected_queue, tuple(filter(None, state.ids.split(",")))
    queue_request = review.QueueRequest(queue, split, kind, newest if upto is None else upto, seed, state.q, ids)
    number = common.parse_integer_param(state.batch, minimum=1)
    try:
        batch = review.load_review_batch(run, queue_request, common.get_signed_in_user(request), number)
    except InvalidInputError as error:
        return QueueResult(state, queue_request, newest, error=common.render_query_error(state.q, error))
    used_seed = str(seed) if queue.name == "random" else ""
    exact = replace(state, run=run.uid, upto=str(queue_request.max_step), seed=used_seed, batch=str(batch.number))
    if review.depends_on_decisions(queue, state.q) and not state.ids:
        exact = replace(exact, batch="1", ids=",".join(review.list_id_prefixes(batch.samples)))
    return QueueResult(exact, queue_request, newest, batch)


def build_review_context(
    request: HttpRequest, run: Run, state: ReviewUrlState, role: str, panel: str
) -> dict[str, Any]:
    result = load_queue(request, run, state)
    split, queue = result.queue_request.split, result.queue_request.queue
    step_state = common.StepUrlState.from_query(request.GET)
    queues = [*review.REVIEW_QUEUES, review.QUERY_QUEUE] if result.state.q.strip() else review.REVIEW_QUEUES
    context = {
        "run": run,
        "project": run.project,
        "role": role,
        "url_state": step_state,
        "split": split,
        "current": None,
        "tab": "review",
        "result": result,
        "review_state": result.state,
        "rows": queue_list.build_queue_rows(run, result.queue_request, result.batch, request.user.pk),
        "may_review": common.role_allows(role, "annotator"),
        "queues": [
            QueueTab(_(tab.title), _(tab.description), result.state.link_queue(tab.name), tab is queue)
            for tab in queues
        ],
        "about": _(queue.description),
    }
    if panel == "queue":
        return context
    context["strip"] = common.load_step_strip(run, split)
    if panel in {"strip", "alive"}:
        return context
    others = list(runs_with_samples(request).exclude(pk=run.pk)[: MAX_OFFERED_RUNS - 1])
    context |= {"runs": [run, *others], "reasons": run.project.reasons}
    sample = choose_sample(request, run, result)
    if sample is None:
        return context
    after = queue_list.find_next_sample(result.batch, sample.pk)
    next_link = result.state.link(sel=after) if after else result.state.link_newest()
    context |= {"selected": sample.pk, "next": request.path + next_link}
    return context | build_pane_context(request, sample, step_state, role)


def choose_sample(request: HttpRequest, run: Run, result: QueueResult) -> Sample | None:
    """The sample that the URL names, else the first without a decision. Raises Http404."""
    if result.state.sel:
        sample = permissions.sample_or_404(request, result.state.sel)
        if sample.step.run_id != run.pk:
            raise Http404(_("This sample belongs to another run."))
        return sample
    if not result.batch or not result.batch.samples:
        return None
    samples, decisions = result.batch.samples, result.batch.decisions
    sample = next((sample for sample in samples if sample.pk not in decisions), samples[0])
    sample.step.run = run
    return sample


@login_required
@require_POST
def mark_viewed_view(request: HttpRequest, uid: str) -> HttpResponse:
    """Marks `samples`, comma-separated ids, as viewed by the user. Read access to the run is enough."""
    run = permissions.run_or_404(request, uid)
    ids = [pk for pk in request.POST.get("samples", "").split(",") if pk]
    try:
        return JsonResponse({"seen": review.mark_viewed(run, ids, common.get_signed_in_user(request))})
    except RolloutError as error:
        return JsonResponse({"message": str(error)}, status=400)


@login_required
@require_POST
def save_decision_view(request: HttpRequest, pk: str) -> HttpResponse:
    """`fine`, `cannot-judge`, else a flag with label, reason and text. All mark the sample as viewed."""
    sample = permissions.sample_or_404(request, pk)
    run, user = sample.step.run, common.get_signed_in_user(request)
    permissions.require_role(request, run.project, "annotator")
    try:
        if request.POST.get("fine"):
            review.approve_sample(run, pk, user)
            message = _("Marked as OK.")
        elif request.POST.get("cannot-judge"):
            review.answer_review(run, pk, user, "cannot-judge")
            message = _("Saved: cannot judge.")
        else:
            action = flag_samples(run, [pk], user, **parse_flag_form(request))
            review.mark_viewed(run, [pk], user)
            message = _("Flagged: {action}.").format(action=action.description)
    except RolloutError as error:
        return common.respond_error(request, error, "sample", pk)
    return common.respond_success(request, message, "sample", pk)
