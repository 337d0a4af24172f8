"""Sign-in with the OpenID provider, and linking an account to it."""

import logging
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core import signing
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from dashboard.pages.sign_in.views import find_landing_url, render_sign_in_error
from dashboard.sign_in.external import (
    OPENID_SOURCE,
    FinishedFlow,
    ProviderError,
    SignInEndedError,
    SignInRefusedError,
    find_or_create_user,
    finish_flow,
    get_openid_settings,
    link_account,
    list_links,
    note_answer,
    require_access,
    require_no_refusal,
    start_flow,
    start_session,
)

log = logging.getLogger(__name__)

LINK_SALT = "rolloutdeck.link-account"
LINK_SECONDS = 60 * 60


def build_external_context(user: User) -> dict[str, Any]:
    """How the user signs in, for the settings. Without `link_token` no site can link another person to the account."""
    links = list_links(user)
    can_link = settings.OPENID is not None and settings.OPENID.issuer not in [issuer for issuer, _subject in links]
    return {
        "openid": settings.OPENID,
        "may_use_password": settings.PASSWORD_SIGN_IN or user.is_superuser,
        "external_links": links,
        "external_account": getattr(user, "external", None),
        "link_token": signing.dumps(user.pk, salt=LINK_SALT) if can_link else "",
    }


@never_cache
@require_safe
def start_openid_view(request: HttpRequest) -> HttpResponse:
    """Redirects to the provider. With `link`, a token from the settings page, the account of the user is linked."""
    if settings.OPENID is None:
        raise Http404(_("This server has no OpenID provider."))
    next_url, link_user = request.GET.get("next", ""), None
    if not url_has_allowed_host_and_scheme(next_url, {request.get_host()}, request.is_secure()):
        next_url = ""
    try:
        if "link" in request.GET:
            link_user = signing.loads(request.GET["link"], salt=LINK_SALT, max_age=LINK_SECONDS)
            if link_user != request.user.pk:
                raise signing.BadSignature
        return start_flow(request, next_url, link_user)
    except signing.BadSignature:
        return render_sign_in_error(request, _("This page is out of date. Open Settings again."), 403)
    except ProviderError as error:
        return render_provider_error(request, error)


@never_cache
@require_safe
def finish_openid_view(request: HttpRequest) -> HttpResponse:
    """The provider sends the browser here."""
    if settings.OPENID is None:
        raise Http404(_("This server has no OpenID provider."))
    try:
        flow = finish_flow(request)
        return finish_link(request, flow) if flow.link_user is not None else finish_sign_in(request, flow)
    except SignInRefusedError as error:
        return render_sign_in_error(request, str(error), 403)
    except SignInEndedError:
        return render_sign_in_error(request, _("The provider does not confirm this sign-in. Try again."), 403)
    except ProviderError as error:
        return render_provider_error(request, error)


def finish_sign_in(request: HttpRequest, flow: FinishedFlow) -> HttpResponse:
    """Raises SignInRefusedError."""
    require_access(flow.identity)
    user = find_or_create_user(flow.identity)
    note_answer(user, flow.identity, flow.renewal)
    require_no_refusal(user)
    start_session(request, user, OPENID_SOURCE)
    return redirect(flow.next_url or find_landing_url(user))


def finish_link(request: HttpRequest, flow: FinishedFlow) -> HttpResponse:
    """Raises SignInRefusedError."""
    user = request.user
    if not isinstance(user, User) or user.pk != flow.link_user:
        raise SignInRefusedError(_("You are signed in as another user now. Open Settings again."))
    link_account(user, flow.identity, user)
    note_answer(user, flow.identity, flow.renewal)
    messages.success(request, _("From now on you can sign in with {name}.").format(name=get_openid_settings().name))
    return redirect("settings")


def render_provider_error(request: HttpRequest, error: ProviderError) -> HttpResponse:
    log.warning("Sign-in with the OpenID provider failed: %s", error)
    message = _("Sign-in with {name} does not work now. Try again later; an administrator finds the reason in the log.")
    return render_sign_in_error(request, message.format(name=get_openid_settings().name), 502)
