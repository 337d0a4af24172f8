"""Programs sign in with a token: `Authorization: Bearer rd_…`."""

from time import time

from django.conf import settings
from django.contrib.auth.models import User
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed, Throttled
from rest_framework.request import Request

from dashboard.counters import counters
from dashboard.sign_in.external import find_token_refusal
from rollouts.models import Token


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer rd_…`. A wrong token is refused also if the request has a valid session."""

    def authenticate(self, request: Request) -> tuple[User, Token] | None:
        header = request.META.get("HTTP_AUTHORIZATION", "")
        if not header:
            return None
        token = authenticate_token(header)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


def authenticate_token(header: str) -> Token:
    """The valid token of an Authorization header. Raises AuthenticationFailed, and Throttled (429)."""
    kind, _, secret = header.partition(" ")
    if kind.lower() != "bearer" or not secret.strip():
        raise AuthenticationFailed("Send `Authorization: Bearer <token>`.")
    token = Token.find(secret.strip())
    if token is None and (expired := Token.find_expired(secret.strip())):
        raise AuthenticationFailed(
            f"The token {expired.name!r} expired on {expired.expires_at:%Y-%m-%d}. "
            "Create another one in the settings of a project."
        )
    if token is None:
        raise AuthenticationFailed("This token is unknown or revoked. Create one in the settings of a project.")
    count_token_request(token)
    if refusal := find_token_refusal(token):
        raise AuthenticationFailed(refusal)
    return token


def count_token_request(token: Token) -> None:
    """Counts the requests of a token in each minute. Raises Throttled."""
    if not settings.MAX_TOKEN_REQUESTS:
        return
    minute, second = divmod(int(time()), 60)
    if counters.count(f"token-requests:{token.pk}:{minute}", 120) > settings.MAX_TOKEN_REQUESTS:
        raise Throttled(
            60 - second, f"This token has sent more than {settings.MAX_TOKEN_REQUESTS:,} requests in this minute."
        )
