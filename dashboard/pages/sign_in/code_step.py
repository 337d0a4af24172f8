"""The second step of a sign-in: the form for a code, and the proof that the first step succeeded."""

from django.contrib.auth.models import User
from django.core import signing
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

STEP_SALT = "rolloutdeck.sign-in.second-step"
STEP_SECONDS = 10 * 60


def build_step_token(user: User, next_url: str, attempts: int) -> str:
    """Proves that the first step succeeded. It ends with the next sign-in and with a change of the password.
    `attempts`: how many are not counted any more after a right code, its own and that of a password."""
    return signing.dumps([user.pk, get_step_state(user), next_url, attempts], salt=STEP_SALT)


def get_step_state(user: User) -> str:
    last = user.last_login.isoformat() if user.last_login else ""
    return f"{last} {user.get_session_auth_hash()[:16]}"


def load_step_token(token: str) -> tuple[User, str, int] | None:
    """The user, the address to open after the sign-in, and the attempts; None if the first step must be repeated."""
    try:
        pk, state, next_url, attempts = signing.loads(token, salt=STEP_SALT, max_age=STEP_SECONDS)
    except (signing.BadSignature, ValueError, TypeError):
        return None
    user = User.objects.filter(pk=pk, is_active=True).first()
    return (user, str(next_url), int(attempts)) if user and get_step_state(user) == state else None


def render_code_step(request: HttpRequest, token: str, *, error: str = "", status: int = 200) -> HttpResponse:
    response = render(request, "sign_in/code.html", {"token": token, "error": error}, status=status)
    response["Cache-Control"] = "no-store"
    return response


def get_wrong_code_text() -> str:
    return _("This code is wrong or was used before. After a wrong code, wait some seconds for the next one.")
