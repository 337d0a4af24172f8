"""A busy or full database is explained in one sentence, to users and to API clients."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.test import Client

from rollouts.findings import findings
from rollouts.models import Project, SignInSession
from tests.dashboard.support.api_client import ApiClient

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.one_database,
    pytest.mark.skipif(connection.vendor != "sqlite", reason="SQLite says in one statement that it is full"),
]
NOTE = "n" * 9_000


@contextmanager
def set_pragma(pragma: str, value: int) -> Iterator[None]:
    with connection.cursor() as cursor:
        before = cursor.execute(f"PRAGMA {pragma}").fetchone()[0]
        cursor.execute(f"PRAGMA {pragma}={value}")
        try:
            yield
        finally:
            cursor.execute(f"PRAGMA {pragma}={before}")


def limit_database_size() -> AbstractContextManager[None]:
    """The database may not grow."""
    return set_pragma("max_page_count", 1)  # SQLite does not go below the current number of pages


@contextmanager
def lock_database() -> Iterator[None]:
    """Another connection is writing, and no statement waits for it."""
    other = sqlite3.connect(str(connection.settings_dict["NAME"]), isolation_level=None)
    with closing(other), set_pragma("busy_timeout", 0):
        other.execute("BEGIN IMMEDIATE")
        yield


@pytest.fixture
def owner_client(owner: User) -> Client:
    client = Client()
    client.force_login(owner)
    return client


def test_a_page_and_the_api_say_that_the_disk_is_full(owner_client: Client, owner: User, project: Project) -> None:
    api = ApiClient.signed_in(owner)
    finding = findings.create_finding(project, owner, title="x")
    with limit_database_size():
        response = api("POST", "findings/", {"project": "math", "title": "x", "note": NOTE})
        while response.status_code == 201:  # some pages were free
            response = api("POST", "findings/", {"project": "math", "title": "x", "note": NOTE})
        page = owner_client.post(f"/findings/{finding.pk}/edit/", {"title": "y", "note": NOTE, "version": "1"})
    assert (response.status_code, response.json()["error"]["code"]) == (507, "database_unavailable")
    assert "is full" in response.json()["error"]["message"]
    assert page.status_code == 507 and "The disk is full" in page.content.decode()
    assert api("POST", "findings/", {"project": "math", "title": "x", "note": NOTE}).status_code == 201


def test_a_page_and_the_api_say_that_the_database_is_busy(owner_client: Client, owner: User, project: Project) -> None:
    api = ApiClient.signed_in(owner)
    with lock_database():
        response = api("POST", "findings/", {"project": "math", "title": "x"})
        page = owner_client.post("/settings/math/correct/", {"correct": "score>0.5"})
        assert owner_client.get("/").status_code == 200
    assert (response.status_code, response.json()["error"]["code"]) == (503, "database_unavailable")
    assert page.status_code == 503 and "The database does not answer" in page.content.decode()
    assert owner_client.post("/settings/math/correct/", {"correct": "score>0.5"}).status_code in (302, 303)


def test_people_sign_in_on_a_full_disk_and_the_session_is_stored_later(
    owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.set_password("correct-horse")
    owner.save()
    client = Client()

    def fail(*args: object, **options: object) -> None:
        cause = sqlite3.OperationalError("database or disk is full")
        cause.sqlite_errorname = "SQLITE_FULL"  # type: ignore[misc]
        raise OperationalError("database or disk is full") from cause

    form = {"username": owner.username, "password": "correct-horse"}
    with monkeypatch.context() as patch:
        patch.setattr(SignInSession, "save", fail)
        patch.setattr(User, "save", fail)
        assert client.post("/sign-in/", form).status_code == 302
        assert client.cookies["rolloutdeck_session"].value.startswith("signed.")
        assert client.get("/settings/").status_code == 200
        forged = Client()
        forged.cookies["rolloutdeck_session"] = client.cookies["rolloutdeck_session"].value[:-2] + "xx"
        assert forged.get("/settings/").status_code == 302
    session = client.session
    session["note"] = 1
    session.save()
    assert not session.session_key.startswith("signed.") and session["_auth_user_id"] == str(owner.pk)
