"""Downloads of artifact files from the server: streamed, resumed and verified by their sha256."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rolloutdeck.lib.http import ServerClient, ServerUnreachableError

CHUNK_BYTES = 1 << 20
MAX_TRIES = 5
FIRST_RETRY_SECONDS = 0.5  # pause before the second try; it doubles with each further try
TIMEOUT_SECONDS = 60.0  # for each wait on the network
MIN_TIMEOUT_SECONDS = 0.05
MIN_BYTES_PER_SECOND = 1 << 20  # of a download whose total time is limited

DownloadProgress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class DownloadLimits:
    """How long a download waits for the server.

    `wait` is in seconds, for each wait on the network. `total` is in seconds, for all tries together; the time in which
    bytes arrive at MIN_BYTES_PER_SECOND does not count, so that a large file is not given up.
    """

    tries: int = MAX_TRIES
    wait: float = TIMEOUT_SECONDS
    total: float = math.inf


class DownloadError(Exception):
    """The server refuses the download (the message is the server's), or it sent different bytes."""


class _Deadline:
    """The time at which a download is given up. Each received byte moves it."""

    def __init__(self, limits: DownloadLimits) -> None:
        self._wait, self._end = limits.wait, time.monotonic() + limits.total

    def compute_timeout(self) -> float:
        """Returns the seconds that the next wait on the network may take."""
        return min(self._wait, max(MIN_TIMEOUT_SECONDS, self._end - time.monotonic()))

    def is_over(self, pause: float = 0.0) -> bool:
        """Whether the time has come, or comes within `pause` seconds."""
        return time.monotonic() + pause >= self._end

    def extend(self, count: int) -> None:
        self._end += count / MIN_BYTES_PER_SECOND


def download_file(
    server: ServerClient,
    path: str,
    into: Path,
    sha256: str,
    size: int,
    progress: DownloadProgress = lambda count: None,
    limits: DownloadLimits | None = None,
) -> None:
    """Downloads `path` (below `/api/v1/`) to `into`. The file appears only when it is complete and verified.

    A partial download is stored in `{into}.part`; retries and later calls resume from it. `progress` is called with
    the number of bytes of each chunk. Without `limits` it waits for minutes. Raises DownloadError,
    ServerUnreachableError or OSError.
    """
    part, limits = into.with_name(into.name + ".part"), limits or DownloadLimits()
    deadline = _Deadline(limits)
    for attempt in range(limits.tries):
        try:
            digest = _resume_download(server, path, part, size, progress, deadline)
            break
        except ServerUnreachableError:
            pause = FIRST_RETRY_SECONDS * 2**attempt
            if attempt == limits.tries - 1 or deadline.is_over(pause):
                raise
            time.sleep(pause)
    if digest != sha256:
        with suppress(OSError):
            part.unlink()
        raise DownloadError(f"the downloaded file has the sha256 {digest[:12]}…, not {sha256[:12]}…; it was deleted")
    part.replace(into)


def hash_file(path: Path) -> str:
    return _compute_file_digest(path).hexdigest()


def _compute_file_digest(path: Path) -> hashlib._Hash:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest


def _resume_download(
    server: ServerClient, path: str, part: Path, size: int, progress: DownloadProgress, deadline: _Deadline
) -> str:
    """Downloads the bytes that the partial file lacks. Returns the sha256 of the complete file."""
    part.touch()
    offset = part.stat().st_size
    if offset > size:
        os.truncate(part, offset := 0)
    digest = _compute_file_digest(part)
    if offset == size:
        return digest.hexdigest()
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    with server.stream(path, headers=headers, timeout=deadline.compute_timeout()) as response:
        if response.status not in (200, 206) or not response.is_from_server:
            raise DownloadError(response.error_message)
        if response.status == 200:
            offset, digest = 0, hashlib.sha256()
        with part.open("r+b") as file:
            file.truncate(offset)
            file.seek(offset)
            while chunk := response.read(CHUNK_BYTES):
                offset += len(chunk)
                if offset > size:
                    raise DownloadError(f"the server sends more than the {size:,} bytes of this file")
                file.write(chunk)
                digest.update(chunk)
                progress(len(chunk))
                deadline.extend(len(chunk))
                if offset < size and deadline.is_over():
                    raise ServerUnreachableError(f"the server is too slow: {offset:,} of {size:,} bytes came in time")
            file.flush()
            os.fsync(file.fileno())
    if offset < size:
        raise ServerUnreachableError(f"the response ended after {offset:,} of {size:,} bytes")
    return digest.hexdigest()
