"""Sign-in sessions: rows of the database, and signed cookies while its disk is full.

A signed session cannot be ended on the server, so it lasts one hour and ends with a change of the password. The first
save after space is free moves it into the database.
"""

from typing import Any

from django.contrib.sessions.backends import db
from django.core import signing
from django.db import OperationalError

from rollouts.storage import is_disk_full

PREFIX = "signed."
SALT = "rolloutdeck.session"
SIGNED_SECONDS = 60 * 60
MAX_COOKIE_CHARACTERS = 3500  # browsers refuse cookies above 4096 bytes


class SessionStore(db.SessionStore):
    """Django's database sessions. Its key is a signed copy of the data if the row cannot be written."""

    def load(self) -> dict[str, Any]:
        key = self.session_key or ""
        if not key.startswith(PREFIX):
            return super().load()
        try:
            return dict(signing.loads(key.removeprefix(PREFIX), salt=SALT, max_age=SIGNED_SECONDS))
        except (signing.BadSignature, ValueError, TypeError):
            self._session_key = None
            return {}

    def exists(self, session_key: str) -> bool:
        return not session_key.startswith(PREFIX) and bool(super().exists(session_key))

    def save(self, must_create: bool = False) -> None:
        """Raises OperationalError if neither the row can be written nor a cookie can hold the data."""
        if (self.session_key or "").startswith(PREFIX):
            self._get_session()  # type: ignore[attr-defined]  # before the key goes, from which it is loaded
            self._session_key = None  # the row is a new one
        try:
            super().save(must_create)
        except OperationalError as error:
            if not is_disk_full(error):
                raise
            data = self._get_session(must_create)  # type: ignore[attr-defined]
            signed = PREFIX + signing.dumps(data, salt=SALT, compress=True)
            if len(signed) > MAX_COOKIE_CHARACTERS:
                raise
            self._session_key = signed

    def delete(self, session_key: str | None = None) -> None:
        if not (session_key or self.session_key or "").startswith(PREFIX):
            super().delete(session_key)
