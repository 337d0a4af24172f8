"""Checks before the start. Each raises StartRefusedError with a message that names the option to change."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from rolloutdeck.lib import is_loopback_host
from rolloutdeck.up.errors import StartRefusedError
from rolloutdeck.up.paths import find_network_type

REQUIRED_PACKAGES = "django celery channels channels_redis rest_framework polars pyarrow supervisor uvicorn"
TORCH_REQUIREMENT = "torch==2.13.0"
CONNECT_SECONDS = 5.0


def check_python() -> None:
    if sys.version_info < (3, 11):
        raise StartRefusedError(f"The server needs Python 3.11 or newer; this is {sys.version.split()[0]}.")
    missing = ", ".join(name for name in REQUIRED_PACKAGES.split() if find_spec(name) is None)
    if missing:
        message = f"The server's packages are missing ({missing}): pip install '.[server]' in a clone of Rolloutdeck"
        raise StartRefusedError(message)


def check_redaction(paths: Sequence[Path]) -> None:
    """Raises StartRefusedError if `up` would send files as they are though texts must be redacted."""
    if paths and os.environ.get("ROLLOUTDECK_REDACT"):
        reason = "ROLLOUTDECK_REDACT is set, but files are sent as they are."
        raise StartRefusedError(f"{reason} Unset it, or start `rolloutdeck up` without {' '.join(map(str, paths))}.")


def check_database(data: Path) -> None:
    """Raises StartRefusedError if the SQLite database would be on a network file system."""
    url = os.environ.get("DATABASE_URL", "")
    if url and not url.startswith("sqlite"):
        return
    folder = Path(urlsplit(url).path[1:]).parent if url else data
    if kind := find_network_type(folder):
        reason = f"{folder} is on a network file system ({kind}), where SQLite loses data."
        hint = "Choose a local folder with --data, or a PostgreSQL server with DATABASE_URL."
        raise StartRefusedError(f"{reason} {hint}")


def check_host(host: str, public_url: str) -> None:
    """Raises StartRefusedError if the URL for users is unknown or is no URL."""
    url = urlsplit(public_url)
    if public_url and (url.scheme not in ("http", "https") or not url.hostname):
        raise StartRefusedError(
            f"ROLLOUTDECK_PUBLIC_URL is {public_url}. Write the URL that users open, such as https://rl.example.org"
        )
    if not is_loopback_host(host) and not public_url:
        reason = f"With --host {host}, the server is reachable from the network, but its public URL is unknown."
        raise StartRefusedError(f"{reason} Set ROLLOUTDECK_PUBLIC_URL to the URL that users open.")


def check_redis(url: str) -> None:
    """Raises StartRefusedError if the Redis that the user has chosen does not answer. Without `url` one is started."""
    if not url:
        return
    import redis

    try:
        with redis.Redis.from_url(
            url, socket_connect_timeout=CONNECT_SECONDS, socket_timeout=CONNECT_SECONDS
        ) as client:
            client.ping()
    except (redis.RedisError, OSError, ValueError) as error:
        reason = f"Redis does not answer: {error}."
        raise StartRefusedError(f"{reason} Check REDIS_URL, or unset it: then a Redis is started.") from None


def check_port(host: str, port: int) -> None:
    """Raises StartRefusedError if the web server can't bind the port."""
    if not 0 < port < 65536:
        raise StartRefusedError(f"{port} is not a port. Choose one between 1 and 65535 with --port.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = "is in use" if error.errno == 98 else f"cannot be opened ({error.strerror})"
        raise StartRefusedError(f"Port {port} on {host} {reason}. Choose another with --port.") from None


def has_torch() -> bool:
    return find_spec("torch") is not None
