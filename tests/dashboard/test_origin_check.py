from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.asgi import get_asgi_application

from dashboard.origin_check import HostOriginCheck, is_own_origin, remove_url_prefix
from rolloutdeck.protocol import MAX_JSON_BYTES
from tests.dashboard.support.asgi_server import Site, serve
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def site() -> Iterator[Site]:
    django = get_asgi_application()
    with serve(HostOriginCheck(django, django)) as running:
        yield running


def test_a_request_with_another_host_is_refused_with_the_setting_to_change(site: Site) -> None:
    answer = site.send("GET", "/api/v1/runs/", Host="evil.example")
    assert answer.status == 400
    assert "ROLLOUTDECK_PUBLIC_URL" in answer.json["error"]["message"]
    assert "x-rolloutdeck" in answer.headers


def test_a_load_balancer_may_ask_for_health_by_any_name(site: Site) -> None:
    assert site.send("GET", "/healthz", Host="10.0.0.7").json == {"status": "ok"}


@pytest.fixture
def public_site(settings: Any, site: Site) -> Site:
    settings.PUBLIC_URL, settings.ALLOWED_HOSTS = "https://deck.example.org", ["deck.example.org"]
    return site


def test_prometheus_may_ask_each_web_process_by_its_address_with_a_token(public_site: Site) -> None:
    project = builders.project("monitoring")
    token = builders.token(builders.member(project, "mina", "viewer"), "read", on=project)
    answer = public_site.send("GET", "/metrics", Host="10.0.0.11:8460", Authorization=f"Bearer {token}")
    assert answer.status == 200 and b"rolloutdeck_free_bytes" in answer.body
    assert public_site.send("GET", "/metrics", Host="10.0.0.11:8460").status == 401
    assert public_site.send("GET", "/metrics/x", Host="10.0.0.11:8460").status == 400


def test_metrics_without_a_token_are_only_for_this_machine(site: Site) -> None:
    assert site.send("GET", "/metrics").status == 200
    assert site.send("GET", "/metrics", Host="evil.example").status == 400


async def send_body(path: str, *chunks: bytes, **headers: str) -> tuple[list[Any], bytes]:
    """Returns what is sent instead of Django's response, and what Django receives of a body in these chunks."""
    left, received, sent = list(chunks), [], []

    async def django(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] == "http.request":
            received.append(message["body"])
            if not message["more_body"]:
                break

    async def receive() -> Any:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Any) -> None:
        sent.append(message)

    named = {"host": "127.0.0.1:8460", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"",
             "headers": [(name.encode(), value.encode()) for name, value in named.items()]}  # fmt: skip
    await HostOriginCheck(django, django)(scope, receive, send)
    return sent, b"".join(received)


