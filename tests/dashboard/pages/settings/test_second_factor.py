"""The optional second factor: set up, sign-in with a code, recovery codes, limits and removal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pytest
import time_machine
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django_otp.oath import totp
from django_otp.plugins.otp_totp.models import TOTPDevice

from dashboard.sign_in import second_factor, throttle
from dashboard.sign_in.links import create_sign_in_link
from tests.support import builders

PASSWORD = {"username": "mina", "password": "mina-password"}


@pytest.fixture(autouse=True)
def clock() -> Iterator[Any]:
    """A clock that does not move, so that a code does not change within a test."""
    with time_machine.travel(datetime(2026, 11, 26, 12, 0, tzinfo=UTC), tick=False) as moved:
        yield moved


def get_app_code(user: User) -> str:
    return f"{totp(TOTPDevice.objects.get(user=user).bin_key):06d}"


def get_wrong_code(user: User) -> str:
    return f"{(int(get_app_code(user)) + 1) % 1_000_000:06d}"


def enable_second_factor(user: User) -> list[str]:
    """Returns the recovery codes, and uses the app's code of this half minute."""
    device = second_factor.load_setup(user, second_factor.create_setup(user))
    assert device
    return second_factor.enable_second_factor(device, f"{totp(device.bin_key):06d}")


def submit_password(client: Client, path: str = "/sign-in/", form: dict[str, str] | None = None) -> str:
    """Returns the token of the page that asks for the code."""
    page = client.post(path, form or PASSWORD).content.decode()
    found = re.search(r'name="t" value="([^"]+)"', page)
    assert found and 'name="code"' in page
    return found[1]


def submit_code(client: Client, token: str, code: str) -> Any:
    return client.post("/sign-in/code/", {"t": token, "code": code})


def find_recovery_codes(response: Any) -> list[str]:
    """The recovery codes of the page."""
    shown = re.search(r"<pre>(.*?)</pre>", response.content.decode(), re.S)
    return shown[1].split() if shown else []


def is_signed_in(client: Client) -> bool:
    return client.get("/settings/").status_code == 200


def test_the_page_shows_the_secret_and_a_code_of_the_app_enables_the_second_factor(
    reader: Client, mate: User, clock: Any
) -> None:
    response = reader.get("/second-factor/")
    page = response.content.decode()
    assert "<svg" in page and "no-store" in response.headers["Cache-Control"]
    setup = re.search(r'name="setup" value="([^"]+)"', page)
    secret = re.search(r"<pre>([A-Z2-7 ]+)</pre>", page)
    assert setup and secret
    device = second_factor.load_setup(mate, setup[1])
    assert device and second_factor.format_secret(device) == secret[1]
    wrong = reader.post("/second-factor/", {"do": "enable", "setup": setup[1], "code": "12"})
    assert wrong.status_code == 400 and secret[1] in wrong.content.decode(), "the same secret is shown again"
    assert not TOTPDevice.objects.exists()
    code = f"{totp(device.bin_key):06d}"
    done = reader.post("/second-factor/", {"do": "enable", "setup": setup[1], "code": f"{code[:3]} {code[3:]}"})
    codes = find_recovery_codes(done)
    assert len(set(codes)) == 10 and "no-store" in done.headers["Cache-Control"]
    later = reader.get("/second-factor/").content.decode()
    assert "10 recovery codes left" in later and codes[0] not in later and secret[1] not in later


def test_a_secret_for_another_person_is_refused(reader: Client, owner: User, mate: User) -> None:
    setup = second_factor.create_setup(owner)
    response = reader.post("/second-factor/", {"do": "enable", "setup": setup, "code": "123456"})
    assert response.status_code == 400 and not TOTPDevice.objects.exists()


def test_a_password_alone_does_not_sign_in(client: Client, mate: User, clock: Any) -> None:
    enable_second_factor(mate)
    clock.shift(30)
    token = submit_password(client, "/sign-in/?next=/live/")
    assert not is_signed_in(client)
    assert submit_code(client, token, get_wrong_code(mate)).status_code == 400 and not is_signed_in(client)
    clock.shift(30)
    assert submit_code(client, token, get_app_code(mate)).headers["Location"] == "/live/"
    assert is_signed_in(client)


def test_a_sign_in_link_asks_for_the_code_and_works_once(client: Client, mate: User, clock: Any) -> None:
    enable_second_factor(mate)
    clock.shift(30)
    link = create_sign_in_link(mate)
    form = {"t": unquote(link.partition("?t=")[2])}
    token = submit_password(client, "/sign-in/link/", form)
    assert not is_signed_in(client)
    assert submit_code(client, token, get_app_code(mate)).status_code == 302 and is_signed_in(client)
    clock.shift(30)
    other = Client()
    assert other.post("/sign-in/link/", form).status_code == 403
    assert submit_code(other, token, get_app_code(mate)).status_code == 403, "the first step counts for one sign-in"
    assert not is_signed_in(other)


