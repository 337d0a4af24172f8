"""Where a user is signed in: the list in the settings, and ending sessions."""

import re
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST

from dashboard import sign_in
from dashboard.pages.common import get_signed_in_user

MAX_SHOWN_SESSIONS = 50
# In this order, because most browsers also name the ones that they imitate.
BROWSERS = (
    ("Edge", r"Edg\w*/"), ("Opera", r"OPR/|Opera"), ("Firefox", r"Firefox/|FxiOS/"), ("Chrome", r"Chrom\w+/|CriOS/"),
    ("Safari", r"Safari/"), ("curl", r"curl/"),
)  # fmt: skip
SYSTEMS = (
    ("Android", r"Android"), ("iPhone", r"iPhone"), ("iPad", r"iPad"), ("Windows", r"Windows"),
    ("macOS", r"Mac OS X|Macintosh"), ("ChromeOS", r"CrOS"), ("Linux", r"Linux|X11"),
)  # fmt: skip


def build_sessions_context(request: HttpRequest) -> dict[str, Any]:
    """`sessions`: device, address, times, handle, and whether it is this one. `more_sessions`: how many are not listed.
    `signed_session`: this session has no row, because the disk was full."""
    user, current = get_signed_in_user(request), request.session.session_key or ""
    rows = sign_in.list_sessions(user)
    rows.sort(key=lambda row: row.pk != current)
    listed = [
        {
            "device": describe_device(row.user_agent), "user_agent": row.user_agent, "address": row.address,
            "created_at": row.created_at, "seen_at": row.seen_at, "handle": sign_in.get_handle(row.pk),
            "is_current": row.pk == current,
        }
        for row in rows[:MAX_SHOWN_SESSIONS]
    ]  # fmt: skip
    signed = sign_in.is_signed_key(current)
    return {
        "sessions": listed,
        "more_sessions": len(rows) - len(listed),
        "has_other_sessions": signed or len(rows) > 1,
        "signed_session": signed,
    }


def describe_device(user_agent: str) -> str:
    """ "Firefox on Linux". The User-Agent header if it names no known browser."""
    browser, system = (find_name(user_agent, names) for names in (BROWSERS, SYSTEMS))
    if browser and system:
        return _("{browser} on {system}").format(browser=browser, system=system)
    return browser or system or user_agent[:60] or _("unknown")


def find_name(user_agent: str, names: tuple[tuple[str, str], ...]) -> str:
    return next((name for name, pattern in names if re.search(pattern, user_agent)), "")


@login_required
@require_POST
def end_session_view(request: HttpRequest, handle: str) -> HttpResponse:
    """Signs the user out in one browser; also in this one."""
    user, is_current = get_signed_in_user(request), sign_in.get_handle(request.session.session_key or "") == handle
    if not sign_in.end_session(user, handle):
        raise Http404(_("You have no such session."))
    if is_current:
        request.session.flush()
        return redirect("sign-in")
    messages.success(request, _("That browser is signed out."))
    return redirect("settings")


@login_required
@require_POST
def end_other_sessions_view(request: HttpRequest) -> HttpResponse:
    count = sign_in.end_other_sessions(get_signed_in_user(request), request.session)  # type: ignore[arg-type]
    text = ngettext("{count} other session ended.", "{count} other sessions ended.", count)
    messages.success(request, text.format(count=count))
    return redirect("settings")
