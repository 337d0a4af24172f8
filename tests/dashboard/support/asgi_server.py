"""A real uvicorn in a thread of the test process, and requests to it by urllib."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import uvicorn


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Site:
    port: int

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, named, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as result:
                return Answer(result.status, {k.lower(): v for k, v in result.headers.items()}, result.read())
        except urllib.error.HTTPError as refused:
            return Answer(refused.code, {k.lower(): v for k, v in refused.headers.items()}, refused.read())


class FastStopServer(uvicorn.Server):
    """Stops fast, since every test waits for that: it checks a hundred times a second, not ten, and does not wait if
    there are no connections."""

    async def main_loop(self) -> None:
        for tick in count():
            if await self.on_tick(tick):
                return
            await asyncio.sleep(0.01)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.connections or self.server_state.tasks:
            return await super().shutdown(sockets)
        for server in self.servers:
            server.close()


@contextmanager
def serve(app: Any) -> Iterator[Site]:
    server = FastStopServer(uvicorn.Config(app, port=0, log_level="warning", ws="none", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        if time.monotonic() > deadline:
            raise RuntimeError("uvicorn did not start")
        time.sleep(0.01)
    try:
        yield Site(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(20)
