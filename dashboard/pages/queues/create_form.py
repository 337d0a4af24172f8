"""The settings of a new queue: the form, and what it would draw."""

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.queues.agreement_table import name_kind
from rollouts import queues
from rollouts.errors import InvalidInputError
from rollouts.labels import load_rubric
from rollouts.models import Project, Queue, Run

MAX_OFFERED_RUNS = 50
MAX_STRATA = 12
SINGLE_FIELDS = (
    "name", "q", "unit", "selection", "per", "count", "seed", "num_reviewers_per_item", "reservation_minutes", "due_at",
    "gold_count",
)  # fmt: skip
FIELD_LABELS = {
    "name": gettext_lazy("Name"), "q": gettext_lazy("Query"), "runs": gettext_lazy("Runs"),
    "unit": gettext_lazy("Item"), "pairs_per_group": gettext_lazy("pairs of each group"),
    "selection": gettext_lazy("Draw"), "count": gettext_lazy("how many"), "per": gettext_lazy("drawn from"),
    "seed": gettext_lazy("seed"), "questions": gettext_lazy("Questions"),
    "num_reviewers_per_item": gettext_lazy("Answers per item"), "due_at": gettext_lazy("Due"),
    "reservation_minutes": gettext_lazy("Minutes for which an opened item is reserved"),
    "gold_count": gettext_lazy("Known items with your own answers, mixed in"),
}  # fmt: skip
SWITCHES = ("grows", "is_blind")
LISTS = ("questions", "reviewers", "roles")
PAIRS_UNIT = "pairs"  # a choice of the form: groups that are compared in pairs
DEFAULT_PAIRS = "3"


@dataclass(frozen=True, slots=True)
class DrawnPart:
    """A stratum in the preview: items drawn of those that match, and how many each stands for."""

    name: str
    matched: int
    drawn: int

    @property
    def weight(self) -> float | None:
        return self.matched / self.drawn if self.drawn else None


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def new_queue_page(request: HttpRequest) -> HttpResponse:
    """A GET shows the form, filled from the query string; the page requests the preview after it, since the draw reads
    all samples of the runs. A POST creates the queue; with `do=preview`, for browsers without JavaScript, it redirects
    to a GET with the preview: a form with the method GET would send its token in the URL."""
    form = request.POST if request.method == "POST" else request.GET
    project, run = choose_project(request, form)
    permissions.require_role(request, project, permissions.LEAD_ROLE)
    if request.method != "POST":
        if common.get_requested_panel(request) == "queue-preview":
            return render(request, "queues/preview.html", preview_draw(request, project, form, run))
        return render_form(request, project, form, run)
    if form.get("do") == "preview":
        shown = form.copy()
        shown.pop("csrfmiddlewaretoken", None)
        return common.redirect_see_other(f"{request.path}?{shown.urlencode()}")
    try:
        queue = queues.create_queue(project, common.get_signed_in_user(request), read_settings(request, project, form))
    except InvalidInputError as error:
        return render_form(request, project, form, run, error=error, status=400)
    messages.success(request, _("Queue started. Reviewers see it now."))
    return redirect("queue", queue.pk)


def choose_project(request: HttpRequest, form: QueryDict) -> tuple[Project, Run | None]:
    """The project of the run, else the named one, else the last used one that the user leads. Raises Http404."""
    if uid := form.get("run"):
        run = permissions.run_or_404(request, uid)
        return run.project, run
    if slug := form.get("project"):
        return permissions.project_or_404(request, slug), None
    return common.choose_project(request, "", permissions.LEAD_ROLE) or permissions.project_or_404(request, ""), None


def render_form(
    request: HttpRequest, project: Project, form: QueryDict, run: Run | None, *, error: Any = None, status: int = 200
) -> HttpResponse:
    offered = list_offered_runs(request, project)
    chosen = choose_runs(form, run, offered)
    rubric = load_rubric(project)
    members = project.memberships.filter(role__in=queues.REVIEW_ROLES).select_related("user")
    context: dict[str, Any] = {
        "tab": "review",
        "project": project,
        "other_projects": [] if form.get("run") else list_other_projects(request, project),
        "form": form,
        "runs": [(row, row.uid in chosen) for row in offered],
        "questions": [
            (row, name_kind(row), row.key in (form.getlist("questions") or [row.key])) for row in rubric.questions
        ],
        "rubric": rubric,
        "people": [(row.user.get_username(), row.user.get_username() in form.getlist("reviewers")) for row in members],
        "selections": label_choices(Queue.Selection, form.get("selection") or "random"),
        "units": [
            ("sample", _("a sample, with questions"), False),
            ("group", _("a group, to put in order"), form.get("unit") == "group"),
            (PAIRS_UNIT, _("a group, the better of two"), form.get("unit") == PAIRS_UNIT),
        ],
        "pairs_per_group": form.get("pairs_per_group") or DEFAULT_PAIRS,
        "strata": label_choices(Queue.Stratum, form.get("per") or "queue"),
        "error": error,
        "message": common.format_form_error(error, FIELD_LABELS) if error else "",
        "count": form.get("count", "" if form.get("name") else "100"),
        "blind": bool(form.get("is_blind")),
    }
    if error is None and form.get("do") == "preview":
        context |= preview_draw(request, project, form, run)
    elif error is None:
        context["preview_url"] = request.get_full_path()
    return render(request, "queues/new.html", context, status=status)


