"""Permissions of pages, API and uploads. An object that the user may not see is a 404."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest
from django.http.request import split_domain_port, validate_host
from django.utils.translation import gettext as _
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from rolloutdeck.lib import is_loopback_url
from rolloutdeck.protocol import PROJECT_HEADER, RESUME_HEADER, RUN_HEADER, SHA256_PATTERN, UID_PATTERN
from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.ingest import open_run
from rollouts.lib import parse_text
from rollouts.models import (
    Artifact,
    Finding,
    Membership,
    Project,
    ProjectQuerySet,
    Queue,
    QueueItem,
    Rescore,
    Run,
    RunQuerySet,
    Sample,
    Token,
)
from rollouts.pins import find_file_size
from rollouts.projects import create_project

if TYPE_CHECKING:
    from rest_framework.views import APIView  # which itself imports this module, see settings.REST_FRAMEWORK

# The role that a user needs for what a token of the scope may do.
ROLE_BY_SCOPE = {
    "read": Membership.Role.VIEWER,
    "annotate": Membership.Role.ANNOTATOR,
    "ingest": Membership.Role.MAINTAINER,
    "admin": Membership.Role.OWNER,
}
ROLE_RANKS = {role: rank for rank, role in enumerate(["", *Membership.Role.values])}
LEAD_ROLE = Membership.Role.MAINTAINER  # of review queues, re-scores and reward checks

LAST_PROJECT = "rolloutdeck.project"  # in the META of a request: the slug of the project that it used last

Caller = HttpRequest | Request | Token | User | AnonymousUser


class HasScope(BasePermission):
    """A view has the scope of each method in `scopes`. Default: `read` for reading, `admin` for writing."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not request.user.is_authenticated:
            return False
        default = "read" if request.method in SAFE_METHODS else "admin"
        needed = getattr(view, "scopes", {}).get(request.method, default)
        if isinstance(request.auth, Token) and not request.auth.allows(needed):
            scopes = request.auth.scopes
            raise PermissionDenied(
                f"This token has the scopes {scopes}, this needs {needed}. "
                f"Create one that has it: `rolloutdeck token create NAME --project PROJECT --scope {scopes},{needed}`."
            )
        return True


def resolve_caller(caller: Caller) -> tuple[User | AnonymousUser, Token | None]:
    """The user, and the token if the caller sent one."""
    if isinstance(caller, HttpRequest | Request):
        token = getattr(caller, "auth", None)
        return caller.user, token if isinstance(token, Token) else None
    return (caller.user, caller) if isinstance(caller, Token) else (caller, None)


def require_user(caller: Caller) -> User:
    """The signed-in user. Raises PermissionDenied if there is none."""
    user = resolve_caller(caller)[0]
    if not isinstance(user, User):
        raise PermissionDenied(_("Sign in first."))
    return user


def is_local_server() -> bool:
    """Whether only this machine reaches the server, so that it needs no token for /metrics."""
    return is_loopback_url(settings.PUBLIC_URL)


def visible_projects(caller: Caller) -> ProjectQuerySet:
    """Projects that the user may see and the token may access."""
    user, token = resolve_caller(caller)
    projects: ProjectQuerySet = Project.objects.visible_to(user)
    return projects.filter(pk=token.project_id) if token and token.project_id else projects


def visible_runs(caller: Caller) -> RunQuerySet:
    """Runs that the user may see and the token may access, without the trash."""
    user, token = resolve_caller(caller)
    runs: RunQuerySet = Run.objects.visible_to(user)
    return runs.filter(project=token.project_id) if token and token.project_id else runs


def trashed_runs(caller: Caller) -> RunQuerySet:
    """Runs in the trash of the visible projects."""
    runs: RunQuerySet = Run.objects.filter(project__in=visible_projects(caller)).exclude(deleted_at=None)
    return runs


def find_run(caller: Caller, uid: str) -> Run | None:
    """The visible run with this uid or alias. A page remembers its project as the last used one."""
    run = visible_runs(caller).select_related("project").by_uid(uid) if UID_PATTERN.match(uid) else None
    remember_last_project(caller, run.project if run else None)
    return run


