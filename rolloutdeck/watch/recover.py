"""Recovers the state of a watch without a state file: asks the server under which attempt it has each file.

Otherwise steps of the first attempt would be sent again under the latest one, or new steps under an attempt that has
ended. A token with the upload scope is sufficient for complete files. The server lists the chunks of growing files only
for a token that may read; with another one these files are sent again under the latest attempt.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from rolloutdeck.watch.file_endings import digest_file_ends, hash_open_file
from rolloutdeck.watch.file_parts import FilePart, build_file_stamp
from rolloutdeck.watch.follower import Follower, build_step_axis
from rolloutdeck.watch.state import SentFile
from rolloutdeck.watch.types import DumpFile
from rolloutdeck.watch.upload import UploadTarget

MAX_MISSES = 3  # attempts in a row that the server does not have
MAX_PROBED_GENERATIONS = 20  # of a growing file
MAX_PROBED_FILES = 20  # files to search an attempt by, if the token must not list attempts


def recover_state(follower: Follower, target: UploadTarget) -> None:
    """Fills the follower's state. Raises RetryLaterError or ActionRequiredError; the next call then continues."""
    state, base = follower.state, follower.state.attempt
    numbers = _list_attempt_numbers(target, base)
    if numbers:
        _recover_growing_files(follower, target, [_build_attempt_key(base, number) for number in sorted(numbers)])
    if numbers is not None and max(numbers, default=1) == 1:
        return  # one attempt only: the server knows the complete files that are sent again
    parts = list(_list_complete_parts(follower, base))
    if numbers is None:
        numbers = _probe_attempt_numbers(target, base, parts)
    attempts = [_build_attempt_key(base, number) for number in sorted(numbers, reverse=True)]
    for part in parts:
        if part.file.source not in state.files and (attempt := _find_attempt(target, part, attempts)):
            state.files[part.file.source] = SentFile(part.stamp, attempt, part.sha256, part.file.step)
    # Set at the end: if a request fails, the next call builds the keys of all attempts from the first one's again.
    state.number, state.attempt = max(numbers), attempts[0]
    for part in parts:
        step, sent = part.file.step, state.files.get(part.file.source)
        if sent and sent.attempt == state.attempt and step is not None:
            axis = build_step_axis(part.file)
            state.last_steps[axis] = max(step, state.last_steps.get(axis, 0))
    follower.known_hashes.clear()


@dataclass(frozen=True)
class _Chunk:
    """A dump on the server: lines of a growing file. Its offset and generation are not listed."""

    sha256: str
    size: int
    attempt: str


def _recover_growing_files(follower: Follower, target: UploadTarget, attempts: Sequence[str]) -> None:
    """Continues each growing file where the chunks end that the server has of it. `attempts`: oldest first."""
    state = follower.state
    files = [file for file in follower.find_growing_files() if file.source not in state.files]
    chunks = _list_chunks(target, {file.source for file in files}, attempts) if files else {}
    for file in files:
        if file.source not in chunks:
            continue
        with suppress(OSError), file.path.open("rb") as opened:  # it may be gone meanwhile
            sent, last_line = _match_chunks(target, file, opened, chunks[file.source])
            state.files[file.source] = sent
            last_step = file.kind.line_step(last_line) if file.step is None else file.step
            if last_line and last_step is not None and sent.attempt == attempts[-1]:
                axis = build_step_axis(file)
                state.last_steps[axis] = max(last_step, state.last_steps.get(axis, last_step))


def _list_chunks(target: UploadTarget, sources: Collection[str], attempts: Collection[str]) -> dict[str, list[_Chunk]]:
    """Returns the chunks of these sources, oldest first."""
    dumps: dict[int, dict[str, Any]] = {}
    page, has_next = 1, True
    while has_next:
        listed = target.list_dumps(page)
        dumps.update({dump["id"]: dump for dump in listed["results"] if dump["source"] in sources})
        page, has_next = page + 1, bool(listed["next"])
    chunks: dict[str, list[_Chunk]] = {}
    for _, dump in sorted(dumps.items()):
        if dump["attempt"] in attempts:
            chunk = _Chunk(dump["sha256"], dump["bytes"], dump["attempt"])
            chunks.setdefault(dump["source"], []).append(chunk)
    return chunks


