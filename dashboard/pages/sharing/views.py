"""The form that creates a shared link, its revocation, and the page that the link opens."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard import permissions
from dashboard.counters import counters
from dashboard.pages.common import get_signed_in_user
from dashboard.pages.sharing import content
from dashboard.public_urls import add_public_origin
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.lib import parse_integer
from rollouts.models import SharedLink
from rollouts.sharing import DEFAULT_DAYS, EXPIRY_DAYS, create_shared_link, open_shared_link, revoke_shared_link

MAX_MISSES = 60  # of one address
MISS_SECONDS = 600
MAX_SECRET_CHARS = 100


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
@sensitive_variables("secret")
def share_page(request: HttpRequest) -> HttpResponse:
    """`finding=`, `of=` (a comparison) or `run=` and `metric=` say what is shared. A post responds with the page: the
    secret is not stored, so the link can only be shown now."""
    params = request.POST if request.method == "POST" else request.GET
    try:
        shared = content.find_shared_object(request, clean_params(params))
    except InvalidInputError as error:
        return render(request, "sharing/page.html", {"error": str(error)}, status=400)
    permissions.require_role(request, shared.project, "owner")
    context = {"shared": shared, "expiry_days": EXPIRY_DAYS, "chosen_days": DEFAULT_DAYS}
    status = 200
    if request.method == "POST" and not shared.choices:
        try:
            days = parse_integer(params.get("days"), "days")
            link, secret = create_shared_link(
                shared.project,
                get_signed_in_user(request),
                kind=shared.kind,
                title=shared.title,
                html=content.render_shared_page(shared),
                days=DEFAULT_DAYS if days is None else days,
            )
            context |= {"link": link, "address": build_link_address(secret)}
        except RolloutError as error:
            context["error"], status = str(error), 400
    response = render(request, "sharing/page.html", context, status=status)
    response["Cache-Control"] = "no-store"
    return response


def clean_params(params: QueryDict) -> QueryDict:
    """Without NUL characters, which databases refuse."""
    cleaned = params.copy()
    for name in params:
        cleaned.setlist(name, [value.replace("\0", "") for value in params.getlist(name)])
    return cleaned


def build_link_address(secret: str) -> str:
    return add_public_origin(reverse("shared", args=[secret]))


@login_required
@require_POST
def revoke_link_view(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    project = permissions.project_or_404(request, slug, role="owner")
    link = SharedLink.objects.filter(project=project, pk=pk).first() if pk < 2**63 else None
    if link is None:
        raise Http404(_("Shared link not found in this project."))
    revoke_shared_link(link, get_signed_in_user(request))
    messages.success(request, _("The link to “{title}” was revoked.").format(title=link.title))
    return redirect(reverse("project", args=[project.slug]) + "#shared-links")


@require_safe
def shared_page(request: HttpRequest, secret: str) -> HttpResponse:
    """The snapshot of a shared link. Reads nothing but the link's own row, and ignores who is signed in."""
    link = open_shared_link(secret) if len(secret) <= MAX_SECRET_CHARS else None
    if link is None:
        return respond_not_found(request)
    return add_private_headers(HttpResponse(link.html))


def respond_not_found(request: HttpRequest) -> HttpResponse:
    """The same page for an unknown, an expired and a revoked link, and for every visitor; so it is not translated."""
    misses = counters.count(f"shared-miss-{request.META.get('REMOTE_ADDR', '')}", MISS_SECONDS)
    status = 429 if misses > MAX_MISSES else 404
    response = HttpResponse(content.render_not_found_page(), status=status)
    if status == 429:
        response["Retry-After"] = str(MISS_SECONDS)
    return add_private_headers(response)


def add_private_headers(response: HttpResponse) -> HttpResponse:
    response["Content-Security-Policy"] = content.PAGE_POLICY
    response["X-Robots-Tag"] = "noindex, nofollow, noarchive"
    response["Referrer-Policy"] = "no-referrer"
    response["Cache-Control"] = "no-store"
    response["X-Content-Type-Options"] = "nosniff"
    return response
