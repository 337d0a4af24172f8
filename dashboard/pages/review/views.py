"""Review: a quick list of samples, one of them open, and the review decisions."""

import secrets
from dataclasses import dataclass, replace
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Exists, OuterRef
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect, JsonResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.flags import parse_flag_form
from dashboard.pages.review import batch_rows
from dashboard.pages.sample import build_pane_context
from rollouts import review
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.flags import flag_samples
from rollouts.models import Run, RunQuerySet, Sample, Step
from rollouts.queues import has_items_to_answer

PANELS = {"queue": "review/batch.html", "strip": "common/strip.html", "alive": "common/last_update.html"}
MAX_OFFERED_RUNS = 50


@dataclass(frozen=True, slots=True)
class ReviewUrlState(common.UrlState):
    """`queue` is the name of the quick list. Default: that of the query if there is one, else the first. `upto`, `seed`
    and `batch` fix the samples of the list while new ones arrive; `ids` fixes them if decisions change what the query
    matches."""

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
                return value in review.QUICK_LIST_NAMES
            case "upto":
                return common.parse_step_number(value) is not None
            case "seed":
                return common.parse_integer_param(value, minimum=1, maximum=review.MAX_SEED) is not None
            case "batch":
                return common.parse_integer_param(value, minimum=1) is not None
            case _:
                return common.UrlState.is_valid(name, value)

    @property
    def selected_list(self) -> review.QuickList:
        return review.find_quick_list(self.queue or ("query" if self.q.strip() else ""))

    @property
    def is_exact(self) -> bool:
        """Whether it fixes the samples."""
        quick_list = self.selected_list
        fixed = (
            self.seed
            if quick_list.name == "random"
            else self.ids or not review.depends_on_decisions(quick_list, self.q)
        )
        return bool(self.run and self.upto and self.batch and fixed)

    def link_list(self, name: str) -> str:
        return self.link_newest(queue=name, seed="", q=self.q if name == "query" else "")

    def link_newest(self, **changes: str) -> str:
        """The link of the list with its present samples."""
        return self.link(**{"upto": "", "batch": "", "ids": "", "sel": "", **changes})


@dataclass(frozen=True, slots=True)
class ListTab:
    title: str
    about: str
    link: str
    on: bool


@dataclass(slots=True)
class BatchResult:
    """`state` is exact. `error` is the message for an invalid query, which has no batch; `newest` is the newest step
    with samples."""

    state: ReviewUrlState
    batch_request: review.BatchRequest
    newest: int
    batch: review.ReviewBatch | None = None
    error: Any = ""


@login_required
@require_safe
def review_page(request: HttpRequest) -> HttpResponseBase:
    """Without a parameter, those who have items in a review queue come to their queues. A URL that does not fix the
    samples of the list is redirected to one that does."""
    if not request.GET and has_items_to_answer(
        common.get_signed_in_user(request), permissions.visible_projects(request)
    ):
        return redirect("queues")
    state = ReviewUrlState.from_query(request.GET)
    run = permissions.run_or_404(request, state.run) if state.run else runs_with_samples(request).first()
    if run is None:
        return common.render_page_or_panel(request, "review/empty.html", {}, lambda panel: {})
    if not state.is_exact and not common.get_requested_panel(request):
        result = load_batch(request, run, state)
        if result.batch and result.state != state:
            return HttpResponseRedirect(request.path + result.state.link())
    role, status = run.project.role_of(request.user), run.status
    return common.render_page_or_panel(
        request,
        "review/page.html",
        PANELS,
        lambda panel: build_review_context(request, run, state, role, panel) | {"status": status},
        *(
            run.version,
            status,
            role,
            run.project.reasons,
            review.load_viewer_state(run, request.user.pk, common.load_blind_queues(request)),
        ),
    )


def runs_with_samples(request: HttpRequest) -> RunQuerySet:
    """The most recently updated first."""
    has_samples = Exists(Step.objects.filter(run=OuterRef("pk"), samples__gt=0))
    runs = permissions.visible_runs(request).filter(has_samples, archived_at=None)
    return runs.select_related("project").order_by("-seen_at")


def load_batch(request: HttpRequest, run: Run, state: ReviewUrlState) -> BatchResult:
    split = state.split or common.find_default_split(run)
    kind = common.find_step_kind(run, split)
    newest = review.find_newest_step(run, split, kind)
    upto = common.parse_step_number(state.upto)
    seed = common.parse_integer_param(state.seed, minimum=1) or 1 + secrets.randbelow(review.MAX_SEED)
    quick_list, ids = state.selected_list, tuple(filter(None, state.ids.split(",")))
    batch_request = review.BatchRequest(quick_list, split, kind, newest if upto is None else upto, seed, state.q, ids)
    number = common.parse_integer_param(state.batch, minimum=1)
    try:
        batch = review.load_review_batch(run, batch_request, common.get_signed_in_user(request), number)
    except InvalidInputError as error:
        return BatchResult(state, batch_request, newest, error=common.render_query_error(state.q, error))
    used_seed = str(seed) if quick_list.name == "random" else ""
    exact = replace(state, run=run.uid, upto=str(batch_request.max_step), seed=used_seed, batch=str(batch.number))
    if review.depends_on_decisions(quick_list, state.q) and not state.ids:
        exact = replace(exact, batch="1", ids=",".join(review.list_id_prefixes(batch.samples)))
    return BatchResult(exact, batch_request, newest, batch)


def build_review_context(
    request: HttpRequest, run: Run, state: ReviewUrlState, role: str, panel: str
) -> dict[str, Any]:
    result = load_batch(request, run, state)
    split, quick_list = result.batch_request.split, result.batch_request.quick_list
    step_state = common.StepUrlState.from_query(request.GET)
    lists = [*review.QUICK_LISTS, review.QUERY_LIST] if result.state.q.strip() else review.QUICK_LISTS
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
        "rows": batch_rows.build_batch_rows(run, result.batch_request, result.batch, common.load_blind_queues(request)),
        "may_review": permissions.role_allows(role, "annotator"),
        "lists": [
            ListTab(_(tab.title), _(tab.description), result.state.link_list(tab.name), tab is quick_list)
            for tab in lists
        ],
        "about": _(quick_list.description),
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
    after = batch_rows.find_next_sample(result.batch, sample.pk)
    next_link = result.state.link(sel=after) if after else result.state.link_newest()
    context |= {"selected": sample.pk, "next": request.path + next_link}
    return context | build_pane_context(request, sample, step_state, role)


def choose_sample(request: HttpRequest, run: Run, result: BatchResult) -> Sample | None:
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
    """`fine` or `cannot-judge` with a text, else a flag with label, reason and text. All mark the sample as viewed."""
    sample = permissions.sample_or_404(request, pk)
    run, user = sample.step.run, common.get_signed_in_user(request)
    permissions.require_role(request, run.project, "annotator")
    text = request.POST.get("text", "").strip()
    try:
        if request.POST.get("fine"):
            review.approve_sample(run, pk, user, text)
            message = _("Marked as OK.")
        elif request.POST.get("cannot-judge"):
            review.answer_review(run, pk, user, "cannot-judge", text)
            message = _("Saved: cannot judge.")
        else:
            action = flag_samples(run, [pk], user, **parse_flag_form(request))
            review.mark_viewed(run, [pk], user)
            message = _("Flagged: {action}.").format(action=action.description)
    except RolloutError as error:
        return common.respond_error(request, error, "sample", pk)
    return common.respond_success(request, message, "sample", pk)
