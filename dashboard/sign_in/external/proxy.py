"""Sign-in by headers of a trusted proxy: `Remote-User` and others. From anybody else they are removed.

The headers are taken out of every request before anything else sees them, in any spelling: CGI-like servers write
`Remote-User` and `Remote_User` the same way, so a client could send the other one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.utils import timezone

from dashboard.sign_in.external.access import (
    SESSION_SOURCE,
    claim_check,
    note_answer,
    require_access,
    require_no_refusal,
)
from dashboard.sign_in.external.accounts import (
    MAX_GROUPS,
    MAX_NAME_CHARS,
    PROXY_ISSUER,
    Identity,
    find_or_create_user,
)
from dashboard.sign_in_settings import ProxySettings
from rollouts.models import ExternalAccount

log = logging.getLogger(__name__)

BACKEND: Final = "django.contrib.auth.backends.ModelBackend"
SCOPE_KEY: Final = "rolloutdeck.proxy_user"
SUBJECT_KEY: Final = "external_subject"  # of a session: whom the proxy named


class ProxyUser(NamedTuple):
    """Whom the proxy names. Without a header of groups there are none."""

    name: str
    email: str
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProxyHeaders:
    """The outermost ASGI application: here `client` is still the TCP peer, not what X-Forwarded-For says."""

    app: Any

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        proxy: ProxySettings | None = settings.TRUSTED_PROXY
        if proxy and scope["type"] in ("http", "websocket"):
            scope = take_headers(scope, proxy)
        await self.app(scope, receive, send)


def take_headers(scope: dict[str, Any], proxy: ProxySettings) -> dict[str, Any]:
    """The scope without the headers, and with the user whom the proxy names."""
    found = [(name, value) for name, value in scope["headers"] if normalize(name) in proxy.headers]
    others = [(name, value) for name, value in scope["headers"] if normalize(name) not in proxy.headers]
    peer = (scope.get("client") or ("",))[0]
    user = read_proxy_user(found, proxy) if proxy.trusts(str(peer)) else None
    return {**scope, "headers": others, SCOPE_KEY: user}


def normalize(name: bytes) -> bytes:
    return name.lower().replace(b"_", b"-")


def read_proxy_user(headers: list[tuple[bytes, bytes]], proxy: ProxySettings) -> ProxyUser | None:
    """None if the proxy names nobody, or if a header is there twice: then one of them may be the client's."""
    exact = [(name.lower(), value) for name, value in headers if name.lower() in proxy.headers]
    values = dict(exact)
    if len(values) < len(headers):
        log.warning("The proxy sent a sign-in header twice, so nobody is signed in. It must replace those of clients.")
        return None
    try:
        name, email, groups = (
            values.get(header, b"").decode().replace("\0", "").strip()
            for header in (proxy.user_header, proxy.email_header, proxy.groups_header)
        )
    except UnicodeDecodeError:
        return None
    if not name or len(name) > MAX_NAME_CHARS:
        return None
    listed = [group.strip() for group in groups.split(",") if group.strip()]
    return ProxyUser(name, email[:250], tuple(listed[:MAX_GROUPS]))


def get_proxy_user(request: HttpRequest) -> ProxyUser | None:
    scope: dict[str, Any] = getattr(request, "scope", {})
    found: ProxyUser | None = scope.get(SCOPE_KEY)
    return found


def sign_in_by_proxy(request: HttpRequest, named: ProxyUser) -> None:
    """Signs in whom the proxy names, and applies the groups if they differ from those of the last request.

    Raises SignInRefusedError.
    """
    session = request.session
    is_same = request.user.is_authenticated and session.get(SUBJECT_KEY) == named.name
    identity = Identity(PROXY_ISSUER, named.name, named.name, named.email, named.groups)
    require_access(identity)
    user = find_or_create_user(identity)
    account = ExternalAccount.objects.filter(pk=user.pk).first()
    is_new = account is None or account.groups != list(named.groups)
    if is_new or claim_check(user, timezone.now()):
        lost = note_answer(user, identity).lost
        is_same = is_same and not lost
    require_no_refusal(user)
    if not is_same:
        start_session(request, user, PROXY_ISSUER)
        request.session[SUBJECT_KEY] = named.name


def start_session(request: HttpRequest, user: User, source: str) -> None:
    login(request, user, backend=BACKEND)
    request.session[SESSION_SOURCE] = source
