"""One door for everything that uvicorn serves: it checks Host and Origin and knows the prefix."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson
from django.conf import settings

from dashboard import permissions
from dashboard.api import build_error_body
from dashboard.middleware import SERVER_HEADER_VALUE
from dashboard.uploads import handle_upload, is_upload_request
from rolloutdeck.protocol import SERVER_HEADER

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Any  # an ASGI application; Django, Channels and uvicorn each type it in their own way

LOOPBACK = {"127.0.0.1", "localhost", "::1"}
PROBES = ("/healthz",)  # a load balancer asks by address
FORBIDDEN = 4403  # WebSocket close code


def header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def remove_url_prefix(path: str) -> str:
    """The path without the prefix of ROLLOUTDECK_PUBLIC_URL, which a proxy may or may not have taken off."""
    prefix = settings.PREFIX
    if prefix and (path == prefix or path.startswith(prefix + "/")):
        return path[len(prefix) :] or "/"
    return path


def is_own_origin(origin: str, host: str) -> bool:
    """Whether a browser page at `origin` may open a WebSocket. Only browsers send it, and they always do."""
    public = urlsplit(settings.PUBLIC_URL)
    try:
        asking = urlsplit(origin)
    except ValueError:
        return False
    if not origin or (asking.scheme, asking.netloc) == (public.scheme, public.netloc):
        return True
    return public.hostname in LOOPBACK and asking.hostname in LOOPBACK and asking.netloc == host


@dataclass(frozen=True, slots=True)
class HostOriginCheck:
    """The ASGI application: uploads, else `django`; `sockets` below /ws/."""

    django: App
    sockets: App

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self.http(scope, receive, send)
            case "websocket":
                await self.websocket(scope, receive, send)
            case "lifespan":
                await lifespan(receive, send)

    async def http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, host = remove_url_prefix(scope["path"]), header(scope, b"host")
        if path in PROBES:
            host = urlsplit(settings.PUBLIC_URL).netloc
            scope = {**scope, "headers": [(b"host", host.encode())]}
        if not permissions.is_own_host(host):
            await send_wrong_host(send, host)
        elif is_upload_request(scope, path):
            await handle_upload(scope, receive, send, path)
        else:
            await self.django({**scope, "path": settings.PREFIX + path, "root_path": ""}, receive, send)

    async def websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, host = remove_url_prefix(scope["path"]), header(scope, b"host")
        if path.startswith("/ws/") and permissions.is_own_host(host) and is_own_origin(header(scope, b"origin"), host):
            await self.sockets({**scope, "path": path, "root_path": ""}, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": FORBIDDEN})


async def lifespan(receive: Receive, send: Send) -> None:
    while (await receive())["type"] == "lifespan.startup":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


async def send_wrong_host(send: Send, host: str) -> None:
    known = f"This server answers at {settings.PUBLIC_URL}, not at {host[:100]!r}"
    body = orjson.dumps(
        build_error_body("wrong_host", f"{known}; set ROLLOUTDECK_PUBLIC_URL to the address that people type.")
    )
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (SERVER_HEADER.lower().encode(), SERVER_HEADER_VALUE.encode()),
    ]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})