def list_other_projects(request: HttpRequest, project: Project) -> list[str]:
    """The names of the other projects in which the user may create queues."""
    roles = permissions.visible_projects(request).load_with_roles(request.user)
    led = [row.slug for row, role in roles.items() if permissions.role_allows(role, permissions.LEAD_ROLE)]
    return [slug for slug in led if slug != project.slug]


def list_offered_runs(request: HttpRequest, project: Project) -> list[Run]:
    runs = permissions.visible_runs(request).filter(project=project, archived_at=None).order_by("-seen_at")
    return list(runs[:MAX_OFFERED_RUNS])


def choose_runs(form: QueryDict, run: Run | None, offered: list[Run]) -> set[str]:
    """The ids of the chosen runs, by default the newest one."""
    return set(form.getlist("runs")) or ({run.uid} if run else {row.uid for row in offered[:1]})


def label_choices(choices: Any, chosen: str) -> list[tuple[str, str, bool]]:
    return [(value, name_choice(value), value == chosen) for value in choices.values]


def name_choice(value: str) -> str:
    """The name of a selection or a stratum."""
    names = {
        "all": _("all"), "random": _("random"), "worst": _("lowest score"),
        "disagreeing": _("score and length disagree"),
        "queue": _("in all"), "step": _("per step"), "source": _("per data source"),
    }  # fmt: skip
    return names[value]


def preview_draw(request: HttpRequest, project: Project, form: QueryDict, run: Run | None) -> dict[str, Any]:
    """What the queue would draw, or why nothing can be drawn; nothing if the project has no runs."""
    offered = list_offered_runs(request, project)
    if not offered:
        return {}
    settings = read_settings(request, project, form) | {"name": "preview"}
    settings.setdefault("selection", "random")
    if settings["selection"] != "all":
        settings.setdefault("count", "100")
    settings["runs"] = [permissions.run_or_404(request, uid) for uid in choose_runs(form, run, offered)]
    try:
        found = queues.preview_queue(project, common.get_signed_in_user(request), settings)
    except InvalidInputError as error:
        return {"preview_error": common.format_form_error(error, FIELD_LABELS)}
    names = {row.uid: row.name for row in settings["runs"]}
    parts = [
        DrawnPart(format_stratum(name, names), matched, found.drawn[name]) for name, matched in found.matched.items()
    ]
    reviewers = common.parse_integer_param(form.get("num_reviewers_per_item", ""), minimum=1, maximum=20) or 1
    return {
        "preview": found,
        "parts": parts[:MAX_STRATA],
        "more_parts": max(0, len(parts) - MAX_STRATA),
        "answers": len(found.items) * reviewers,
    }


def format_stratum(name: str, run_names: dict[str, str]) -> str:
    """A step as `step 3`, with its run if there are several, and with its split and kind if it is no training
    step; a data source as it is."""
    uid, *place = name.split("/")
    if uid not in run_names or not place:
        return name
    *kinds, step = place
    text = ", ".join([*kinds, _("step {step}").format(step=step)])
    return text if len(run_names) == 1 else f"{run_names[uid]}, {text}"


def read_settings(request: HttpRequest, project: Project, form: QueryDict) -> dict[str, Any]:
    """The settings for `create_queue`. Raises Http404 for a run that the user does not see."""
    values = {name: form.get(name, "").strip() for name in SINGLE_FIELDS}
    settings: dict[str, Any] = {name: value for name, value in values.items() if value}
    if settings.get("unit") == PAIRS_UNIT:
        settings |= {"unit": "group", "pairs_per_group": form.get("pairs_per_group", "").strip() or DEFAULT_PAIRS}
    settings |= {name: form.getlist(name) for name in LISTS if form.getlist(name)}
    settings |= {name: True for name in SWITCHES if form.get(name)}
    settings["runs"] = [permissions.run_or_404(request, uid) for uid in form.getlist("runs")]
    return settings