def remember_last_project(caller: Caller, project: Project | None) -> None:
    """For pages that open the last used project, see `LastProjectMiddleware`."""
    if project and isinstance(caller, HttpRequest):
        caller.META[LAST_PROJECT] = project.slug


def run_or_404(caller: Caller, uid: str, *, role: str = "") -> Run:
    """The run with this uid or alias. Raises Http404, and PermissionDenied if the user's role is lower than `role`."""
    run = find_run(caller, uid)
    if not uid:
        raise Http404(_("Choose a run first."))
    if run is None:
        raise Http404(_("Run {name} not found, or you have no access to it.").format(name=repr(uid[:64])))
    if role:
        require_role(caller, run.project, role)
    return run


def sample_or_404(caller: Caller, pk: str) -> Sample:
    """The sample with this id, with its step, attempt and run. Raises Http404."""
    rows = Sample.objects.select_related("step__attempt", "step__run__project")
    sample = rows.filter(pk=pk, step__run__in=visible_runs(caller)).first() if pk.isascii() and pk.isalnum() else None
    if sample is None:
        raise Http404(_("Sample {name} not found, or you have no access to it.").format(name=repr(pk[:60])))
    return sample


def visible_queues(caller: Caller) -> QuerySet[Queue]:
    """Review queues of the visible projects, with what says who may answer them."""
    rows = Queue.objects.filter(project__in=visible_projects(caller))
    return rows.select_related("project", "rubric").prefetch_related("reviewers")


def queue_or_404(caller: Caller, pk: int) -> Queue:
    """The review queue with this id. Raises Http404."""
    return load_queue_with_role(caller, pk)[0]


def answerable_queue_or_404(caller: Caller, pk: int) -> Queue:
    """Raises Http404, and PermissionDenied if the queue does not accept the user."""
    queue, role = load_queue_with_role(caller, pk)
    if not queue.accepts_role(require_user(caller), role):
        raise PermissionDenied(_("This queue is for other reviewers. Ask a maintainer of the project to add you."))
    return queue


def load_queue_with_role(caller: Caller, pk: int) -> tuple[Queue, str]:
    """The queue, and the user's role in its project. The same rule as `visible_queues`, for one queue and with half of
    the time: reviewers ask for one at each step. Raises Http404."""
    user, token = resolve_caller(caller)
    queue: Queue | None = Queue.objects.select_related("project", "rubric").filter(pk=pk).first()
    role = queue.project.role_of(user) if queue else ""
    if queue is None or not role or (token and token.project_id not in (None, queue.project_id)):
        raise Http404(_("Queue {number} not found, or you have no access to it.").format(number=pk))
    return queue, role


def queue_item_or_404(queue: Queue, pk: int) -> QueueItem:
    """An item of the queue, with its run. Raises Http404, also if the run is in the trash."""
    item: QueueItem | None = queue.items.select_related("run").filter(pk=pk, run__deleted_at=None).first()
    if item is None:
        raise Http404(_("This queue has no such item."))
    item.queue, item.run.project = queue, queue.project
    return item


def project_or_404(caller: Caller, slug: str, *, role: str = "") -> Project:
    """The project with this slug. Raises Http404, and PermissionDenied if the user's role is lower than `role`."""
    project: Project | None = visible_projects(caller).filter(slug=slug).first() if "\x00" not in slug else None
    if not slug:
        raise Http404(_("Choose a project first."))
    if project is None:
        raise Http404(_("Project {name} not found, or you have no access to it.").format(name=repr(slug[:80])))
    remember_last_project(caller, project)
    if role:
        require_role(caller, project, role)
    return project


def visible_findings(caller: Caller) -> QuerySet[Finding]:
    """Findings of the visible projects, with project and author."""
    rows = Finding.objects.filter(project__in=visible_projects(caller))
    return rows.select_related("project", "user")


def finding_or_404(caller: Caller, pk: int, *, role: str = "") -> Finding:
    """The finding with this id. Raises Http404, and PermissionDenied if the user's role is lower than `role`."""
    finding: Finding | None = visible_findings(caller).filter(pk=pk).first() if pk < 2**63 else None
    if finding is None:
        raise Http404(_("Finding {number} not found, or you have no access to it.").format(number=pk))
    if role:
        require_role(caller, finding.project, role)
    return finding