def _match_chunks(
    target: UploadTarget, file: DumpFile, opened: BinaryIO, chunks: Sequence[_Chunk]
) -> tuple[SentFile, bytes]:
    """Returns what the server has of the file, and the last line of it, b"" if it has other bytes.

    Then the file is sent as a generation above those on the server. Each of them has a chunk, so their number is one.
    """
    starts = [number for number, chunk in enumerate(chunks) if _has_chunk(opened, 0, chunk)]
    runs = [_follow_chunks(opened, chunks[start:]) for start in reversed(starts)]  # the newest first
    if longest := max(runs, key=lambda run: run[-1][0] + run[-1][1].size, default=None):
        offset, chunk = longest[-1]
        end = offset + chunk.size
        stamp = (end, 0, os.fstat(opened.fileno()).st_ino)
        part = FilePart(file, chunk.attempt, chunk.sha256, chunk.size, stamp, offset=offset)
        for generation in reversed(range(min(len(chunks), MAX_PROBED_GENERATIONS))):  # the newest of equal ones
            if target.has_part(replace(part, generation=generation)):
                ends = digest_file_ends(opened, end)
                opened.seek(offset)
                last_line = opened.read(chunk.size)[:-1].rpartition(b"\n")[2]
                return SentFile(stamp, chunk.attempt, chunk.sha256, file.step, end, generation, *ends), last_line
    return SentFile((0, 0, 0), chunks[-1].attempt, generation=len(chunks) - 1, head="unknown"), b""


def _follow_chunks(opened: BinaryIO, chunks: Sequence[_Chunk]) -> list[tuple[int, _Chunk]]:
    """Returns the chunks that follow each other from the start of the file on, with their offsets."""
    found: list[tuple[int, _Chunk]] = []
    offset = 0
    for chunk in chunks:
        if _has_chunk(opened, offset, chunk):
            found.append((offset, chunk))
            offset += chunk.size
    return found


def _has_chunk(opened: BinaryIO, offset: int, chunk: _Chunk) -> bool:
    opened.seek(offset)
    return hashlib.sha256(opened.read(chunk.size)).hexdigest() == chunk.sha256


def _find_attempt(target: UploadTarget, part: FilePart, attempts: Sequence[str]) -> str:
    """Returns the first of the attempts under which the server has the part, else ""."""
    return next((attempt for attempt in attempts if target.has_part(replace(part, attempt=attempt))), "")


def _build_attempt_key(base: str, number: int) -> str:
    return base if number == 1 else f"{base}-{number}"


def _list_attempt_numbers(target: UploadTarget, base: str) -> list[int] | None:
    keys = target.list_attempts()
    if keys is None:
        return None
    pattern = re.compile(re.escape(base) + r"(?:-(\d{1,6}))?\Z")
    return [int(match.group(1) or 1) for match in map(pattern.match, keys) if match]


def _probe_attempt_numbers(target: UploadTarget, base: str, parts: Sequence[FilePart]) -> list[int]:
    numbers, number = [1], 2
    while number - numbers[-1] <= MAX_MISSES:
        attempt = _build_attempt_key(base, number)
        if any(target.has_part(replace(part, attempt=attempt)) for part in parts[-MAX_PROBED_FILES:]):
            numbers.append(number)
        number += 1
    return numbers


def _list_complete_parts(follower: Follower, attempt: str) -> Iterator[FilePart]:
    """Yields the complete files as they are now, without their bytes, in the order of their writing. A file is hashed
    once, even if a request fails and the recovery is repeated."""
    for dump_file in follower.find_complete_files():
        try:
            with dump_file.path.open("rb") as file:
                stamp = build_file_stamp(dump_file.path.stat())
                key = (dump_file.source, stamp)
                if key not in follower.known_hashes:
                    follower.known_hashes[key] = hash_open_file(file)[0]
                yield FilePart(dump_file, attempt, follower.known_hashes[key], stamp[0], stamp)
        except OSError:
            continue
