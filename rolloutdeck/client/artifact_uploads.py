"""The artifacts that this process told a server of, and the bytes that the server wants of them.

Only what was put on the shelf here is ever sent: the server names artifacts, never paths. Nothing here waits or starts
threads; one `send` is one request.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rolloutdeck.client.artifact import FileStamp, LocalArtifact, cache_file_hash, read_file_stamp
from rolloutdeck.client.launch import get_host_name
from rolloutdeck.lib import FileSlice, ServerResponse
from rolloutdeck.protocol import MAX_PART_BYTES

RequestFunction = Callable[..., ServerResponse]  # ask(method, path below the run's address, query=, body=, headers=)
MessageCallback = Callable[[str], None]


@dataclass(frozen=True)
class UploadRequest:
    """A file that is wanted."""

    artifact: LocalArtifact
    key: str
    name: str

    @property
    def path(self) -> Path:
        return self.artifact.path / self.name

    @property
    def sha256(self) -> str:
        return str(self.artifact.files[self.name]["sha256"])

    @property
    def size(self) -> int:
        return int(self.artifact.files[self.name]["bytes"])

    def is_there(self) -> bool:
        """Whether the file still is the one that was hashed."""
        try:
            return read_file_stamp(self.path) == tuple(self.artifact.stamps[self.name])
        except OSError:
            return False


def register_artifact(
    ask: RequestFunction, artifact: LocalArtifact, attempt: str, command: str, send_now: bool = False, gone: str = ""
) -> ServerResponse:
    """Tells the server of an artifact; a good answer has `id state missing`."""
    body = json.dumps(artifact.told(attempt, command, send_now, gone)).encode()
    return ask("PUT", "artifacts/", body=body, headers={"Content-Type": "application/json"})


def fetch_requested_files(ask: RequestFunction) -> ServerResponse:
    """Which bytes the server wants from this host; a good answer has `files`."""
    return ask("GET", "wanted/", query={"host": get_host_name()})


class ArtifactUploadQueue:
    """`memory` is a file in which the shelf survives the process: a JSON line for each artifact; None for none.

    Calls may come from two threads: one asks what is wanted, the other sends.
    """

    def __init__(self, memory: Path | None = None, say: MessageCallback = lambda text: None) -> None:
        self.memory: Path | None = None
        self.say = say
        self.artifacts: dict[str, LocalArtifact] = {}
        self.sent: list[UploadRequest] = []
        self.lost: deque[tuple[LocalArtifact, str]] = deque()  # and why; their owner tells the server
        self._stamps: dict[tuple[Path, frozenset[str]], dict[str, FileStamp]] = {}
        self._queue: deque[UploadRequest] = deque()
        self._refused: set[tuple[str, str]] = set()
        self._requests: Iterator[ServerResponse] | None = None
        self._lock = threading.Lock()
        if memory:
            self.keep_in(memory)

    @property
    def queue(self) -> tuple[UploadRequest, ...]:
        """The files that wait to be sent, the next one first."""
        return tuple(self._queue)

    @property
    def busy(self) -> int:
        """How many files wait to be sent."""
        return len(self._queue)

    def knows(self, path: Path, stamps: Mapping[str, FileStamp]) -> bool:
        """Whether the server was told of these very files, by their stamps."""
        return self._stamps.get((path, frozenset(stamps))) == dict(stamps)

    def put(self, artifact: LocalArtifact, missing: Collection[str] = ()) -> None:
        """The server knows this artifact; files whose sha256 is in `missing` are to be sent now. Raises OSError."""
        key = artifact.key
        self._hold(key, artifact)
        self._add(
            UploadRequest(artifact, key, name) for name in artifact.files if artifact.files[name]["sha256"] in missing
        )
        if self.memory:
            _append(self.memory, {**asdict(artifact), "path": str(artifact.path), "key": key})

    def want(self, files: Any) -> None:
        """Takes the `files` of a `wanted/` answer; what is not on this shelf is another process's."""
        for told in files if isinstance(files, list) else ():
            artifact = self.artifacts.get(str(told.get("artifact"))) if isinstance(told, dict) else None
            names = [name for name in artifact.files if name == told.get("path")] if artifact else []
            self._add(UploadRequest(artifact, told["artifact"], name) for name in names)  # type: ignore[arg-type]

    def send(self, ask: RequestFunction) -> ServerResponse | None:
        """One request of the file at the head of the queue; its answer, None where nothing waits.

        A file is done when the server has a receipt for it, or will never take it. After any other answer the next
        call tries it again, from where the server says it is. Raises what `ask` raises.
        """
        while errand := self._next():
            self._requests = self._requests or _requests(ask, errand)
            try:
                answer = next(self._requests)
                break
            except OSError as error:
                self._lose(errand, f"{errand.path} can't be read ({error.strerror or error})")
            except BaseException:
                self._requests = None
                raise
        else:
            return None
        if answer.is_success and answer.status != 202:
            self.sent.append(errand)
            self._done()
        elif is_permanent_rejection(answer):
            self._give_up(errand, f"{errand.path} was refused: {answer.error_message}")
        elif not answer.is_success:
            self._requests = None
        return answer

    def _next(self) -> UploadRequest | None:
        """The one at the head of the queue, after those whose files are lost."""
        while self._queue:
            with self._lock:
                errand = self._queue[0]
            if self._requests or errand.is_there():
                return errand
            self._lose(errand, f"{errand.path} is gone or has changed since it was registered")
        return None

    def _add(self, errands: Iterable[UploadRequest]) -> None:
        with self._lock:
            waiting = {(errand.key, errand.name) for errand in self._queue} | self._refused
            self._queue.extend(errand for errand in errands if (errand.key, errand.name) not in waiting)

    def _done(self) -> None:
        self._requests = None
        with self._lock:
            self._queue.popleft()

    def _lose(self, errand: UploadRequest, why: str) -> None:
        if not any(known is errand.artifact for known, _ in self.lost):
            self.lost.append((errand.artifact, why))
        self._give_up(errand, why)

    def _give_up(self, errand: UploadRequest, why: str) -> None:
        self._refused.add((errand.key, errand.name))
        self._done()
        self.say(why)

    def _hold(self, key: str, artifact: LocalArtifact) -> None:
        self.artifacts[key] = artifact
        self._stamps[artifact.path, frozenset(artifact.stamps)] = dict(artifact.stamps)
        for name, file in artifact.files.items():
            cache_file_hash(artifact.path / name, artifact.stamps[name], file["sha256"])

    def keep_in(self, memory: Path) -> None:
        """From now on the shelf is kept there, with what an earlier process kept. A damaged line costs its own
        artifact: it is hashed and told again."""
        self.memory = memory
        try:
            lines = memory.read_bytes().split(b"\n")
        except OSError:
            return
        for line in lines:
            try:
                kept = json.loads(line)
                stamps = {name: tuple(stamp) for name, stamp in kept.pop("stamps").items()}
                key, path = kept.pop("key"), Path(kept.pop("path"))
                self._hold(key, LocalArtifact(path=path, stamps=stamps, **kept))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue


