"""The queue of the files of artifacts that wait for their upload."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.client import artifact
from rolloutdeck.client.upload.artifact_uploads import ArtifactUploadQueue
from rolloutdeck.lib import ServerResponse
from rolloutdeck.protocol import wire
from tests.support.patching import patch_everywhere


class Server:
    """Receives one file in parts. `lost` uploads have other bytes than the client sent; `code` refuses all."""

    def __init__(self, lost: int = 0, code: str = "") -> None:
        self.lost, self.code, self.ranges = lost, code, list[str]()
        self.received = b""
        self.requests = 0

    def request(self, method: str, path: str, body: Any = b"", headers: Any = None) -> ServerResponse:
        self.requests += 1
        span, content = (headers or {}).get("Content-Range", ""), body if isinstance(body, bytes) else body.read()
        self.ranges.append(span)
        total = int(span.rpartition("/")[2]) if span else len(content)
        self.received += content
        if self.code:
            return self.respond(409, {"error": {"code": self.code, "message": "Refused."}})
        if len(self.received) < total:
            return self.respond(202, {"received": len(self.received)})
        received, self.received = self.received, b""
        if self.lost:
            self.lost -= 1
            return self.respond(409, {"error": {"code": "hash_mismatch", "message": "Send the bytes again."}})
        return self.respond(201, {"sha256": hashlib.sha256(received).hexdigest(), "bytes": total})

    def respond(self, status: int, data: Any) -> ServerResponse:
        return ServerResponse(status, {}, json.dumps(data).encode(), is_from_server=True)


def queue_file(path: Path, content: bytes, messages: list[str]) -> ArtifactUploadQueue:
    path.write_bytes(content)
    result = artifact.build_artifact(path.parent, [path.name], "rollout", 1)
    queue = ArtifactUploadQueue(on_message=messages.append)
    queue.add(result, {file["sha256"] for file in result.files.values()})
    return queue


def upload(queue: ArtifactUploadQueue, server: Server) -> None:
    while queue.upload_next(server.request):
        assert server.requests < 100


@pytest.mark.parametrize("size", [10, 25])
def test_a_file_whose_bytes_the_server_lost_is_sent_again_from_its_start(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_everywhere(monkeypatch, wire, "MAX_PART_BYTES", 10)
    server, messages = Server(lost=3), list[str]()
    queue = queue_file(tmp_path / "a.bin", b"x" * size, messages)
    upload(queue, server)
    assert [sent.name for sent in queue.sent] == ["a.bin"] and not messages
    assert server.ranges.count("bytes 0-9/25") == (4 if size == 25 else 0)


def test_a_file_that_never_has_the_expected_hash_is_given_up(tmp_path: Path) -> None:
    server, messages = Server(lost=10), list[str]()
    queue = queue_file(tmp_path / "a.bin", b"x", messages)
    upload(queue, server)
    assert server.requests == 4 and not queue.sent and not queue.pending_count
    assert messages == [f"{tmp_path / 'a.bin'} was rejected: Send the bytes again."]


def test_a_file_that_the_server_has_forgotten_is_not_sent_again(tmp_path: Path) -> None:
    server, messages = Server(code="conflict"), list[str]()
    queue = queue_file(tmp_path / "a.bin", b"x", messages)
    upload(queue, server)
    assert (server.requests, len(messages), queue.sent) == (1, 1, [])


def test_a_file_that_changed_during_its_upload_is_reported_as_missing(tmp_path: Path) -> None:
    server, messages = Server(lost=1), list[str]()
    queue = queue_file(tmp_path / "a.bin", b"x", messages)
    assert queue.upload_next(server.request)
    os.utime(tmp_path / "a.bin", (1, 1))
    upload(queue, server)
    assert server.requests == 1 and len(queue.missing_artifacts) == 1
    assert "is gone or has changed" in messages[0]


def test_a_file_that_cannot_be_read_for_a_moment_is_sent_after_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a.bin", "b.bin"]
    for name in names:
        (tmp_path / name).write_text(name)
    result = artifact.build_artifact(tmp_path, names, "rollout", 1)
    server, messages = Server(), list[str]()
    queue = ArtifactUploadQueue(on_message=messages.append, retries_reading=True)
    queue.add(result, {file["sha256"] for file in result.files.values()})
    real_open = Path.open

    def fail(path: Path, *args: Any, **options: Any) -> Any:
        if path.name == "a.bin":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real_open(path, *args, **options)

    with monkeypatch.context() as stale:
        stale.setattr(Path, "open", fail)
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            queue.upload_next(server.request)
        assert queue.upload_next(server.request)
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            queue.upload_next(server.request)
    upload(queue, server)
    assert [sent.name for sent in queue.sent] == ["b.bin", "a.bin"]
    assert not messages and not queue.missing_artifacts


def test_thousands_of_files_that_are_gone_are_given_up_one_after_the_other(tmp_path: Path) -> None:
    names = [f"{number}.json" for number in range(3000)]
    for name in names:
        (tmp_path / name).write_text(name)
    result = artifact.build_artifact(tmp_path, names, "rollout", 1)
    messages: list[str] = []
    queue = ArtifactUploadQueue(on_message=messages.append)
    queue.add(result, {file["sha256"] for file in result.files.values()})
    for name in names:
        (tmp_path / name).unlink()
    assert queue.upload_next(lambda *asked, **more: 1 / 0) is None  # type: ignore[arg-type, return-value]
    assert len(messages) == len(names) and not queue.pending_count
    assert [lost for lost, _ in queue.missing_artifacts] == [result]
