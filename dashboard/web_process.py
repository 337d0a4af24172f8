"""One web process: `python -m dashboard.web_process --host 127.0.0.1 --port 8460`.

Several of them may listen on the same port: the kernel gives each new connection to one of them (SO_REUSEPORT,
socket(7)). uvicorn's own workers share a socket instead, and an idle process would take most connections.
"""

from __future__ import annotations

import argparse
import resource
import socket
import sys
from collections.abc import Sequence
from typing import Any, Final

import uvicorn

BACKLOG: Final = 2048
KEEP_ALIVE_SECONDS: Final = 75
MAX_STOP_SECONDS: Final = 3  # for requests that are running
PAGE_CACHE_KB: Final = 2000  # of each SQLite connection; each thread that answers requests keeps one
MAX_OPEN_FILES: Final = 65_536  # each connection is one, and each open page keeps one


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="dashboard.web_process")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8460)
    args = parser.parse_args(words)
    raise_file_limit()
    config = uvicorn.Config(
        "dashboard.asgi:application",
        lifespan="off",
        access_log=False,
        log_config=None,  # its messages go to the log of Django's settings
        server_header=False,
        proxy_headers=False,  # `asgi.py` does this, after it has looked at the TCP peer
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=MAX_STOP_SECONDS,
    )
    config.load()  # takes seconds, in which no connection may wait for this process
    limit_page_caches()
    refuse_wrong_storage()
    release_memory()
    try:
        listeners = open_listeners(args.host, args.port)
    except OSError as error:
        raise SystemExit(f"Can't listen on port {args.port} of {args.host}: {error.strerror}.") from None
    server = uvicorn.Server(config)
    server.run(listeners)
    return 0 if server.started else 1


def raise_file_limit() -> None:
    """The usual limit of 1,024 is for programs that use select(2), and would limit the open pages to fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def release_memory() -> None:
    from rollouts.lib import start_memory_release  # the settings are loaded now

    start_memory_release()


def limit_page_caches() -> None:
    """SQLite reads most pages from a mapped file; its cache fills with those that have changed a moment ago."""
    from django.db.backends.signals import connection_created  # the settings are loaded now

    connection_created.connect(limit_page_cache)


def limit_page_cache(connection: Any, **_: Any) -> None:
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA cache_size=-{PAGE_CACHE_KB}")


def refuse_wrong_storage() -> None:
    """Raises SystemExit if the server's files are elsewhere than the settings say."""
    from django.db import DatabaseError, close_old_connections  # the settings are loaded now

    from rollouts.storage import StorageRefusedError, check_storage

    try:
        check_storage()
    except StorageRefusedError as error:
        raise SystemExit(str(error)) from None
    except DatabaseError:  # `/readyz` says so, until the database answers
        pass
    finally:
        close_old_connections()


def open_listeners(host: str, port: int) -> list[socket.socket]:
    """Returns a socket for each address of the host. Other processes of the same user may listen there too."""
    addresses = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners = []
    for family, kind, protocol, _name, address in dict.fromkeys(addresses):
        # With its protocol: asyncio sends small answers without a delay only over sockets that say TCP.
        listener = socket.socket(family, kind, protocol)
        listeners.append(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    return listeners


if __name__ == "__main__":
    sys.exit(main())
