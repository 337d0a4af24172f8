"""Sign-in with a real OpenID provider: who gets which account and roles, attacks, and the end of access."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import time_machine
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from dashboard.sign_in.external import provider as provider_module
from dashboard.sign_in_settings import parse_group_roles
from rollouts.models import AuditEntry, ExternalAccount, Membership, Project, SignInSession, Token
from rollouts.projects import set_role
from tests.dashboard.support.openid import Provider, serve_provider, sign_in
from tests.support import builders


@pytest.fixture(scope="module")
def started_provider() -> Iterator[Provider]:
    with serve_provider() as running:
        yield running


@pytest.fixture
def provider(started_provider: Provider, settings: Any, project: Project) -> Provider:
    settings.OPENID = started_provider.get_settings()
    settings.GROUP_ROLES = parse_group_roles("ml=math:annotator,leads=*:maintainer,admins=admin")
    started_provider.set_person("s-mina", preferred_username="mina", email="mina@acme.org", groups=["ml", "chess"])
    return started_provider


def make_check_due(name: str = "mina") -> None:
    User.objects.get(username=name).external.__class__.objects.update(next_check_at=timezone.now())


def get_roles(name: str = "mina") -> dict[str, str]:
    return dict(Membership.objects.filter(user__username=name).values_list("project__slug", "role"))


def get_password(name: str) -> str:
    return f"{name}-password"


def post_password(client: Client, name: str) -> Any:
    return client.post("/sign-in/", {"username": name, "password": get_password(name)})


def get_with_token(secret: str) -> Any:
    return Client().get("/api/v1/projects/", headers={"Authorization": f"Bearer {secret}"})


def test_the_first_sign_in_creates_an_account_with_the_roles_of_its_groups(client: Client, provider: Provider) -> None:
    page = client.get("/sign-in/?next=/live/").content.decode()
    assert "Sign in with Acme ID" in page and "/sign-in/openid/?next=/live/" in page
    start = client.get("/sign-in/openid/?next=/live/").headers["Location"]
    query = parse_qs(urlsplit(start).query)
    assert query["code_challenge_method"] == ["S256"] and query["nonce"] and query["state"]
    assert set(query["scope"][0].split()) == {"openid", "profile", "email"}
    response = sign_in(client, provider, "s-mina", "/sign-in/openid/?next=/live/")
    assert response.headers["Location"] == "/live/" and client.get("/live/").status_code == 200
    user = User.objects.get(username="mina")
    assert user.email == "mina@acme.org" and not user.has_usable_password() and get_roles() == {"math": "annotator"}
    entry = AuditEntry.objects.get(verb="role.group")
    assert entry.user is None and entry.detail == {"role": "annotator", "before": "", "group": "ml"}
    assert provider.url in client.get("/settings/").content.decode()
    assert "annotator by a group" in client.get("/settings/math/").content.decode()
    assert SignInSession.objects.filter(user=user, address="127.0.0.1").exists()


def test_an_account_is_identified_only_by_its_subject(client: Client, provider: Provider, owner: User) -> None:
    sign_in(client, provider, "s-mina")
    provider.set_person("s-mina", preferred_username="wilhelmina", email="new@acme.org", groups=["ml"])
    assert sign_in(Client(), provider, "s-mina").status_code == 302
    assert User.objects.get(username="mina").email == "new@acme.org"
    # Another person with the same name and address gets another account.
    provider.set_person("s-thief", preferred_username="Mina", email="new@acme.org", email_verified=True, groups=["ml"])
    other_client = Client()
    assert sign_in(other_client, provider, "s-thief").status_code == 302
    assert other_client.get("/settings/").context["user"].username == "Mina-2"
    # A local account is not taken over by its name or address.
    owner.email = "olga@acme.org"
    owner.save()
    provider.set_person("s-olga", preferred_username="olga", email="olga@acme.org", email_verified=True, groups=["ml"])
    refused = sign_in(Client(), provider, "s-olga")
    assert refused.status_code == 403 and "An account olga exists already" in refused.content.decode()


def test_users_link_their_own_account(client: Client, provider: Provider, owner: User) -> None:
    provider.set_person("s-olga", preferred_username="olga", groups=["ml"])
    client.force_login(owner)
    page = client.get("/settings/")
    link = f"/sign-in/openid/?link={page.context['link_token']}"
    assert "Link this account to Acme ID" in page.content.decode()
    assert sign_in(client, provider, "s-olga", link).headers["Location"] == "/settings/"
    assert "You sign in with" in client.get("/settings/").content.decode()
    assert get_roles("olga") == {"math": "owner"}, "what a person gave stays"
    other = Client()
    assert sign_in(other, provider, "s-olga").status_code == 302
    assert other.get("/settings/").context["user"] == owner
    mate = builders.member(Project.objects.get(), "mate", "viewer")
    stranger = Client()
    stranger.force_login(mate)
    assert stranger.get(link).status_code == 403, "the token is of another user"
    token = stranger.get("/settings/").context["link_token"]
    taken = sign_in(stranger, provider, "s-olga", f"/sign-in/openid/?link={token}")
    assert taken.status_code == 403 and "already belongs to the account olga" in taken.content.decode()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"nonce": "of-another-sign-in"}, "does not work now"),
        ({"state": "of-another-browser"}, "not started in this browser"),
    ],
)
def test_an_answer_to_another_sign_in_is_refused(
    client: Client, provider: Provider, change: dict[str, str], text: str
) -> None:
    response = sign_in(client, provider, "s-mina", **change)
    assert response.status_code in (403, 502) and text in response.content.decode()
    assert not User.objects.filter(username="mina").exists()


def test_a_code_works_only_in_the_browser_that_asked_for_it_and_once(client: Client, provider: Provider) -> None:
    back = urlsplit(provider.approve(client.get("/sign-in/openid/").headers["Location"], "s-mina"))
    path = f"{back.path}?{back.query}"
    assert Client().get(path).status_code == 403
    assert client.get(path).status_code == 302
    assert client.get(path).status_code == 403


def test_without_a_group_that_gives_a_role_there_is_no_account(client: Client, provider: Provider) -> None:
    provider.set_person("s-eve", preferred_username="eve", groups=["chess"])
    response = sign_in(client, provider, "s-eve")
    assert response.status_code == 403 and "Your groups: chess." in response.content.decode()
    assert not User.objects.filter(username="eve").exists()


def test_a_lost_group_ends_sessions_and_tokens_at_the_next_request(client: Client, provider: Provider) -> None:
    sign_in(client, provider, "s-mina")
    other = Client()
    sign_in(other, provider, "s-mina")
    user, math = User.objects.get(username="mina"), Project.objects.get()
    secret = Token.issue(user=user, name="trainer", scopes=["read"], project=math)[1]
    assert get_with_token(secret).status_code == 200
    provider.set_person("s-mina", preferred_username="mina", groups=["chess"])
    assert client.get("/live/").status_code == 200, "the last answer is not old"
    make_check_due()
    response = client.get("/live/", follow=True)
    assert response.redirect_chain and "None of your groups gives access" in response.content.decode()
    assert other.get("/live/").status_code == 302 and get_roles() == {}
    refused = get_with_token(secret)
    assert refused.status_code == 401 and "works again after the owner has signed in" in refused.content.decode()
    # The group comes back: the token works without a new sign-in.
    provider.set_person("s-mina", preferred_username="mina", groups=["ml"])
    make_check_due()
    assert get_with_token(secret).status_code == 200 and get_roles() == {"math": "annotator"}


def test_a_role_set_by_hand_is_enough_without_a_group(client: Client, provider: Provider, owner: User) -> None:
    sign_in(client, provider, "s-mina")
    set_role(Project.objects.get(), "mina", "maintainer", owner)
    provider.set_person("s-mina", preferred_username="mina", groups=["chess"])
    assert sign_in(Client(), provider, "s-mina").status_code == 302
    assert get_roles() == {"math": "maintainer"}


def test_tokens_are_checked_with_the_provider_and_a_lower_role_applies_at_once(provider: Provider) -> None:
    provider.set_person("s-lea", preferred_username="lea", groups=["leads", "ml"])
    client = Client()
    sign_in(client, provider, "s-lea")
    math, user = Project.objects.get(), User.objects.get(username="lea")
    secret = Token.issue(user=user, name="trainer", scopes=["read", "ingest"], project=math)[1]
    headers = {"Authorization": f"Bearer {secret}"}
    body = {"project": "math", "name": "new"}
    assert Client().post("/api/v1/runs/", body, "application/json", headers=headers).status_code == 201
    provider.set_person("s-lea", preferred_username="lea", groups=["ml"])
    make_check_due("lea")
    refused = Client().post("/api/v1/runs/", body, "application/json", headers=headers)
    assert refused.status_code == 403 and get_roles("lea") == {"math": "annotator"}
    assert client.get("/live/").status_code == 302, "who lost a role signs in again"


def test_a_user_revoked_at_the_provider_is_signed_out(client: Client, provider: Provider, owner: User) -> None:
    sign_in(client, provider, "s-mina")
    user, math = User.objects.get(username="mina"), Project.objects.get()
    set_role(math, "mina", "maintainer", owner)
    user.set_password(get_password("mina"))
    user.save()
    sign_in(client, provider, "s-mina")
    secret = Token.issue(user=user, name="trainer", scopes=["read"], project=math)[1]
    provider.revoke("s-mina")
    make_check_due()
    assert get_with_token(secret).status_code == 401
    assert client.get("/live/").status_code == 302 and not SignInSession.objects.filter(user=user).exists()
    post_password(client, "mina")
    assert client.get("/live/").status_code == 302, "a password does not help"
    sign_in(client, provider, "s-mina")
    assert client.get("/live/").status_code == 200 and get_with_token(secret).status_code == 200
    assert get_roles() == {"math": "maintainer"}


def test_a_provider_that_is_down_ends_access_after_the_grace_time(
    client: Client, project: Project, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_module, "configurations", {})
    with serve_provider() as provider:
        settings.OPENID = provider.get_settings()
        settings.GROUP_ROLES = parse_group_roles("ml=math:annotator")
        provider.set_person("s-mina", preferred_username="mina", groups=["ml"])
        sign_in(client, provider, "s-mina")
    provider_module.configurations.clear()
    user = User.objects.get(username="mina")
    secret = Token.issue(user=user, name="trainer", scopes=["read"], project=project)[1]
    make_check_due()
    assert client.get("/live/").status_code == 200 and get_with_token(secret).status_code == 200
    start = Client().get("/sign-in/openid/")
    assert start.status_code == 502 and "does not work now" in start.content.decode()
    with time_machine.travel(timezone.now() + timedelta(hours=1, minutes=1)):
        response = client.get("/live/", follow=True)
        assert "could not confirm this sign-in for 1 h" in response.content.decode()
        assert get_with_token(secret).status_code == 401


def test_a_failed_check_keeps_the_refresh_token_that_the_provider_has_replaced(
    client: Client, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(client, provider, "s-mina")
    before = ExternalAccount.objects.get(user__username="mina").renewal
    replaced = iter(["next token"])
    answer = provider_module.read_json

    def rotate(response: Any) -> dict[str, Any]:
        return {**answer(response), "refresh_token": next(replaced)}

    def fail(*_: Any) -> Any:
        raise provider_module.ProviderError("userinfo does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(provider_module, "read_json", rotate)
        patched.setattr(provider_module, "load_user_info", fail)
        patched.setattr(provider_module, "verify_id_token", lambda _token: {"sub": "s-mina"})
        make_check_due()
        assert client.get("/live/").status_code == 200
    account = ExternalAccount.objects.get(user__username="mina")
    assert account.failed_since and account.renewal != before
    assert provider_module.decrypt(account.renewal) == "next token"


def test_a_local_admin_signs_in_by_password_even_if_passwords_are_off(
    client: Client, provider: Provider, settings: Any
) -> None:
    settings.PASSWORD_SIGN_IN = False
    admin = User.objects.create_superuser("root", password=get_password("root"))
    User.objects.create_user("mina", password=get_password("mina"))
    assert 'name="password"' not in client.get("/sign-in/").content.decode()
    assert 'name="password"' in client.get("/sign-in/?password").content.decode()
    refused = post_password(client, "mina")
    assert refused.status_code == 403 and "Passwords are switched off" in refused.content.decode()
    post_password(client, "root")
    assert client.get("/settings/").context["user"] == admin


def test_an_admin_by_a_group_is_admin_only_while_in_the_group(client: Client, provider: Provider) -> None:
    provider.set_person("s-ada", preferred_username="ada", groups=["admins"])
    sign_in(client, provider, "s-ada")
    assert User.objects.get(username="ada").is_superuser
    provider.set_person("s-ada", preferred_username="ada", groups=["ml"])
    make_check_due("ada")
    assert client.get("/settings/").status_code == 302
    assert not User.objects.get(username="ada").is_superuser and get_roles("ada") == {"math": "annotator"}
