"""How long commands wait for a server that takes no requests at the moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.cli.common.requests import send_request
from rolloutdeck.cli.folders import artifacts
from rolloutdeck.cli.folders.artifacts import ArtifactImport
from rolloutdeck.cli.folders.import_ import _call_with_retries
from rolloutdeck.cli.rescore import transfer
from rolloutdeck.cli.review import label_import
from rolloutdeck.client import LocalArtifact
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import ServerClient, ServerResponse, ServerUnreachableError
from rolloutdeck.watch import RetryLaterError, UploadTarget

SERVER = ServerClient("http://rolloutdeck.example")
BUSY = ServerResponse(429, {"retry-after": "7"}, b'{"error": {"message": "Too many searches"}}', True)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that were slept, without sleeping."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def set_responses(monkeypatch: pytest.MonkeyPatch, *responses: ServerResponse | None) -> list[dict[str, Any]]:
    """Sets the responses of the next requests; None: the server does not answer. Returns the options of requests."""
    remaining: Iterator[ServerResponse | None] = iter(responses)
    requests: list[dict[str, Any]] = []

    def request(client: ServerClient, method: str, path: str, **options: Any) -> ServerResponse:
        requests.append(options)
        response = next(remaining)
        if response is None:
            raise ServerUnreachableError("connection refused")
        return response

    monkeypatch.setattr(ServerClient, "request", request)
    return requests


def send_step() -> None:
    """The part of `import` that registers a step."""
    files = {"0.pt": {"sha256": "0" * 64, "bytes": 1}}
    step = LocalArtifact(Path("/run/step_1"), "rollout", 1, files, {"0.pt": (1, 1, 1)})
    target = UploadTarget(SERVER, "math", "grpo", "files")
    artifacts.send_artifact(target, step, True, ArtifactImport(), _call_with_retries, lambda size: None)


COMMANDS: list[Callable[[], object]] = [
    lambda: transfer.send_with_retries(SERVER, "GET", "rescores/1/pending/"),
    lambda: label_import.send_with_retries(SERVER, {"rows": []}, 0),
    lambda: _call_with_retries(UploadTarget(SERVER, "math", "grpo", "files").list_attempts),
    send_step,
]


@pytest.mark.parametrize("send", COMMANDS)
def test_a_busy_server_gets_the_request_again_after_the_pause_that_it_names(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float], send: Callable[[], object]
) -> None:
    done = ServerResponse(200, {}, b'{"attempts": [], "id": "a", "missing": []}', True)
    set_responses(monkeypatch, BUSY, None, ServerResponse(503, {"retry-after": "900"}, b"", True), done)
    send()
    assert pauses[0] == 7.0 and pauses[1] <= 2.0 and pauses[2] == 60.0


def test_a_server_that_stays_busy_ends_the_command(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    set_responses(monkeypatch, *[BUSY] * 20)
    with pytest.raises(UsageError, match=r"Too many searches\. 12 rows before are done"):
        label_import.send_with_retries(SERVER, {"rows": []}, 12)
    with pytest.raises(RetryLaterError, match="Too many searches"):
        COMMANDS[2]()


def test_a_body_keeps_the_time_limit_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = set_responses(monkeypatch, ServerResponse(200, {}, b"{}", True))
    send_request(SERVER, "POST", "labels/", {}, timeout=120.0)
    assert requests[0]["timeout"] == 120.0
