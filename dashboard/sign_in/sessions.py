"""Sign-in sessions: rows of the database, and signed cookies while its disk is full.

A row has its user, browser and address, so users see where they are signed in and end a session by deleting its row. A
signed cookie has no row: it lasts one hour and cannot be ended alone, only by a change of the password or by signing
out everywhere else. The first save after space is free moves it into the database.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends import db
from django.core import signing
from django.db import OperationalError
from django.utils import timezone

from rollouts.storage import is_disk_full

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from rollouts.models import SignInSession

PREFIX = "signed."
SALT = "rolloutdeck.session"
SIGNED_SECONDS = 60 * 60
MAX_COOKIE_CHARACTERS = 3500  # browsers refuse cookies above 4096 bytes
SEEN_INTERVAL = timedelta(minutes=5)  # between two writes of `seen_at`
SIGNED_IN_AT, SIGNED_AT = "signed_in_at", "signed_at"  # keys of the session's data: ISO time, seconds since 1970


class SessionStore(db.SessionStore):
    """Django's database sessions. Its key is a signed copy of the data if the row cannot be written."""

    address = ""  # of the browser, set by `SignInSessionMiddleware`
    user_agent = ""
    seen_at: datetime | None = None  # of the loaded row

    @classmethod
    def get_model_class(cls) -> type[SignInSession]:
        from rollouts.models import SignInSession  # models can be imported only after the settings

        return SignInSession

    def load(self) -> dict[str, Any]:
        key = self.session_key or ""
        if not key.startswith(PREFIX):
            row = self._get_session_from_db()  # type: ignore[attr-defined]
            self.seen_at = row.seen_at if row else None
            return dict(self.decode(row.session_data)) if row else {}
        try:
            data = dict(signing.loads(key.removeprefix(PREFIX), salt=SALT, max_age=SIGNED_SECONDS))
        except (signing.BadSignature, ValueError, TypeError):
            data = {}
        if not data or is_cut_off(data.get(SESSION_KEY), data.pop(SIGNED_AT, 0.0)):
            self._session_key = None
            return {}
        return data

    def exists(self, session_key: str) -> bool:
        return not session_key.startswith(PREFIX) and bool(super().exists(session_key))

    def create_model_instance(self, data: dict[str, Any]) -> Any:
        if SESSION_KEY in data:
            data.setdefault(SIGNED_IN_AT, timezone.now().isoformat())
        row: Any = super().create_model_instance(data)
        row.user_id = data.get(SESSION_KEY)
        row.address, row.user_agent = self.address[:64], self.user_agent[:300]
        if SIGNED_IN_AT in data:
            row.created_at = datetime.fromisoformat(data[SIGNED_IN_AT])
        return row

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
            data = self._get_session(must_create) | {SIGNED_AT: time.time()}  # type: ignore[attr-defined]
            signed = PREFIX + signing.dumps(data, salt=SALT, compress=True)
            if len(signed) > MAX_COOKIE_CHARACTERS:
                raise
            self._session_key = signed

    def delete(self, session_key: str | None = None) -> None:
        if not (session_key or self.session_key or "").startswith(PREFIX):
            super().delete(session_key)

    def record_use(self) -> None:
        """Saves the time, address and browser of a request, at most once in five minutes. A full disk is ignored."""
        now = timezone.now()
        if self.seen_at is None or now - self.seen_at < SEEN_INTERVAL or not self.session_key:
            return
        values = {"seen_at": now, "address": self.address[:64], "user_agent": self.user_agent[:300]}
        try:
            self.get_model_class().objects.filter(pk=self.session_key).update(**values)
        except OperationalError as error:
            if not is_disk_full(error):
                raise


def is_cut_off(user_pk: Any, signed_at: float) -> bool:
    """Whether the user has signed out everywhere else after a cookie was signed."""
    from rollouts.models import SessionCutoff

    moment = datetime.fromtimestamp(signed_at, UTC)
    return user_pk is not None and SessionCutoff.objects.filter(pk=user_pk, at__gte=moment).exists()


def is_signed_key(session_key: str | None) -> bool:
    """Whether the session has no row, because the disk was full."""
    return (session_key or "").startswith(PREFIX)


def get_handle(session_key: str) -> str:
    """Names a session on pages, which must not contain its key: 32 hex digits."""
    return sha256(session_key.encode()).hexdigest()[:32]


def list_sessions(user: User) -> list[SignInSession]:
    """Where the user is signed in, last used first."""
    rows = SessionStore.get_model_class().objects.filter(user=user, expire_date__gt=timezone.now())
    return list(rows.order_by("-seen_at"))


def end_session(user: User, handle: str) -> bool:
    """Signs the user out in one browser. False if the user has no such session."""
    keys = [row.pk for row in list_sessions(user) if get_handle(row.pk) == handle]
    return bool(SessionStore.get_model_class().objects.filter(user=user, pk__in=keys).delete()[0])


def end_other_sessions(user: User, current: SessionStore) -> int:
    """Signs the user out everywhere else, and returns the number of rows. The caller's session is saved again, because
    a signed one from before this moment is not valid either."""
    from rollouts.models import SessionCutoff

    SessionCutoff.objects.update_or_create(user=user, defaults={"at": timezone.now()})
    current.modified = True
    rows = SessionStore.get_model_class().objects.filter(user=user)
    return rows.exclude(pk=current.session_key or "").delete()[0]


def end_all_sessions(user: User) -> None:
    """Signs the user out everywhere, also in sessions without a row."""
    from rollouts.models import SessionCutoff

    SessionCutoff.objects.update_or_create(user=user, defaults={"at": timezone.now()})
    SessionStore.get_model_class().objects.filter(user=user).delete()
