"""The page of the second factor: set up, new recovery codes and removal."""

from typing import Any

import segno
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from dashboard import sign_in
from dashboard.pages.common import get_signed_in_user
from dashboard.pages.sign_in import get_wrong_code_text
from dashboard.sign_in import count_and_allow_login, get_client_address, record_login_success


@never_cache
@sensitive_post_parameters()
@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def second_factor_page(request: HttpRequest) -> HttpResponse:
    """A post has `do`: `enable` with `setup` and `code`; `codes` or `remove` with `code`."""
    user = get_signed_in_user(request)
    if request.method != "POST":
        return render_page(request, user)
    if not count_and_allow_login(get_throttled_name(user), get_client_address(request)):
        return render_page(request, user, error=_("Too many codes. Try again in ten minutes."), status=429)
    do, code = request.POST.get("do", ""), request.POST.get("code", "")
    if do == "enable" and not sign_in.has_second_factor(user):
        return enable_from_form(request, user, code)
    if do in ("codes", "remove"):
        if not sign_in.verify_code(user, code):
            return render_page(request, user, error=get_wrong_code_text(), status=400)
        record_login_success(get_throttled_name(user), get_client_address(request))
    if do == "codes":
        return render_page(request, user, codes=sign_in.replace_recovery_codes(user))
    if do == "remove" and sign_in.remove_second_factor(user):
        messages.success(request, _("The second factor is removed."))
        return redirect("settings")
    return redirect("second-factor")


def enable_from_form(request: HttpRequest, user: User, code: str) -> HttpResponse:
    setup = request.POST.get("setup", "")
    device = sign_in.load_setup(user, setup)
    if device is None:
        return render_page(request, user, error=_("This form is too old. Scan the new code."), status=400)
    codes = sign_in.enable_second_factor(device, code)
    if not codes:
        return render_page(
            request, user, error=_("This is not the app's code. Try the next one."), setup=setup, status=400
        )
    record_login_success(get_throttled_name(user), get_client_address(request))
    return render_page(request, user, codes=codes)


def get_throttled_name(user: User) -> str:
    """The name under which codes in the settings are counted."""
    return f"second factor {user.pk}"


def render_page(
    request: HttpRequest,
    user: User,
    *,
    error: str = "",
    codes: list[str] | None = None,
    setup: str = "",
    status: int = 200,
) -> HttpResponse:
    enabled = sign_in.has_second_factor(user)
    context: dict[str, Any] = {"tab": "settings", "enabled": enabled, "error": error, "codes": codes}
    if enabled:
        context["codes_left"] = sign_in.count_recovery_codes(user)
    else:
        setup = setup or sign_in.create_setup(user)
        device = sign_in.load_setup(user, setup)
        assert device is not None
        context |= {
            "setup": setup,
            "secret": sign_in.format_secret(device),
            "qr": draw_qr_code(device.config_url),
        }
    response = render(request, "settings/second_factor.html", context, status=status)
    response["Cache-Control"] = "no-store"
    return response


def draw_qr_code(text: str) -> str:
    """An SVG, black on white in each theme, since many cameras do not read the inverse."""
    svg = segno.make(text, error="m", micro=False).svg_inline(
        scale=4, border=4, dark="#000", light="#fff", omitsize=True
    )
    return mark_safe(svg)