def is_permanent_rejection(answer: ServerResponse) -> bool:
    """Whether the server will never take this file from here."""
    return answer.is_from_server and answer.status in (400, 404, 409, 413, 415)


def _requests(ask: RequestFunction, errand: UploadRequest) -> Iterator[ServerResponse]:
    """The requests that bring a file over, each made when its answer is asked for. Raises OSError and as `ask`."""
    address = f"artifacts/{errand.key}/files/{errand.sha256}/"

    def put(body: bytes | FileSlice, span: str = "") -> ServerResponse:
        headers = {"Content-Type": "application/octet-stream"} | ({"Content-Range": span} if span else {})
        answer = ask("PUT", address, body=body, headers=headers)
        return (
            answer
            if not answer.is_success or answer.status == 202 or _is_receipt(answer, errand)
            else _no_receipt(answer)
        )

    with errand.path.open("rb") as file:
        if errand.size <= MAX_PART_BYTES:
            yield put(FileSlice(file, 0, errand.size))
            return
        answer = put(b"", f"bytes */{errand.size}")
        yield answer
        while answer.is_success and answer.status == 202:
            at = parse_received_bytes(answer, errand.size)
            length = min(MAX_PART_BYTES, errand.size - at)
            answer = put(FileSlice(file, at, length), f"bytes {at}-{at + length - 1}/{errand.size}")
            yield answer


def parse_received_bytes(answer: ServerResponse, total: int) -> int:
    """How many bytes the server has; 0 when it doesn't say, which sends from the start."""
    told = answer.json()
    found = told.get("received") if isinstance(told, dict) else None
    return found if isinstance(found, int) and 0 <= found < total else 0


def _is_receipt(answer: ServerResponse, errand: UploadRequest) -> bool:
    told: Any = answer.json()
    return isinstance(told, dict) and (told.get("sha256"), told.get("bytes")) == (errand.sha256, errand.size)


def _no_receipt(answer: ServerResponse) -> ServerResponse:
    """An answer that says yes and names other bytes is nobody's we know: the file stays."""
    return ServerResponse(answer.status, {**answer.headers}, answer.body, is_from_server=False)


def _append(path: Path, kept: Mapping[str, Any]) -> None:
    """A line that is whole or, after a power cut, the last one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    line = json.dumps(kept).encode() + b"\n"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)
