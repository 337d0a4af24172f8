"""A file of an artifact comes whole and verified, over connections that break, or not at all."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rolloutdeck.lib import download as fetching
from rolloutdeck.lib.download import DownloadError, download_file
from rolloutdeck.lib.http import ServerClient, ServerUnreachableError

BODY = bytes(range(256)) * 20_000  # 5 MB


class Store(ThreadingHTTPServer):
    """Hands out `body`; breaks off after `breaks` bytes as often as that list says; `status` refuses."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body, self.breaks, self.ranges = BODY, list[int](), list[str]()
        self.status, self.ours, self.partial = 0, True, True
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def asking(self) -> ServerClient:
        return ServerClient(f"http://127.0.0.1:{self.server_port}")


class Handler(BaseHTTPRequestHandler):
    server: Store

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        span = self.headers["Range"] or ""
        self.server.ranges.append(span)
        start = int(span[6:-1]) if span and self.server.partial else 0
        result = b'{"error": {"code": "unsafe", "message": "It runs code."}}'
        body = result if self.server.status else self.server.body[start:]
        self.send_response(self.server.status or (206 if start else 200))
        if self.server.ours:
            self.send_header("X-Rolloutdeck", "1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.breaks.pop(0)] if self.server.breaks else body)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(fetching, "FIRST_RETRY_SECONDS", 0.01)
    running = Store()
    yield running
    running.shutdown()
    running.server_close()


def get(store: Store, into: Path, body: bytes = BODY) -> None:
    download_file(store.asking, "runs/x/", into, hashlib.sha256(body).hexdigest(), len(body))


def test_a_file_comes_as_it_is(store: Store, tmp_path: Path) -> None:
    get(store, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == BODY
    assert not (tmp_path / "blob.part").exists()


def test_a_broken_connection_is_gone_on_from_where_it_broke(store: Store, tmp_path: Path) -> None:
    store.breaks = [1_000_000, 500_000]
    get(store, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == BODY
    assert store.ranges[0] == "" and all(span.startswith("bytes=") for span in store.ranges[1:])
    assert store.ranges[1] != "bytes=0-"


def test_a_call_goes_on_from_what_an_earlier_one_left(store: Store, tmp_path: Path) -> None:
    (tmp_path / "blob.part").write_bytes(BODY[:4_000_000])
    get(store, tmp_path / "blob")
    assert store.ranges == ["bytes=4000000-"]
    assert (tmp_path / "blob").read_bytes() == BODY


def test_a_server_that_knows_no_ranges_sends_all_again(store: Store, tmp_path: Path) -> None:
    store.partial = False
    (tmp_path / "blob.part").write_bytes(BODY[:4_000_000])
    get(store, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == BODY


def test_other_bytes_under_this_name_are_thrown_away(store: Store, tmp_path: Path) -> None:
    store.body = BODY[:-1] + b"x"
    with pytest.raises(DownloadError, match="has the sha256"):
        get(store, tmp_path / "blob")
    assert list(tmp_path.iterdir()) == []


def test_more_bytes_than_the_file_has_are_refused(store: Store, tmp_path: Path) -> None:
    store.body = BODY * 2
    with pytest.raises(DownloadError, match="more than the 5,120,000 bytes"):
        get(store, tmp_path / "blob")
    assert not (tmp_path / "blob").exists()


def test_the_servers_reason_for_a_refusal_is_told(store: Store, tmp_path: Path) -> None:
    store.status = 409
    with pytest.raises(DownloadError, match=r"It runs code\."):
        get(store, tmp_path / "blob")


def test_an_answer_from_something_in_between_is_not_taken(store: Store, tmp_path: Path) -> None:
    store.ours = False
    with pytest.raises(DownloadError, match="not from a Rolloutdeck server"):
        get(store, tmp_path / "blob")
    assert not (tmp_path / "blob").exists()


def test_a_server_that_is_gone_keeps_what_came(store: Store, tmp_path: Path) -> None:
    store.breaks = [1_000_000] + [0] * 9
    with pytest.raises(ServerUnreachableError):
        get(store, tmp_path / "blob")
    assert 0 < (tmp_path / "blob.part").stat().st_size < len(BODY)
