"""Signing in by password and by link, on pages without script; what a user keeps: password, colours."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from dashboard.sign_in import throttle
from dashboard.sign_in.links import create_sign_in_link
from tests.dashboard.support.sign_in import use_sign_in_link


def test_a_password_signs_in_and_redirects_to_the_requested_page(client: Client, mate: User) -> None:
    values = {"username": "mina", "password": "mina-password"}
    response = client.post("/sign-in/?next=/live/", values)
    assert response.headers["Location"] == "/live/"
    assert client.get("/live/").status_code == 200


def test_a_wrong_password_is_explained(client: Client, mate: User) -> None:
    response = client.post("/sign-in/", {"username": "mina", "password": "no"})
    assert "Incorrect name or password." in response.content.decode()


def try_password(name: str, password: str, address: str = "10.0.0.1") -> Any:
    return Client(REMOTE_ADDR=address).post("/sign-in/", {"username": name, "password": password})


def test_a_password_can_be_tried_ten_times_in_ten_minutes(mate: User, local_counts: None) -> None:
    with time_machine.travel(timezone.now(), tick=False) as clock:
        assert {try_password(name, "no").status_code for name in ("mina", "Mina") * 5} == {200}
        refused = try_password("mina", "mina-password")
        assert refused.status_code == 429 and refused.headers["Retry-After"] == "600"
        message = refused.content.decode()
        assert (
            "Too many failed sign-in attempts" in message
            and "Incorrect name" not in message
            and 'value="mina"' in message
        )
        assert try_password("mina", "mina-password", "10.0.0.2").status_code == 302, (
            "the user is not locked out at another address"
        )
        clock.shift(601)
        assert try_password("mina", "mina-password").status_code == 302


def test_a_right_password_resets_the_count_of_failed_attempts(mate: User) -> None:
    for _ in range(3):
        assert {try_password("mina", "no").status_code for _ in range(9)} == {200}
        assert try_password("mina", "mina-password").status_code == 302


def test_neither_many_addresses_nor_many_names_get_around_the_limit(
    mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "MAX_BY_NAME", 5)
    monkeypatch.setattr(throttle, "MAX_BY_ADDRESS", 5)
    matches = [try_password("mina", "no", f"10.0.1.{n}").status_code for n in range(6)]
    assert matches == [200] * 5 + [429]
    matches = [try_password(f"guess-{n}", "no", "10.0.2.1").status_code for n in range(6)]
    assert matches == [200] * 5 + [429]


def test_other_spellings_of_a_name_and_addresses_of_one_network_are_counted_together(
    mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "MAX_BY_NAME", 3)
    spellings = ["mina", "ｍina", "mｉna", "MINA"]
    assert [try_password(name, "no", f"10.0.3.{n}").status_code for n, name in enumerate(spellings)] == [200] * 3 + [
        429
    ]
    monkeypatch.setattr(throttle, "MAX_BY_ADDRESS", 3)
    matches = [try_password(f"guess-{n}", "no", f"2001:db8:0:1::{n}").status_code for n in range(4)]
    assert matches == [200] * 3 + [429]
    assert try_password("guess", "no", "2001:db8:0:2::1").status_code == 200


@pytest.mark.parametrize("name", ["", "%00", "x" * 100_000, "%ED%A0%80", "%FF"])
def test_odd_names_are_limited_too(db: None, name: str) -> None:
    form = {"data": f"username={name}&password=no", "content_type": "application/x-www-form-urlencoded"}
    assert [Client().post("/sign-in/", **form).status_code for _ in range(11)] == [200] * 10 + [429]


def test_signing_in_does_not_redirect_to_another_site(client: Client, mate: User) -> None:
    values = {"username": "mina", "password": "mina-password"}
    assert client.post("/sign-in/?next=https://elsewhere.example/", values).headers["Location"] == "/"


def test_signing_in_does_not_redirect_to_the_sign_in_page(client: Client, mate: User) -> None:
    url = "/sign-in/?next=/sign-in/"
    assert client.post(url, {"username": "mina", "password": "mina-password"}).headers["Location"] == "/"
    assert client.get(url).headers["Location"] == "/"


def test_a_link_signs_in_once(client: Client, mate: User) -> None:
    link = create_sign_in_link(mate)
    assert use_sign_in_link(client, link).headers["Location"] == "/"
    assert client.get("/").status_code == 200
    used = use_sign_in_link(Client(), link)
    assert used.status_code == 403
    assert "This link is invalid, expired or already used" in used.content.decode()


def test_opening_a_link_does_not_use_it_up(client: Client, mate: User) -> None:
    link = create_sign_in_link(mate)
    for _ in range(2):  # as the preview of a chat or a mail filter does
        rendered = client.get(link)
        assert rendered.status_code == 200 and "signs you in as <b>mina</b>" in rendered.content.decode()
        assert rendered.headers["Cache-Control"].startswith("max-age=0")
        assert client.head(link).status_code == 200
        assert client.get("/").status_code == 302
    assert use_sign_in_link(client, link).status_code == 302


def test_a_link_is_used_only_by_its_own_page(mate: User) -> None:
    elsewhere = Client(enforce_csrf_checks=True)
    assert use_sign_in_link(elsewhere, create_sign_in_link(mate)).status_code == 403
    assert elsewhere.get("/").status_code == 302


def test_a_link_is_valid_for_one_day(client: Client, mate: User) -> None:
    link = create_sign_in_link(mate)
    with time_machine.travel(timezone.now() + timedelta(days=1, minutes=1)):
        assert client.get(link).status_code == 403


@pytest.mark.parametrize("secret", ["", "x", "a:b:c", "%00", "%ED%A0%80"])
def test_a_forged_link_signs_nobody_in(client: Client, mate: User, secret: str) -> None:
    assert client.get(f"/sign-in/link/?t={secret}").status_code == 403


def test_signing_out_needs_a_post(client: Client, mate: User) -> None:
    client.force_login(mate)
    assert client.get("/sign-out/").status_code == 405
    client.post("/sign-out/")
    assert client.get("/").status_code == 302


def test_the_theme_is_kept_in_a_cookie(client: Client, mate: User) -> None:
    client.force_login(mate)
    client.post("/theme/", {"theme": "dark", "next": "/live/"})
    assert 'data-theme="dark"' in client.get("/").content.decode()
    client.post("/theme/", {"theme": "auto"})
    assert "data-theme=" not in client.get("/").content.decode()


def test_a_new_password_keeps_the_user_signed_in(client: Client, mate: User) -> None:
    client.force_login(mate)
    client.post("/password/", {"new_password1": "a-longer-word", "new_password2": "a-longer-word"})
    assert client.get("/settings/").status_code == 200
    mate.refresh_from_db()
    assert mate.check_password("a-longer-word")
