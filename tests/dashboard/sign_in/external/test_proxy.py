"""Sign-in by headers of a proxy: only the trusted TCP peer counts, in one spelling, once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client

from dashboard import asgi, web_process
from dashboard.sign_in.external import SCOPE_KEY, ProxyHeaders, ProxyUser
from dashboard.sign_in_settings import parse_group_roles, read_proxy_settings
from rollouts.models import Membership, Project, SignInSession, Token

PROXY = "10.0.0.5"
ALICE = {"Remote-User": "alice", "Remote-Email": "alice@acme.org", "Remote-Groups": "ml, chess"}


@pytest.fixture(autouse=True)
def proxy(settings: Any, project: Project) -> None:
    values = {"ROLLOUTDECK_TRUSTED_PROXY": "10.0.0.0/24"}
    settings.TRUSTED_PROXY = read_proxy_settings(lambda name, default: values.get(name, default))
    settings.GROUP_ROLES = parse_group_roles("ml=math:annotator")


def send_through_proxy(
    headers: list[tuple[bytes, bytes]], peer: str | None = PROXY
) -> tuple[Any, list[tuple[bytes, bytes]]]:
    """Returns the user and the headers that the application behind the proxy sees."""
    seen: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope)

    scope = {"type": "http", "client": None if peer is None else (peer, 1), "headers": headers}
    asyncio.run(ProxyHeaders(app)(scope, None, None))  # type: ignore[arg-type]
    return seen[SCOPE_KEY], seen["headers"]


@pytest.mark.parametrize("peer", ["10.0.1.5", "127.0.0.1", "::1", "", "/run/web.sock", None])
def test_headers_from_an_untrusted_peer_are_removed(peer: str | None) -> None:
    sent = [(b"host", b"h"), (b"remote-user", b"alice"), (b"Remote_User", b"alice"), (b"remote_groups", b"ml")]
    assert send_through_proxy(sent, peer) == (None, [(b"host", b"h")])


def test_the_headers_of_the_proxy_give_the_user() -> None:
    sent = [(b"remote-user", "zoë".encode()), (b"remote-groups", b"ml, chess,"), (b"accept", b"*/*")]
    for peer in (PROXY, f"::ffff:{PROXY}"):
        assert send_through_proxy(sent, peer) == (ProxyUser("zoë", "", ("ml", "chess")), [(b"accept", b"*/*")])


@pytest.mark.parametrize(
    "headers",
    [
        [(b"remote-user", b"alice"), (b"remote-user", b"root")],
        [(b"remote-user", b"alice"), (b"remote_user", b"root")],
        [(b"remote_user", b"root")],
        [(b"remote-user", b"alice"), (b"remote-groups", b"ml"), (b"remote_groups", b"admins")],
        [(b"remote-user", b"\xff")],
        [(b"remote-user", b" ")],
    ],
)
def test_duplicate_or_malformed_headers_give_no_user(headers: list[tuple[bytes, bytes]]) -> None:
    assert send_through_proxy(headers) == (None, [])


def test_a_forwarded_address_is_not_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn would replace the peer by what X-Forwarded-For says, before the application sees it."""
    configs: list[Any] = []
    monkeypatch.setattr(web_process.uvicorn, "Server", lambda config: configs.append(config) or exit_at_once())
    monkeypatch.setattr(web_process, "open_listeners", lambda host, port: [])
    with pytest.raises(SystemExit):
        web_process.main(["--port", "0"])
    assert configs[0].proxy_headers is False and type(asgi.application) is ProxyHeaders
    sent = [(b"x-forwarded-for", PROXY.encode()), (b"remote-user", b"alice")]
    assert send_through_proxy(sent, "127.0.0.1")[0] is None


def exit_at_once() -> Any:
    raise SystemExit


class NamedClient(Client):
    """A browser behind the proxy."""

    def __init__(self, named: ProxyUser | None) -> None:
        super().__init__()
        self.named = named
        handler_request = self.handler.get_response

        def get_response(request: Any) -> Any:
            request.scope = {SCOPE_KEY: self.named}
            return handler_request(request)

        self.handler.get_response = get_response  # type: ignore[method-assign]


def test_each_request_has_the_rights_of_its_groups() -> None:
    browser = NamedClient(ProxyUser("alice", "alice@acme.org", ("ml",)))
    assert browser.get("/settings/math/").status_code == 200
    assert "The proxy in front of this server signs you in as" in browser.get("/settings/").content.decode()
    user = User.objects.get(username="alice")
    assert user.email == "alice@acme.org" and user.memberships.get().group_role == "annotator"
    assert SignInSession.objects.filter(user=user).count() == 1, "one session for all requests"
    secret = Token.issue(user=user, name="trainer", scopes=["read"], project=Project.objects.get())[1]
    headers = {"Authorization": f"Bearer {secret}"}
    assert Client().get("/api/v1/projects/", headers=headers).status_code == 200
    other = NamedClient(ProxyUser("alice", "", ("chess",)))
    refused = other.get("/live/")
    assert refused.status_code == 403 and "Your groups: chess." in refused.content.decode()
    assert not Membership.objects.filter(user=user).exists()
    assert Client().get("/api/v1/projects/", headers=headers).status_code == 401
    assert other.get("/sign-in/").status_code == 200, "a local admin can still sign in"


def test_a_session_ends_when_the_proxy_names_nobody_or_another_user() -> None:
    browser = NamedClient(ProxyUser("alice", "", ("ml",)))
    assert browser.get("/live/").status_code == 200
    browser.named = ProxyUser("bob", "", ("ml",))
    assert browser.get("/settings/").context["user"].username == "bob"
    browser.named = None
    response = browser.get("/live/", follow=True)
    assert response.redirect_chain and "does not name you any more" in response.content.decode()


def test_a_name_does_not_take_over_a_local_account_until_an_admin_links_it(owner: User) -> None:
    browser = NamedClient(ProxyUser("olga", "", ("ml",)))
    refused = browser.get("/live/")
    assert refused.status_code == 403 and "An account olga exists already" in refused.content.decode()
    call_command("link_account", "olga", "olga", "--proxy")
    assert browser.get("/settings/").context["user"] == owner
    assert owner.memberships.get().role == "owner"
    with pytest.raises(CommandError, match="already linked"):
        call_command("link_account", "olga", "olga2", "--proxy")
    call_command("link_account", "olga", "--remove")
    assert browser.get("/live/").status_code == 403


@pytest.mark.django_db(transaction=True)
def test_the_websocket_closes_if_the_proxy_does_not_name_its_user() -> None:
    browser = NamedClient(ProxyUser("alice", "", ("ml",)))
    browser.get("/live/")
    cookie = f"rolloutdeck_session={browser.cookies['rolloutdeck_session'].value}".encode()

    async def read_first_message(peer: str) -> Any:
        headers = [(b"host", b"127.0.0.1:8460"), (b"cookie", cookie), (b"remote-user", b"alice")]
        socket = WebsocketCommunicator(asgi.application, "/ws/", headers)
        socket.scope["client"] = (peer, 1)
        await socket.connect()
        await socket.send_json_to({"topics": ["live"]})
        message = await socket.receive_output()
        await socket.disconnect()
        return message

    assert asyncio.run(read_first_message(PROXY))["type"] == "websocket.send"
    assert asyncio.run(read_first_message("10.0.1.5")) == {"type": "websocket.close", "code": 4401}
