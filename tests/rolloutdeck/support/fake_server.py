"""A small HTTP server that stores what a trainer sends, and can answer with the errors of servers and proxies."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LOGIN = b"<html><form>Sign in to the company network</form></html>"


class Receiver:
    """`mode` decides the answers: ok, slow, login, wrong receipt, or a status as text ("500", "413 proxy")."""

    def __init__(self) -> None:
        self.mode = "ok"
        self.version = "0.1.0"  # of the server, in each answer
        self.only = ""  # the mode applies to bodies that contain this text
        self.dumps: list[tuple[str, dict[str, str], bytes]] = []
        self.parts: dict[str, bytes] = {}
        self.spans: list[str] = []
        self.posts: list[tuple[str, dict[str, Any]]] = []
        self.tokens: list[str] = []
        self.run_headers: list[tuple[str, str, str]] = []
        self.port = 0
        self.up()

    def handler(self) -> type[Handler]:
        """Returns the class that answers requests."""
        return Handler

    def up(self) -> None:
        handler = type("Bound", (self.handler(),), {"receiver": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self.server.daemon_threads = True
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def down(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/a/b"

    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self.dumps]

    def posted(self, end: str) -> list[dict[str, Any]]:
        return [body for path, body in self.posts if path.endswith(end)]

    def points(self) -> list[dict[str, Any]]:
        return [point for body in self.posted("/metrics/") for point in body["points"]]


class Handler(BaseHTTPRequestHandler):
    receiver: Receiver

    def log_message(self, *_: Any) -> None:
        pass

    def do_PUT(self) -> None:
        body = self.body()
        if self.answer_with_failure(body):
            return
        if self.path.endswith("/artifacts/"):
            self.receiver.posts.append((self.path, json.loads(body)))
            return self.answer(200, {"id": "x", "state": "named", "missing": []})
        parts = urlsplit(self.path)
        uid, sha256 = parts.path.split("/")[-4], parts.path.split("/")[-2]
        if span := self.headers["Content-Range"]:
            self.receiver.spans.append(span)
            received = self.receiver.parts.get(sha256, b"")
            first, total = span.removeprefix("bytes ").split("/")
            if first != "*" and int(first.split("-")[0]) == len(received):
                received = self.receiver.parts[sha256] = received + body
            if len(received) < int(total):
                return self.answer(202, {"received": len(received)})
            body = self.receiver.parts.pop(sha256)
        if hashlib.sha256(body).hexdigest() != sha256:
            return self.answer(409, {"error": {"code": "hash", "message": "The hash differs."}})
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        entry = (uid, query, body)
        known = entry in self.receiver.dumps
        if not known:
            self.receiver.dumps.append(entry)
        length = len(body) + (self.receiver.mode == "wrong receipt")
        self.answer(200 if known else 201, {"sha256": sha256, "bytes": length})

    def do_POST(self) -> None:
        body = self.body()
        if not self.answer_with_failure(body):
            self.receiver.posts.append((self.path, json.loads(body)))
            self.answer(200, {"id": "x", "name": "x", "url": "http://deck/runs/x/"})

    def body(self) -> bytes:
        self.receiver.tokens.append(self.headers["Authorization"] or "")
        names = ("X-Rolloutdeck-Project", "X-Rolloutdeck-Run", "X-Rolloutdeck-Resume")
        project, run, resume = (unquote(self.headers[name] or "") for name in names)
        self.receiver.run_headers.append((project, run, resume))
        return self.rfile.read(int(self.headers["Content-Length"] or 0))

    def answer_with_failure(self, body: bytes) -> bool:
        """Answers as the mode says. Returns False if the request is to be answered as usual."""
        mode = self.receiver.mode
        if mode in ("ok", "wrong receipt") or self.receiver.only.encode() not in body:
            return False
        if mode == "slow":
            time.sleep(0.3)
            return False
        if mode == "login":
            self.send_raw(200, LOGIN, is_ours=False)
        else:
            status, _, sender = mode.partition(" ")
            self.send_raw(int(status), b'{"error":{"code":"x","message":"No, because of a test."}}', is_ours=not sender)
        return True

    def answer(self, status: int, data: Any) -> None:
        self.send_raw(status, json.dumps(data).encode(), is_ours=True)

    def send_raw(self, status: int, body: bytes, *, is_ours: bool) -> None:
        self.send_response(status)
        if is_ours:
            self.send_header("X-Rolloutdeck", self.receiver.version)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def wait_until(condition: Callable[[], Any], seconds: float = 200.0) -> Any:
    """Waits until another thread or process has made the condition true. Returns its value."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, "the condition is not true in time"
        time.sleep(0.01)
    return result