@pytest.mark.parametrize("path", ["/", "/sign-in/", "/api/v1/runs/", "/no/such/page"])
def test_a_body_larger_than_any_request_needs_does_not_reach_django(path: str) -> None:
    """Django stores a complete body before it looks at the request."""
    chunk = bytes(MAX_JSON_BYTES // 4)
    for chunks, headers, passed in (
        ([chunk] * 5, {}, 4 * len(chunk)),  # without a length, as with curl -T
        ([chunk] * 4 + [b"x"], {"content_length": "5"}, 4 * len(chunk)),
        ([b"x"], {"content_length": str(MAX_JSON_BYTES + 1)}, 0),
    ):
        sent, received = asyncio.run(send_body(path, *chunks, **headers))
        assert (sent[0]["status"], json.loads(sent[1]["body"])["error"]["code"]) == (413, "too_large")
        assert len(received) == passed and not sent[-1].get("more_body")
    sent, received = asyncio.run(send_body(path, *[chunk] * 4, content_length=str(MAX_JSON_BYTES)))
    assert sent == [] and len(received) == MAX_JSON_BYTES


def test_after_a_body_that_is_too_large_django_sends_nothing(site: Site, monkeypatch: Any) -> None:
    monkeypatch.setattr("dashboard.origin_check.MAX_JSON_BYTES", 100)
    for body in (b"x" * 101, iter([b"x" * 60, b"x" * 60])):  # the second one without a length
        answer = site.send("POST", "/sign-in/", body, Content_Type="text/plain")
        assert (answer.status, answer.json["error"]["code"]) == (413, "too_large")
    assert site.send("GET", "/sign-in/").status == 200


def test_pages_have_a_content_policy_without_inline_script(site: Site) -> None:
    policy = site.send("GET", "/sign-in/").headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy


def test_requests_below_a_prefix_work_whether_the_proxy_removes_the_prefix_or_not(site: Site, settings: Any) -> None:
    settings.PREFIX = settings.FORCE_SCRIPT_NAME = "/a/b"
    stored, stripped = site.send("GET", "/a/b/api/v1/runs/"), site.send("GET", "/api/v1/runs/")
    assert (stored.status, stripped.status) == (401, 401)
    assert stored.headers["x-rolloutdeck"] and stored.body == stripped.body
    sha = "0" * 64
    assert [site.send("PUT", f"{prefix}/api/v1/runs/u/dumps/{sha}/", b"").status for prefix in ("/a/b", "")] == [
        401,
        401,
    ]


@pytest.mark.parametrize(
    ("path", "below"),
    [("/a/b/x", "/x"), ("/a/b", "/"), ("/a/b/", "/"), ("/a/bc", "/a/bc"), ("/x", "/x"), ("/", "/")],
)
def test_only_a_whole_prefix_is_removed(path: str, below: str, settings: Any) -> None:
    settings.PREFIX = "/a/b"
    assert remove_url_prefix(path) == below


@pytest.mark.parametrize(
    ("public", "origin", "host", "ours"),
    [
        ("https://deck.example/a", "https://deck.example", "deck.example", True),
        ("https://deck.example/a", "http://deck.example", "deck.example", False),
        ("https://deck.example/a", "https://evil.example", "deck.example", False),
        ("https://deck.example/a", "http://localhost:8460", "localhost:8460", False),
        ("http://127.0.0.1:8460", "http://localhost:8460", "localhost:8460", True),
        ("http://127.0.0.1:8460", "http://localhost:9999", "localhost:8460", False),
        ("http://127.0.0.1:8460", "http://evil.example", "127.0.0.1:8460", False),
        ("http://127.0.0.1:8460", "null", "127.0.0.1:8460", False),
        ("http://127.0.0.1:8460", "http://[", "127.0.0.1:8460", False),
        ("http://127.0.0.1:8460", "", "127.0.0.1:8460", True),
    ],
)
def test_a_websocket_is_opened_for_our_own_pages_only(
    public: str, origin: str, host: str, ours: bool, settings: Any
) -> None:
    settings.PUBLIC_URL = public
    assert is_own_origin(origin, host) is ours


async def open_websocket(path: str, host: str, origin: str) -> list[Any]:
    """Returns what a WebSocket of this host and origin is sent, and `opened` if it reaches the consumers."""
    sent: list[Any] = []

    async def sockets(scope: Any, receive: Any, send: Any) -> None:
        sent.append(("opened", scope["path"]))

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", host.encode()), (b"origin", origin.encode())]
    await HostOriginCheck(sockets, sockets)({"type": "websocket", "path": path, "headers": headers}, receive, send)
    return sent


@pytest.mark.parametrize(
    ("path", "host", "origin"),
    [
        ("/ws/", "evil.example", "http://evil.example"),
        ("/ws/", "127.0.0.1:8460", "http://evil.example"),
        ("/runs/", "127.0.0.1:8460", "http://127.0.0.1:8460"),
    ],
)
def test_a_websocket_of_another_host_origin_or_path_is_closed(path: str, host: str, origin: str) -> None:
    assert asyncio.run(open_websocket(path, host, origin)) == [{"type": "websocket.close", "code": 4403}]


def test_a_websocket_below_the_prefix_is_opened(settings: Any) -> None:
    settings.PREFIX = "/a/b"
    for path in ("/a/b/ws/", "/ws/"):
        assert asyncio.run(open_websocket(path, "127.0.0.1:8460", "http://127.0.0.1:8460")) == [("opened", "/ws/")]