def test_a_code_is_valid_once(client: Client, mate: User, clock: Any) -> None:
    recovery = enable_second_factor(mate)
    assert submit_code(client, submit_password(client), get_app_code(mate)).status_code == 400, (
        "it turned the factor on"
    )
    clock.shift(30)
    code = get_app_code(mate)
    assert submit_code(client, submit_password(client), code).status_code == 302
    other = Client()
    assert submit_code(other, submit_password(other), code).status_code == 400
    clock.shift(30)
    assert submit_code(other, submit_password(other), recovery[3]).status_code == 302
    third = Client()
    assert submit_code(third, submit_password(third), recovery[3]).status_code == 400
    assert second_factor.count_recovery_codes(mate) == 9


def test_codes_are_limited_like_passwords_and_a_right_password_does_not_reset_the_limit(
    mate: User, clock: Any, local_counts: None
) -> None:
    enable_second_factor(mate)
    clock.shift(30)
    client = Client()
    tokens = [submit_password(client) for _ in range(5)]  # five attempts with the right password
    statuses = [submit_code(client, token, "000000").status_code for token in tokens]
    assert statuses == [400] * 5
    clock.shift(60)
    assert submit_code(client, tokens[0], get_app_code(mate)).status_code == 429
    assert client.post("/sign-in/", PASSWORD).status_code == 429
    clock.shift(541)
    assert submit_code(client, submit_password(client), get_app_code(mate)).status_code == 302


def test_right_codes_do_not_use_up_the_attempts_of_their_address(
    reader: Client, mate: User, clock: Any, local_counts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An office behind one address signs in more often than one person may guess."""
    monkeypatch.setattr(throttle, "MAX_BY_ADDRESS", 3)
    codes = enable_second_factor(mate)
    for code in codes[:5]:
        other = Client()
        assert submit_code(other, submit_password(other), code).status_code == 302
    form = {"t": unquote(create_sign_in_link(mate).partition("?t=")[2])}
    other = Client()
    assert submit_code(other, submit_password(other, "/sign-in/link/", form), codes[5]).status_code == 302
    codes = find_recovery_codes(reader.post("/second-factor/", {"do": "codes", "code": codes[6]}))
    for _ in range(2):
        assert reader.post("/second-factor/", {"do": "remove", "code": codes[0]}).status_code == 302
        setup = second_factor.create_setup(mate)
        device = second_factor.load_setup(mate, setup)
        assert device
        form = {"do": "enable", "setup": setup, "code": f"{totp(device.bin_key):06d}"}
        codes = find_recovery_codes(reader.post("/second-factor/", form))
    guesses = [Client().post("/sign-in/", {**PASSWORD, "username": f"guess-{n}"}).status_code for n in range(4)]
    assert len(codes) == 10 and guesses == [200] * 3 + [429], "a sign-in link lowers the count by one, for the code"


def test_a_changed_password_ends_a_started_sign_in(client: Client, mate: User, clock: Any) -> None:
    enable_second_factor(mate)
    clock.shift(30)
    token = submit_password(client)
    mate.set_password("another-password")
    mate.save()
    assert submit_code(client, token, get_app_code(mate)).status_code == 403
    assert submit_code(client, "no token", get_app_code(mate)).status_code == 403


def test_a_code_is_needed_to_remove_the_second_factor_or_replace_recovery_codes(
    reader: Client, mate: User, clock: Any
) -> None:
    old = enable_second_factor(mate)
    clock.shift(30)
    assert reader.post("/second-factor/", {"do": "remove", "code": get_wrong_code(mate)}).status_code == 400
    clock.shift(30)
    new = find_recovery_codes(reader.post("/second-factor/", {"do": "codes", "code": get_app_code(mate)}))
    assert len(new) == 10 and not set(new) & set(old)
    assert reader.post("/second-factor/", {"do": "remove", "code": old[0]}).status_code == 400
    clock.shift(60)
    assert reader.post("/second-factor/", {"do": "remove", "code": new[0].upper()}).status_code == 302
    other = Client()
    assert other.post("/sign-in/", PASSWORD).status_code == 302 and is_signed_in(other)


def test_tokens_need_no_code(mate: User) -> None:
    enable_second_factor(mate)
    headers = {"Authorization": f"Bearer {builders.token(mate, 'read')}"}
    assert Client().get("/api/v1/runs/", headers=headers).status_code == 200


def test_an_administrator_resets_the_second_factor(mate: User, capsys: pytest.CaptureFixture[str]) -> None:
    enable_second_factor(mate)
    call_command("reset_second_factor", "mina")
    assert "The second factor of mina is removed." in capsys.readouterr().out
    client = Client()
    assert client.post("/sign-in/", PASSWORD).status_code == 302 and is_signed_in(client)
    call_command("reset_second_factor", "mina")
    assert "has no second factor" in capsys.readouterr().out
    with pytest.raises(CommandError, match="no account 'nobody'"):
        call_command("reset_second_factor", "nobody")