def visible_rescores(caller: Caller) -> QuerySet[Rescore]:
    """Re-scores of the visible runs. None for a reviewer of a blind queue, since they tell what a sample is worth."""
    rows = Rescore.objects.filter(run__in=visible_runs(caller)).select_related("run__project")
    is_blind = bool(Queue.objects.blind_for(require_user(caller).pk).queues)
    return rows.none() if is_blind else rows


def rescore_or_404(caller: Caller, pk: int, *, run: Run | None = None) -> Rescore:
    """The re-score with this id, of `run` if it is given. Raises Http404."""
    rows = visible_rescores(caller) if run is None else visible_rescores(caller).filter(run=run)
    rescore: Rescore | None = rows.filter(pk=pk).first() if pk < 2**63 else None
    if rescore is None:
        raise Http404(_("Re-score {number} not found, or you have no access to it.").format(number=pk))
    return rescore


def artifact_file_or_404(run: Run, key: str, sha256: str) -> tuple[Artifact, int]:
    """The artifact and the size of its file in bytes. Raises Http404, InvalidInputError."""
    if not SHA256_PATTERN.match(key) or not SHA256_PATTERN.match(sha256):
        raise InvalidInputError("An artifact and its files are named by a sha256: 64 lower-case hex digits.")
    artifact = Artifact.objects.select_related("run").filter(run=run, key=key).first()
    size = find_file_size(artifact, sha256) if artifact else None
    if artifact is None or size is None:
        raise Http404(f"This run has no artifact {key[:12]}… with a file {sha256[:12]}…. Register it first.")
    return artifact, size


def role_allows(role: str, required: str) -> bool:
    """Whether a member with `role` ("" for no member) may do what needs the role `required`."""
    return ROLE_RANKS[role] >= ROLE_RANKS[required]


def require_role(caller: Caller, project: Project, role: str) -> None:
    """Raises PermissionDenied if the user's role in the project is lower than `role`."""
    actual = project.role_of(resolve_caller(caller)[0])
    if ROLE_RANKS[actual] < ROLE_RANKS[role]:
        message = _("This needs the {role} role in {project}; your role is {actual}.")
        raise PermissionDenied(message.format(role=role, project=project.slug, actual=actual or _("none")))


def project_for_ingest(caller: Caller, slug: str) -> Project:
    """The project of a new run. Ingest creates a project only with the local token of a user's machine, which has the
    scope admin and belongs to no project. Raises NotFoundError, PermissionDenied."""
    user, token = require_user(caller), resolve_caller(caller)[1]
    bound = token.project if token else None
    visible = None if bound else Project.objects.visible_to(user).filter(slug=slug).first()
    if bound and slug in ("", bound.slug):
        project = bound
    elif visible:
        project = visible
    elif token and not bound and token.allows("admin") and not Project.objects.filter(slug=slug).exists():
        project = create_project(slug, user)[0]
    else:
        message = f"There is no project {slug!r}, or you have no access. Create it with `rolloutdeck token create`."
        raise NotFoundError(message, "project")
    require_role(user, project, ROLE_BY_SCOPE["ingest"])
    return project


def find_or_open_run(caller: Caller, uid: str, headers: Mapping[str, str]) -> Run:
    """The run that data arrives for. A server that does not know it creates it from the client's headers.

    `headers` by lower-case name, values percent-encoded UTF-8. Raises NotFoundError, Http404, PermissionDenied,
    InvalidInputError.
    """
    run = find_run(caller, uid)
    if run is not None:
        require_role(caller, run.project, ROLE_BY_SCOPE["ingest"])
        return run
    slug, name, resume = (
        parse_text(unquote(headers.get(header.lower(), "")), header, max_chars=200)
        for header in (PROJECT_HEADER, RUN_HEADER, RESUME_HEADER)
    )
    if not name:
        raise Http404(
            f"There is no run {uid[:64]!r}, or you have no access. {PROJECT_HEADER} and {RUN_HEADER} would create it."
        )
    project = project_for_ingest(caller, slug)
    return open_run(project, uid=uid, name=name, resume=resume, owner=require_user(caller))[0]


def is_own_host(host: str) -> bool:
    """Whether a Host header names this server, see ROLLOUTDECK_PUBLIC_URL."""
    return validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS)
