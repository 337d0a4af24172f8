"""Who may do what, at the door of pages, API and uploads. What you may not see does not exist: 404."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.http.request import split_domain_port, validate_host
from django.utils.translation import gettext as _
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from rolloutdeck.protocol import PROJECT_HEADER, RESUME_HEADER, RUN_HEADER, UID_PATTERN
from rollouts.errors import NotFoundError
from rollouts.ingest import open_run
from rollouts.lib import parse_text
from rollouts.models import Membership, Project, ProjectQuerySet, Run, RunQuerySet, Sample, Token
from rollouts.projects import create_project

if TYPE_CHECKING:
    from rest_framework.views import APIView  # which itself imports this module, see settings.REST_FRAMEWORK

# What a person of a role may do is what a token of these scopes may do.
ROLE_BY_SCOPE = {
    "read": Membership.Role.VIEWER,
    "annotate": Membership.Role.ANNOTATOR,
    "ingest": Membership.Role.MAINTAINER,
    "admin": Membership.Role.OWNER,
}
ROLE_RANKS = {role: rank for rank, role in enumerate(["", *Membership.Role.values])}

Caller = HttpRequest | Request | User | AnonymousUser


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer rd_…`. A wrong token is refused even where a browser session would do."""

    def authenticate(self, request: Request) -> tuple[User, Token] | None:
        header = request.META.get("HTTP_AUTHORIZATION", "")
        if not header:
            return None
        token = authenticate_token(header)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


def authenticate_token(header: str) -> Token:
    """The live token of an Authorization header. Raises AuthenticationFailed."""
    kind, _, secret = header.partition(" ")
    if kind.lower() != "bearer" or not secret.strip():
        raise AuthenticationFailed("Send `Authorization: Bearer <token>`.")
    token = Token.find(secret.strip())
    if token is None:
        raise AuthenticationFailed(
            "This token is unknown, expired or revoked; make one with `rolloutdeck token create`."
        )
    return token


class HasScope(BasePermission):
    """A view names the scope of each method in `scopes`; reading needs `read` unless it says otherwise."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not request.user.is_authenticated:
            return False
        if isinstance(request.auth, Token) and not request.auth.allows(get_required_scope(request, view)):
            held, needed = request.auth.scopes, get_required_scope(request, view)
            raise PermissionDenied(
                f"This token has the scopes {held}, this needs {needed}; "
                f"`rolloutdeck token create NAME --scope {held},{needed}` makes one that has it."
            )
        return True


def get_required_scope(request: Request, view: APIView) -> str:
    wanted = getattr(view, "scopes", {}).get(request.method)
    if wanted is None:
        wanted = "read" if request.method in ("GET", "HEAD", "OPTIONS") else "admin"
    return str(wanted)


def resolve_caller(who: Caller) -> tuple[User | AnonymousUser, Token | None]:
    """The person, and the token where one speaks for them."""
    if isinstance(who, HttpRequest | Request):
        token = getattr(who, "auth", None)
        return who.user, token if isinstance(token, Token) else None
    return who, None


def require_user(who: Caller) -> User:
    """Whoever asks, where `HasScope` has let only people in. Raises PermissionDenied for nobody."""
    user = resolve_caller(who)[0]
    if not isinstance(user, User):
        raise PermissionDenied(_("Sign in first."))
    return user


def visible_projects(who: Caller) -> ProjectQuerySet:
    """Projects that the person may see, less those that the token is not for."""
    user, token = resolve_caller(who)
    found: ProjectQuerySet = Project.objects.visible_to(user)
    return found.filter(pk=token.project_id) if token and token.project_id else found


def visible_runs(who: Caller) -> RunQuerySet:
    """`Run.objects.visible_to`, less the projects that the token is not for."""
    user, token = resolve_caller(who)
    found: RunQuerySet = Run.objects.visible_to(user)
    return found.filter(project=token.project_id) if token and token.project_id else found


def trashed_runs(who: Caller) -> RunQuerySet:
    """Runs in the bin of the projects that the person may see."""
    found: RunQuerySet = Run.objects.filter(project__in=visible_projects(who)).exclude(deleted_at=None)
    return found


def run_or_404(who: Caller, uid: str, *, scope: str = "read") -> Run:
    """The run with this uid or alias. Raises Http404 when it is not theirs to see, PermissionDenied when it is theirs
    to see but not to change."""
    run = visible_runs(who).select_related("project").by_uid(uid) if UID_PATTERN.match(uid) else None
    if run is None:
        raise Http404(_("Run {name} not found, or you have no access to it.").format(name=repr(uid[:64])))
    if scope != "read":  # who sees it may read it
        require_role(who, run.project, ROLE_BY_SCOPE[scope])
    return run


def sample_or_404(who: Caller, pk: str) -> Sample:
    """The sample with this id, with its step, attempt and run. Raises Http404 when it is not theirs to see."""
    rows = Sample.objects.select_related("step__attempt", "step__run__project")
    sample = rows.filter(pk=pk, step__run__in=visible_runs(who)).first() if pk.isascii() and pk.isalnum() else None
    if sample is None:
        raise Http404(_("Sample {name} not found, or you have no access to it.").format(name=repr(pk[:60])))
    return sample


def project_or_404(who: Caller, slug: str, *, scope: str = "read") -> Project:
    """As `run_or_404`, for a project's slug."""
    project: Project | None = visible_projects(who).filter(slug=slug).first() if "\x00" not in slug else None
    if project is None:
        raise Http404(_("Project {name} not found, or you have no access to it.").format(name=repr(slug[:80])))
    if scope != "read":
        require_role(who, project, ROLE_BY_SCOPE[scope])
    return project


