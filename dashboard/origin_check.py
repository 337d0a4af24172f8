"""The ASGI entry of everything that uvicorn serves: checks Host, Origin, protocol version and the size of bodies;
removes the URL prefix."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from dashboard import permissions
from dashboard.api import build_error_body
from dashboard.uploads import handle_upload, is_upload_request, start_json_response
from rolloutdeck.lib import is_loopback_host
from rolloutdeck.protocol import MAX_JSON_BYTES, WIRE_HEADER, describe_wire_mismatch

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Any  # an ASGI application; Django, Channels and uvicorn have different types for it

HEALTH_PATHS = ("/healthz", "/readyz")  # a load balancer uses the IP address as the Host
METRICS_PATH = "/metrics"
CLOSE_FORBIDDEN = 4403
API_PATH = "/api/v1/"
WIRE_NAME = WIRE_HEADER.lower().encode()


def get_header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def remove_url_prefix(path: str) -> str:
    """The path without the prefix of ROLLOUTDECK_PUBLIC_URL, which a proxy may have removed already."""
    prefix = settings.PREFIX
    if prefix and (path == prefix or path.startswith(prefix + "/")):
        return path[len(prefix) :] or "/"
    return path


def is_own_origin(origin: str, host: str) -> bool:
    """Whether a page at `origin` may open a WebSocket. All browsers send the header, other clients do not."""
    public = urlsplit(settings.PUBLIC_URL)
    try:
        page = urlsplit(origin)
    except ValueError:
        return False
    if not origin or (page.scheme, page.netloc) == (public.scheme, public.netloc):
        return True
    return permissions.is_local_server() and is_loopback_host(page.hostname) and page.netloc == host


def needs_metrics_token(path: str) -> bool:
    """Whether the path is /metrics and a token protects it, so that Prometheus may ask each web process by its address.

    Without a token, as on loopback, the Host check keeps pages of other sites from reading it (DNS rebinding).
    """
    return path == METRICS_PATH and not permissions.is_local_server()


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
                while (await receive())["type"] == "lifespan.startup":
                    await send({"type": "lifespan.startup.complete"})
                await send({"type": "lifespan.shutdown.complete"})

    async def http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, host = remove_url_prefix(scope["path"]), get_header(scope, b"host")
        if path in HEALTH_PATHS or needs_metrics_token(path):
            host = urlsplit(settings.PUBLIC_URL).netloc
            kept = [] if path in HEALTH_PATHS else [header for header in scope["headers"] if header[0] != b"host"]
            scope = {**scope, "headers": [(b"host", host.encode()), *kept]}
        if not permissions.is_own_host(host):
            await send_wrong_host(send, host)
        elif mismatch := path.startswith(API_PATH) and describe_wire_mismatch(get_header(scope, WIRE_NAME)):
            await send_refusal(send, 426, "wire_version", mismatch)
        elif is_upload_request(scope, path):
            await handle_upload(scope, receive, send, path)
        else:
            await self.call_django({**scope, "path": settings.PREFIX + path, "root_path": ""}, receive, send)

    async def call_django(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Django stores a complete body on the disk before it looks at the request. The largest ones that pages and API
        accept are JSON; forms have at most DATA_UPLOAD_MAX_MEMORY_SIZE, which is less."""
        length = get_header(scope, b"content-length")
        if length.isdecimal() and int(length) > MAX_JSON_BYTES:
            await send_too_large(send)
            return
        received = 0

        async def receive_and_count() -> Any:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message if received <= MAX_JSON_BYTES else {"type": "http.disconnect"}

        await self.django(scope, receive_and_count, send)
        if received > MAX_JSON_BYTES:  # Django has left without a response
            await send_too_large(send)

    async def websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, host = remove_url_prefix(scope["path"]), get_header(scope, b"host")
        is_allowed = permissions.is_own_host(host) and is_own_origin(get_header(scope, b"origin"), host)
        if path.startswith("/ws/") and is_allowed:
            await self.sockets({**scope, "path": path, "root_path": ""}, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": CLOSE_FORBIDDEN})


async def send_wrong_host(send: Send, host: str) -> None:
    message = (
        f"This server has the URL {settings.PUBLIC_URL}, not the host {host[:100]!r}. "
        "Set ROLLOUTDECK_PUBLIC_URL to the URL that users open."
    )
    await send_refusal(send, 400, "wrong_host", message)


async def send_too_large(send: Send) -> None:
    message = f"A request can have {MAX_JSON_BYTES} bytes here. Send less at once, or send a dump."
    await send_refusal(send, 413, "too_large", message)


async def send_refusal(send: Send, status: int, code: str, message: str) -> None:
    await start_json_response(send, status, build_error_body(code, message), "GET")
    await send({"type": "http.response.body", "body": b""})
