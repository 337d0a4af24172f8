"""How long the trainer's thread waits for the files of a pinned step."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.lib import DownloadLimits, ServerUnreachableError
from rolloutdeck.lib import download as downloading
from rolloutdeck.replay.plan import PinnedArtifact, PlanEntry, parse_plan
from rolloutdeck.trainers.common import download_pinned_file, pinned_step

BODY = b"x" * 50_000
HEAD = f"HTTP/1.1 200 OK\r\nX-Rolloutdeck: 1\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()


class SlowServer:
    """Accepts every connection. `mode` is "silent" (no response), "slow" (a few bytes at a time) or "ok"."""

    def __init__(self) -> None:
        self.mode, self.requests = "silent", 0
        self._closed = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._answer, args=(self._socket.accept()[0],), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        self.requests += 1
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            if self.mode == "ok":
                connection.sendall(HEAD + BODY)
            elif self.mode == "slow":
                connection.sendall(HEAD)
                while not self._closed.wait(0.02):
                    connection.sendall(b"x")
            self._closed.wait(30)

    def close(self) -> None:
        self._closed.set()
        self._socket.shutdown(socket.SHUT_RDWR)  # ends the wait in `accept`, which would take the next server's
        self._socket.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowServer]:
    running = SlowServer()
    monkeypatch.setenv("ROLLOUTDECK_URL", running.url)
    monkeypatch.setattr(downloading, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(pinned_step, "step_downloads", pinned_step.StepDownloads())
    yield running
    running.close()


def build_entry() -> tuple[PlanEntry, PinnedArtifact]:
    files = {"0.pt": {"sha256": hashlib.sha256(BODY).hexdigest(), "bytes": len(BODY)}}
    source = {"run": "u", "name": "first", "step": 3, "step_kind": "global_step"}
    artifact = {"id": "a", "role": "rollout", "step": 3, "files": files}
    entry = {"target_step": 3, "pin": 5, "source": source, "artifacts": [artifact]}
    plan = {"plan": "default", "revision": 2, "action": "cache", "on_mismatch": "generate", "exclude_flagged": False}
    [parsed] = parse_plan({**plan, "entries": [entry]}).entries
    return parsed, parsed.artifacts[0]


def download() -> tuple[float, bytes]:
    """Returns the seconds that a step waited, and the bytes of its file; b"" without a file."""
    start = time.monotonic()
    try:
        with download_pinned_file(*build_entry(), "0.pt") as path:
            return time.monotonic() - start, Path(path).read_bytes()
    except ServerUnreachableError:
        return time.monotonic() - start, b""


def test_files_that_arrived_after_the_start_of_the_run_are_loaded(server: SlowServer) -> None:
    server.mode, (entry, artifact) = "ok", build_entry()
    with download_pinned_file(entry, replace(artifact, state="uploading"), "0.pt") as path:
        assert path.read_bytes() == BODY
    for state in ("unsafe", "gone"):
        with (
            pytest.raises(NotReplayableError, match=state),
            download_pinned_file(entry, replace(artifact, state=state), "0.pt"),
        ):
            pass


@pytest.mark.parametrize("mode", ["silent", "slow"])
def test_the_wait_of_a_step_is_limited_and_later_steps_wait_less_until_a_file_arrives(
    server: SlowServer, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_limits, failing_limits = pinned_step.FIRST_LIMITS, pinned_step.FAILING_LIMITS
    assert first_limits.wait <= 10 and first_limits.total <= 30
    assert failing_limits.tries == 1 and failing_limits.wait <= 5 and failing_limits.total <= 5
    monkeypatch.setattr(pinned_step, "FIRST_LIMITS", DownloadLimits(wait=0.5, total=1.2))
    monkeypatch.setattr(pinned_step, "FAILING_LIMITS", replace(failing_limits, wait=0.3, total=0.3))
    server.mode = mode
    first, second = download(), download()
    assert (first[1], second[1]) == (b"", b"")
    assert first[0] < 2.5 and second[0] < 1.0 < first[0] + second[0]
    requests_before = server.requests
    download()
    assert server.requests == requests_before + 1
    server.mode = "ok"
    assert download()[1] == BODY
    server.mode, requests_before = "silent", server.requests
    download()
    assert server.requests > requests_before + 1
