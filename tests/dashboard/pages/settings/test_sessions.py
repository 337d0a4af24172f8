"""The list of the sessions of a user, and ending them."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
import time_machine
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core import signing
from django.test import Client
from django.utils import timezone

from dashboard.pages.settings.sessions import describe_device
from dashboard.sign_in import sessions
from rollouts.models import SignInSession

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
SAFARI = (
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 "
    "(KHTML, like Gecko) Version/18.0 Mobile/15E148 Safari/604.1"
)


def sign_in(name: str, agent: str = FIREFOX, address: str = "10.0.0.7") -> Client:
    browser = Client(HTTP_USER_AGENT=agent, REMOTE_ADDR=address)
    response = browser.post("/sign-in/", {"username": name, "password": f"{name}-password"})
    assert response.status_code == 302
    return browser


def get_handle(browser: Client) -> str:
    return sessions.get_handle(browser.cookies["rolloutdeck_session"].value)


def is_signed_in(browser: Client) -> bool:
    return browser.get("/settings/").status_code == 200


def test_the_settings_list_browser_and_address_of_each_session(mate: User) -> None:
    laptop, phone = sign_in("mina"), sign_in("mina", SAFARI, "10.9.9.9")
    page = laptop.get("/settings/").content.decode()
    rows = re.findall(r"<tr>.*?</tr>", page.partition('id="sessions"')[2].partition("</section>")[0], re.S)[1:]
    assert "Firefox on Linux" in rows[0] and "this browser" in rows[0] and "10.0.0.7" in rows[0]
    assert "Safari on iPhone" in rows[1] and "this browser" not in rows[1] and "10.9.9.9" in rows[1]
    assert "/end/" not in rows[0] and get_handle(phone) in rows[1]
    assert not any(browser.cookies["rolloutdeck_session"].value in page for browser in (laptop, phone))


def test_a_revoked_browser_is_sent_to_sign_in(mate: User) -> None:
    laptop, phone = sign_in("mina"), sign_in("mina", SAFARI)
    assert laptop.post(f"/sessions/{get_handle(phone)}/end/").status_code == 302
    response = phone.get("/settings/")
    assert response.status_code == 302 and response.headers["Location"].startswith("/sign-in/")
    assert phone.get("/api/v1/runs/").status_code == 401
    assert is_signed_in(laptop)


def test_a_session_of_another_person_is_404_like_one_that_does_not_exist(mate: User, owner: User) -> None:
    laptop, other = sign_in("mina"), Client()
    other.force_login(owner)
    foreign, made_up = laptop.post(f"/sessions/{get_handle(other)}/end/"), laptop.post(f"/sessions/{'0' * 32}/end/")
    assert foreign.status_code == made_up.status_code == 404
    assert is_signed_in(other)


def test_ending_this_session_leads_to_sign_in(mate: User) -> None:
    laptop = sign_in("mina")
    assert laptop.post(f"/sessions/{get_handle(laptop)}/end/").headers["Location"] == "/sign-in/"
    assert not is_signed_in(laptop)


def test_signing_out_everywhere_else_ends_only_the_other_sessions_of_the_user(mate: User, owner: User) -> None:
    laptop, phone, other = sign_in("mina"), sign_in("mina"), Client()
    other.force_login(owner)
    laptop.post("/sessions/end-others/")
    assert (is_signed_in(laptop), is_signed_in(phone), is_signed_in(other)) == (True, False, True)
    assert SignInSession.objects.filter(user=mate).count() == 1


def test_a_session_stored_in_a_signed_cookie_ends_with_the_others(mate: User) -> None:
    laptop, cookie_client = sign_in("mina"), sign_in("mina")
    data = {**cookie_client.session.load(), "signed_at": timezone.now().timestamp()}
    cookie_client.cookies["rolloutdeck_session"] = sessions.PREFIX + signing.dumps(
        data, salt=sessions.SALT, compress=True
    )
    assert is_signed_in(cookie_client)
    assert "stored in your browser" in cookie_client.get("/settings/").content.decode()
    laptop.post("/sessions/end-others/")
    assert (is_signed_in(laptop), is_signed_in(cookie_client)) == (True, False)


def test_a_new_password_ends_the_other_sessions(mate: User) -> None:
    laptop, phone = sign_in("mina"), sign_in("mina")
    laptop.post("/password/", {"new_password1": "a-longer-word", "new_password2": "a-longer-word"})
    assert (is_signed_in(laptop), is_signed_in(phone)) == (True, False)
    assert [row.pk for row in SignInSession.objects.all()] == [laptop.cookies["rolloutdeck_session"].value]


def test_the_last_use_is_saved_at_most_once_in_five_minutes(mate: User) -> None:
    with time_machine.travel(timezone.now(), tick=False) as clock:
        laptop = sign_in("mina")
        first = SignInSession.objects.get()
        clock.shift(240)
        laptop.get("/settings/")
        assert SignInSession.objects.get().seen_at == first.seen_at
        clock.shift(120)
        laptop.get("/settings/", REMOTE_ADDR="10.0.0.8")
        row = SignInSession.objects.get()
    assert row.seen_at == first.seen_at + timedelta(seconds=360) and row.created_at == first.created_at
    assert row.address == "10.0.0.8"


def test_the_migration_keeps_old_sessions_signed_in(mate: User) -> None:
    """The migration moves its row."""
    from importlib import import_module

    from django.apps import apps

    browser = sign_in("mina")
    row = SignInSession.objects.get()
    Session.objects.create(session_key=row.pk, session_data=row.session_data, expire_date=row.expire_date)
    SignInSession.objects.all().delete()
    assert not is_signed_in(browser)
    browser.cookies["rolloutdeck_session"] = row.pk
    migration = import_module("rollouts.migrations.0017_sign_in_sessions")
    migration.move_sessions(apps, None)
    assert is_signed_in(browser) and SignInSession.objects.get().user == mate and not Session.objects.exists()


@pytest.mark.parametrize(
    ("user_agent", "device"),
    [
        (FIREFOX, "Firefox on Linux"),
        (SAFARI, "Safari on iPhone"),
        (FIREFOX.replace("Firefox/140.0", "Chrome/140 Safari/537 Edg/140"), "Edge on Linux"),
        ("curl/8.5", "curl"),
        ("my-script", "my-script"),
        ("", "unknown"),
    ],
)
def test_a_browser_is_named_by_its_header(user_agent: str, device: str) -> None:
    assert describe_device(user_agent) == device
