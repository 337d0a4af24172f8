"""Recovers the state of a watch without a state file: asks the server under which attempt it has each file.

Otherwise steps of the first attempt would be sent again under the latest one, or new steps under an attempt that has
ended. A token with the upload scope is sufficient.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rolloutdeck.watch.file_endings import hash_open_file
from rolloutdeck.watch.file_parts import FilePart, build_file_stamp
from rolloutdeck.watch.follower import Follower, build_step_axis
from rolloutdeck.watch.state import SentFile
from rolloutdeck.watch.upload import UploadTarget

MAX_MISSES = 3
MAX_PROBED_FILES = 20  # files to search an attempt by, if the token must not list attempts


def recover_state(follower: Follower, target: UploadTarget) -> None:
    """Fills the follower's state. Raises RetryLaterError or ActionRequiredError; the next call then continues."""
    state, base = follower.state, follower.state.attempt
    numbers = _list_attempt_numbers(target, base)
    if numbers is not None and max(numbers, default=1) == 1:
        return  # one attempt only: the server knows what is sent again
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