def require_role(who: Caller, project: Project, role: str) -> None:
    """Raises PermissionDenied when the person's role in the project is below `role`."""
    has = project.role_of(resolve_caller(who)[0])
    if ROLE_RANKS[has] < ROLE_RANKS[role]:
        said = _("This needs the {role} role in {project}; your role is {has}.")
        raise PermissionDenied(said.format(role=role, project=project.slug, has=has or _("none")))


def project_for_ingest(user: User, token: Token | None, slug: str) -> Project:
    """Where a new run goes. Ingest never creates a project, except with the token of a person's own machine, which has
    the scope admin and is bound to no project. Raises NotThere, PermissionDenied."""
    bound = token.project if token else None
    if bound and slug in ("", bound.slug):
        require_role(user, bound, ROLE_BY_SCOPE["ingest"])
        return bound
    project = None if bound else Project.objects.visible_to(user).filter(slug=slug).first()
    if (
        project is None
        and token
        and not bound
        and token.allows("admin")
        and not Project.objects.filter(slug=slug).exists()
    ):
        project = create_project(slug, user)[0]
    if project is None:
        raise NotFoundError(
            f"There is no project {slug!r} that you may write to; make it with `rolloutdeck token create`.", "project"
        )
    require_role(user, project, ROLE_BY_SCOPE["ingest"])
    return project


def find_or_open_run(user: User, token: Token | None, uid: str, headers: Mapping[str, str]) -> Run:
    """The run that data arrives for; a server that never saw it makes it from the client's headers.

    `headers` by lower-case name, values percent-encoded UTF-8. Raises NotThere, Http404, PermissionDenied, BadInput.
    """
    seen = Run.objects.visible_to(user)
    if token and token.project_id:
        seen = seen.filter(project=token.project_id)
    run = seen.select_related("project").by_uid(uid) if UID_PATTERN.match(uid) else None
    if run is not None:
        require_role(user, run.project, ROLE_BY_SCOPE["ingest"])
        return run
    told = {
        name: parse_text(unquote(headers.get(name.lower(), "")), name, most=200)
        for name in (PROJECT_HEADER, RUN_HEADER, RESUME_HEADER)
    }
    if not told[RUN_HEADER]:
        raise Http404(
            f"There is no run {uid[:64]!r} that you may see; {PROJECT_HEADER} and {RUN_HEADER} would make it."
        )
    project = project_for_ingest(user, token, told[PROJECT_HEADER])
    name, resume = told[RUN_HEADER], told[RESUME_HEADER]
    return open_run(project, uid=uid, name=name, resume=resume, owner=user)[0]


def find_or_open_requested_run(request: Request, uid: str) -> Run:
    """Returns the run that an API client writes to. Creates it from the client's headers if this server has none."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    return find_or_open_run(require_user(request), resolve_caller(request)[1], uid, headers)


def is_own_host(host: str) -> bool:
    """Whether a Host header names this server, see ROLLOUTDECK_PUBLIC_URL."""
    return validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS)
