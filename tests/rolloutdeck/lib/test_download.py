"""Downloads of the files of artifacts are complete and verified, also over connections that break."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rolloutdeck.lib import download
from rolloutdeck.lib.download import DownloadError, download_file
from rolloutdeck.lib.http import ServerClient, ServerUnreachableError

BODY = bytes(range(256)) * 20_000  # 5 MB


class FileServer(ThreadingHTTPServer):
    """Sends `body`. The first responses end after the numbers of bytes in `breaks`. `status` refuses all requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body, self.breaks, self.ranges = BODY, list[int](), list[str]()
        self.status, self.is_ours, self.partial = 0, True, True
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def client(self) -> ServerClient:
        return ServerClient(f"http://127.0.0.1:{self.server_port}")


class Handler(BaseHTTPRequestHandler):
    server: FileServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        span = self.headers["Range"] or ""
        self.server.ranges.append(span)
        start = int(span[6:-1]) if span and self.server.partial else 0
        result = b'{"error": {"code": "unsafe", "message": "It runs code."}}'
        body = result if self.server.status else self.server.body[start:]
        self.send_response(self.server.status or (206 if start else 200))
        if self.server.is_ours:
            self.send_header("X-Rolloutdeck", "1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.breaks.pop(0)] if self.server.breaks else body)


@pytest.fixture
def file_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr(download, "FIRST_RETRY_SECONDS", 0.01)
    running = FileServer()
    yield running
    running.shutdown()
    running.server_close()


def download_body(file_server: FileServer, into: Path, body: bytes = BODY) -> None:
    download_file(file_server.client, "runs/x/", into, hashlib.sha256(body).hexdigest(), len(body))


def test_a_file_is_downloaded_unchanged(file_server: FileServer, tmp_path: Path) -> None:
    download_body(file_server, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == BODY
    assert not (tmp_path / "blob.part").exists()


def test_a_download_continues_where_the_connection_broke(file_server: FileServer, tmp_path: Path) -> None:
    file_server.breaks = [1_000_000, 500_000]
    download_body(file_server, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == BODY
    assert file_server.ranges[0] == "" and all(span.startswith("bytes=") for span in file_server.ranges[1:])
    assert file_server.ranges[1] != "bytes=0-"


def test_a_download_continues_the_partial_file_of_an_earlier_call(file_server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "blob.part").write_bytes(BODY[:4_000_000])
    download_body(file_server, tmp_path / "blob")
    assert file_server.ranges == ["bytes=4000000-"]
    assert (tmp_path / "blob").read_bytes() == BODY


def test_a_server_without_ranges_sends_the_whole_file_again(file_server: FileServer, tmp_path: Path) -> None:
    file_server.partial = False
    (tmp_path / "blob.part").write_bytes(BODY[:4_000_000])
    download_body(file_server, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == BODY


def test_a_file_with_another_hash_is_deleted(file_server: FileServer, tmp_path: Path) -> None:
    file_server.body = BODY[:-1] + b"x"
    with pytest.raises(DownloadError, match="has the sha256"):
        download_body(file_server, tmp_path / "blob")
    assert list(tmp_path.iterdir()) == []


def test_more_bytes_than_the_file_has_are_refused(file_server: FileServer, tmp_path: Path) -> None:
    file_server.body = BODY * 2
    with pytest.raises(DownloadError, match="more than the 5,120,000 bytes"):
        download_body(file_server, tmp_path / "blob")
    assert not (tmp_path / "blob").exists()


def test_the_error_contains_the_servers_reason_for_a_refusal(file_server: FileServer, tmp_path: Path) -> None:
    file_server.status = 409
    with pytest.raises(DownloadError, match=r"It runs code\."):
        download_body(file_server, tmp_path / "blob")


def test_an_answer_of_a_proxy_is_refused(file_server: FileServer, tmp_path: Path) -> None:
    file_server.is_ours = False
    with pytest.raises(DownloadError, match="not from a Rolloutdeck server"):
        download_body(file_server, tmp_path / "blob")
    assert not (tmp_path / "blob").exists()


def test_the_partial_file_is_kept_if_the_server_is_unreachable(file_server: FileServer, tmp_path: Path) -> None:
    file_server.breaks = [1_000_000] + [0] * 9
    with pytest.raises(ServerUnreachableError):
        download_body(file_server, tmp_path / "blob")
    assert 0 < (tmp_path / "blob.part").stat().st_size < len(BODY)
