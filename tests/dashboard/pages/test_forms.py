"""What people change on pages, without script: signing in, flags, projects, members, tokens, colours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import pytest
import time_machine
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from dashboard.pages.settings import throttle
from dashboard.pages.settings.sign_in import create_sign_in_link
from rollouts.models import AuditEntry, Flag, Project, Run, Sample, Token
from tests.rollouts.support.push import generation, indexed, lines
from tests.support import builders


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    indexed(run, lines(generation(response="a"), generation(response="b", score=0.0)))
    return run


@pytest.fixture
def sample(run: Run) -> Sample:
    return Sample.objects.filter(step__run=run).order_by("score")[0]


def flag(client: Client, sample: Sample, **fields: str) -> int:
    return client.post(f"/samples/{sample.pk}/flags/", {"next": f"/samples/{sample.pk}/", **fields}).status_code


# --- signing in -------------------------------------------------------------------------------------------------------


def test_a_password_signs_in_and_leads_to_where_one_wanted_to_go(client: Client, mate: User) -> None:
    values = {"username": "mina", "password": "mina-password"}
    response = client.post("/sign-in/?next=/live/", values)
    assert response.headers["Location"] == "/live/"
    assert client.get("/live/").status_code == 200


def test_a_wrong_password_is_one_sentence(client: Client, mate: User) -> None:
    response = client.post("/sign-in/", {"username": "mina", "password": "no"})
    assert "Incorrect name or password." in response.content.decode()


@pytest.fixture
def forgiven() -> Iterator[None]:
    """Tries of other tests are forgotten, and those of this one after it."""
    cache.clear()
    yield
    cache.clear()


def tries(name: str, password: str, address: str = "10.0.0.1") -> Any:
    return Client(REMOTE_ADDR=address).post("/sign-in/", {"username": name, "password": password})


@pytest.mark.usefixtures("forgiven")
def test_a_password_is_tried_ten_times_in_ten_minutes(mate: User) -> None:
    with time_machine.travel(timezone.now(), tick=False) as clock:
        assert {tries(name, "no").status_code for name in ("mina", "Mina") * 5} == {200}
        refused = tries("mina", "mina-password")
        assert refused.status_code == 429 and refused.headers["Retry-After"] == "600"
        message = refused.content.decode()
        assert (
            "Too many failed sign-in attempts" in message
            and "Incorrect name" not in message
            and 'value="mina"' in message
        )
        assert tries("mina", "mina-password", "10.0.0.2").status_code == 302, "she herself is not locked out elsewhere"
        clock.shift(601)
        assert tries("mina", "mina-password").status_code == 302


@pytest.mark.usefixtures("forgiven")
def test_a_right_password_forgives_what_was_mistyped(mate: User) -> None:
    for _ in range(3):
        assert {tries("mina", "no").status_code for _ in range(9)} == {200}
        assert tries("mina", "mina-password").status_code == 302


@pytest.mark.usefixtures("forgiven")
def test_neither_many_addresses_nor_many_names_get_around_the_limit(
    mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "MAX_BY_NAME", 5)
    monkeypatch.setattr(throttle, "MAX_BY_ADDRESS", 5)
    matches = [tries("mina", "no", f"10.0.1.{n}").status_code for n in range(6)]
    assert matches == [200] * 5 + [429]
    matches = [tries(f"guess-{n}", "no", "10.0.2.1").status_code for n in range(6)]
    assert matches == [200] * 5 + [429]


@pytest.mark.usefixtures("forgiven")
@pytest.mark.parametrize("name", ["", "%00", "x" * 100_000, "%ED%A0%80", "%FF"])
def test_odd_names_are_counted_as_any(db: None, name: str) -> None:
    form = {"data": f"username={name}&password=no", "content_type": "application/x-www-form-urlencoded"}
    assert [Client().post("/sign-in/", **form).status_code for _ in range(11)] == [200] * 10 + [429]


def test_nobody_is_led_to_another_site_by_signing_in(client: Client, mate: User) -> None:
    values = {"username": "mina", "password": "mina-password"}
    assert client.post("/sign-in/?next=https://elsewhere.example/", values).headers["Location"] == "/"


def by_link(client: Client, link: str) -> Any:
    """Presses the button of the page that the link opens."""
    address, _, secret = link.partition("?t=")
    return client.post(address, {"t": unquote(secret)})


def test_a_link_signs_in_once(client: Client, mate: User) -> None:
    link = create_sign_in_link(mate)
    assert by_link(client, link).headers["Location"] == "/"
    assert client.get("/").status_code == 200
    used = by_link(Client(), link)
    assert used.status_code == 403
    assert "This link is invalid, expired or already used" in used.content.decode()


def test_a_link_that_is_only_looked_at_is_not_used_up(client: Client, mate: User) -> None:
    link = create_sign_in_link(mate)
    for _ in range(2):  # a chat's preview, a mail filter
        rendered = client.get(link)
        assert rendered.status_code == 200 and "signs you in as <b>mina</b>" in rendered.content.decode()
        assert rendered.headers["Cache-Control"].startswith("max-age=0")
        assert client.head(link).status_code == 200
        assert client.get("/").status_code == 302
    assert by_link(client, link).status_code == 302


def test_a_link_is_opened_by_its_own_page_only(mate: User) -> None:
    elsewhere = Client(enforce_csrf_checks=True)
    assert by_link(elsewhere, create_sign_in_link(mate)).status_code == 403
    assert elsewhere.get("/").status_code == 302


def test_a_link_is_for_one_day(client: Client, mate: User) -> None:
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


# --- flags ------------------------------------------------------------------------------------------------------------


def test_a_flag_is_seen_on_sample_row_and_step(client: Client, mate: User, run: Run, sample: Sample) -> None:
    client.force_login(mate)
    assert flag(client, sample, reason="reward-hack", text="copies the question") == 303
    page = client.get(f"/runs/{run.uid}/steps/1/").content.decode()
    assert "copies the question" in page
    assert 'title="1 flag"' in page
    assert re.search(r"flagged</dt><dd><b>1</b>", page)


def test_a_flag_is_withdrawn_by_its_person_and_stays_in_the_records(
    client: Client, mate: User, run: Run, sample: Sample
) -> None:
    client.force_login(mate)
    flag(client, sample, reason="other")
    one = Flag.objects.get()
    assert client.post(f"/flags/{one.pk}/withdraw/").status_code == 303
    one.refresh_from_db()
    assert one.withdrawn_at
    assert AuditEntry.objects.filter(verb="flag.withdraw").exists()


def test_a_wrong_reason_is_a_sentence_not_a_failure(client: Client, mate: User, run: Run, sample: Sample) -> None:
    client.force_login(mate)
    response = client.post(f"/samples/{sample.pk}/flags/", {"reason": "none-such"}, follow=True)
    assert "must be one of" in response.content.decode()
    assert not Flag.objects.exists()


def test_a_message_is_shown_once_and_not_kept_by_the_browser(client: Client, mate: User, sample: Sample) -> None:
    client.force_login(mate)
    page = f"/samples/{sample.pk}/"
    stored = {"If-None-Match": client.get(page).headers["ETag"]}
    flag(client, sample, reason="no such reason")
    result = client.get(page, headers=stored)
    assert 'class="banner error"' in result.content.decode()
    assert "ETag" not in result.headers
    assert client.get(page, headers=stored).status_code == 304


def test_a_viewer_sees_why_the_button_is_off_and_cannot_flag(
    client: Client, project: Project, run: Run, sample: Sample
) -> None:
    client.force_login(builders.member(project, "vera", "viewer"))
    page = client.get(f"/samples/{sample.pk}/").content.decode()
    assert "You need the annotator role to flag" in page
    assert "data-flag-form" not in page
    assert flag(client, sample, reason="other") == 403


def test_a_stranger_can_neither_flag_nor_withdraw(
    client: Client, mate: User, stranger: User, run: Run, sample: Sample
) -> None:
    client.force_login(mate)
    flag(client, sample, reason="other")
    client.force_login(stranger)
    assert flag(client, sample, reason="other") == 404
    assert client.post(f"/flags/{Flag.objects.get().pk}/withdraw/").status_code == 404


def test_an_annotator_does_not_withdraw_anothers_flag(
    client: Client, owner: User, mate: User, run: Run, sample: Sample
) -> None:
    client.force_login(owner)
    flag(client, sample, reason="other")
    client.force_login(mate)
    assert client.post(f"/flags/{Flag.objects.get().pk}/withdraw/").status_code == 403


def test_a_form_leads_back_to_our_own_pages_only(client: Client, mate: User, run: Run, sample: Sample) -> None:
    client.force_login(mate)
    response = client.post(f"/samples/{sample.pk}/flags/", {"reason": "other", "next": "//elsewhere.example/"})
    assert response.headers["Location"] == f"/samples/{sample.pk}/"


def test_a_form_of_another_site_is_refused_in_a_sentence(mate: User, run: Run, sample: Sample) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(mate)
    response = strict.post(f"/samples/{sample.pk}/flags/", {"reason": "other"})
    assert response.status_code == 403
    assert "Reload the page and try again" in response.content.decode()


# --- settings ---------------------------------------------------------------------------------------------------------


def test_a_project_is_made_and_its_maker_owns_it(client: Client, stranger: User) -> None:
    client.force_login(stranger)
    assert client.post("/settings/", {"slug": "code"}).headers["Location"] == "/settings/code/"
    assert Project.objects.get(slug="code").role_of(stranger) == "owner"


def test_a_project_of_others_is_not_entered_by_its_name(client: Client, project: Project, stranger: User) -> None:
    client.force_login(stranger)
    client.post("/settings/", {"slug": project.slug})
    assert project.role_of(stranger) == ""


def test_an_owner_invites_a_new_person_by_a_link(client: Client, project: Project, owner: User) -> None:
    client.force_login(owner)
    page = client.post("/settings/math/members/", {"user": "nora", "role": "annotator"}).content.decode()
    link = re.search(r"<pre>(http[^<]*)</pre>", page)
    assert link
    new = Client()
    by_link(new, link[1])
    assert new.get("/settings/math/").status_code == 200


def test_a_link_that_was_lost_is_made_again_by_an_owner(client: Client, project: Project, owner: User) -> None:
    client.force_login(owner)
    client.post("/settings/math/members/", {"user": "nora", "role": "annotator"})
    page = client.post("/settings/math/members/link/", {"user": "nora"}).content.decode()
    link = re.search(r"<pre>(http[^<]*)</pre>", page)
    assert link
    new = Client()
    by_link(new, link[1])
    assert new.get("/settings/math/").status_code == 200
    assert (
        "<pre>http" not in client.post("/settings/math/members/link/", {"user": "nora"}, follow=True).content.decode()
    )


def test_a_link_into_projects_of_others_is_made_by_an_admin_only(
    client: Client, project: Project, owner: User, mate: User, stranger: User
) -> None:
    other = Project.objects.create(slug="code")
    other.memberships.create(user=mate, role="viewer")
    client.force_login(owner)
    answer = client.post("/settings/math/members/link/", {"user": mate.username}, follow=True).content.decode()
    assert "<pre>http" not in answer and "Only a server admin can create a sign-in link for mina" in answer
    client.force_login(User.objects.create_superuser("root"))
    mate.last_login = timezone.now()
    mate.save()
    assert "<pre>http" in client.post("/settings/math/members/link/", {"user": mate.username}).content.decode()
    assert client.post("/settings/math/members/link/", {"user": stranger.username}).status_code == 404


def test_roles_are_changed_by_owners_only(client: Client, project: Project, owner: User, mate: User) -> None:
    client.force_login(mate)
    assert client.post("/settings/math/members/", {"user": "mina", "role": "owner"}).status_code == 403
    client.force_login(owner)
    client.post("/settings/math/members/", {"user": "mina", "role": "viewer"})
    assert project.role_of(mate) == "viewer"
    client.post("/settings/math/members/", {"user": "mina", "role": ""})
    assert project.role_of(mate) == ""


def test_the_last_owner_stays(client: Client, project: Project, owner: User) -> None:
    client.force_login(owner)
    response = client.post("/settings/math/members/", {"user": "olga", "role": "viewer"}, follow=True)
    assert "last owner" in response.content.decode()


def test_no_account_is_made_for_a_role_that_does_not_exist(client: Client, project: Project, owner: User) -> None:
    client.force_login(owner)
    client.post("/settings/math/members/", {"user": "nora", "role": "queen"})
    assert not User.objects.filter(username="nora").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a b", "A name can contain only letters"),
        ("a\0b", "A name can contain only letters"),
        ("n" * 151, "A name can have at most 150 characters"),
    ],
)
def test_a_name_that_no_account_can_have_is_refused_in_a_sentence(
    client: Client, project: Project, owner: User, name: str, said: str
) -> None:
    client.force_login(owner)
    response = client.post("/settings/math/members/", {"user": name, "role": "viewer"}, follow=True)
    assert said in response.content.decode()
    assert not User.objects.exclude(pk=owner.pk).exists()


def test_a_token_is_shown_once(client: Client, project: Project, owner: User) -> None:
    client.force_login(owner)
    page = client.post("/settings/math/tokens/", {"name": "cluster", "scopes": ["ingest", "read"]}).content.decode()
    secret = re.search(r"\brd_[\w-]+", page)
    assert secret
    assert Token.find(secret[0])
    assert secret[0] not in client.get("/settings/math/").content.decode()
    client.post(f"/settings/math/tokens/{Token.objects.get().pk}/revoke/")
    assert Token.find(secret[0]) is None


def test_a_token_of_the_page_expires_after_the_days_that_one_names(
    client: Client, project: Project, owner: User
) -> None:
    client.force_login(owner)
    with time_machine.travel(timezone.now(), tick=False) as clock:
        form = {"name": "cluster", "scopes": ["read"], "days": "20"}
        page = client.post("/settings/math/tokens/", form).content.decode()
        secret = re.search(r"\brd_[\w-]+", page)
        assert secret and f"{timezone.now() + timedelta(days=20):%Y-%m-%d}" in page
        assert "Expires within two weeks" not in page
        clock.shift(timedelta(days=7))
        assert "Expires within two weeks: cluster." in client.get("/settings/math/").content.decode()
        clock.shift(timedelta(days=13))
        page = client.get("/settings/math/").content.decode()
        assert ">expired</span>" in page and "Expires within" not in page
        refused = Client().get("/api/v1/runs/", headers={"Authorization": f"Bearer {secret[0]}"})
        message = f"The token 'cluster' expired on {timezone.now():%Y-%m-%d}"
    assert refused.status_code == 401 and message in refused.json()["error"]["message"]


@pytest.mark.parametrize("days", ["0", "-1", "36501", "1.5", "x", "９"])
def test_days_that_are_no_number_in_range_are_refused(client: Client, project: Project, owner: User, days: str) -> None:
    client.force_login(owner)
    form = {"name": "cluster", "scopes": ["read"], "days": days}
    page = client.post("/settings/math/tokens/", form, follow=True).content.decode()
    assert "must be a number from 1 to 36500" in page and not Token.objects.exists()


def test_tokens_are_made_by_maintainers_and_admin_ones_by_owners(client: Client, project: Project, mate: User) -> None:
    client.force_login(mate)
    assert client.post("/settings/math/tokens/", {"name": "x", "scopes": ["read"]}).status_code == 403
    client.force_login(builders.member(project, "mark", "maintainer"))
    assert client.post("/settings/math/tokens/", {"name": "x", "scopes": ["admin"]}).status_code == 403
    assert client.post("/settings/math/tokens/", {"name": "x", "scopes": ["read"]}).status_code == 200


def test_a_reason_that_stays_keeps_its_key(client: Client, project: Project, owner: User) -> None:
    client.force_login(owner)
    client.post("/settings/math/reasons/", {"reasons": "reward hack\ntoo short\n\ntoo short"})
    project.refresh_from_db()
    assert project.reasons == [
        {"key": "reward-hack", "name": "reward hack"},
        {"key": "too-short", "name": "too short"},
    ]


def test_reasons_that_sound_alike_have_keys_of_their_own(client: Client, project: Project, owner: User) -> None:
    client.force_login(owner)
    long = "a" * 50
    client.post("/settings/math/reasons/", {"reasons": f"Reward Hack\nreward\0 hack!\nreward hack\n{long}\n{long}b"})
    project.refresh_from_db()
    assert {reason["name"]: reason["key"] for reason in project.reasons} == {
        "Reward Hack": "reward-hack-2",
        "reward hack!": "reward-hack-3",
        "reward hack": "reward-hack",
        long: "a" * 40,
        f"{long}b": "a" * 38 + "-2",
    }


def test_colours_are_kept_in_a_cookie(client: Client, mate: User) -> None:
    client.force_login(mate)
    client.post("/theme/", {"theme": "dark", "next": "/live/"})
    assert 'data-theme="dark"' in client.get("/").content.decode()
    client.post("/theme/", {"theme": "auto"})
    assert "data-theme=" not in client.get("/").content.decode()


def test_a_new_password_keeps_its_person_signed_in(client: Client, mate: User) -> None:
    client.force_login(mate)
    client.post("/settings/password/", {"new_password1": "a-longer-word", "new_password2": "a-longer-word"})
    assert client.get("/settings/").status_code == 200
    mate.refresh_from_db()
    assert mate.check_password("a-longer-word")
