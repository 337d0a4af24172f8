"""Links that sign a user in once. `bootstrap` creates one too, without importing the pages."""

from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth.models import User
from django.core import signing
from django.db.models import QuerySet

SALT = "rolloutdeck.sign-in"
LINK_SECONDS = 24 * 60 * 60


def create_sign_in_link(user: User) -> str:
    """A link that works once within a day: it contains the time of the last sign-in, which its use changes."""
    secret = signing.dumps([user.pk, format_last_sign_in(user)], salt=SALT)
    return f"{settings.PUBLIC_URL}/sign-in/link/?{urlencode({'t': secret})}"


def format_last_sign_in(user: User) -> str:
    return user.last_login.isoformat() if user.last_login else ""


def find_link_user(secret: str, users: QuerySet[User]) -> User | None:
    """The user that the link signs in; None if it is invalid, expired or used."""
    try:
        pk, last_sign_in = signing.loads(secret, salt=SALT, max_age=LINK_SECONDS)
    except (signing.BadSignature, ValueError, TypeError):
        return None
    user = users.filter(pk=pk, is_active=True).first()
    return user if user and format_last_sign_in(user) == last_sign_in else None
