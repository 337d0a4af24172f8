"""What a watch without a memory of its own must learn from the server: under which attempt it has each file.

Otherwise steps of the first launch would be sent again under the latest attempt, or new ones under an attempt that is
over. Asking needs no more than the scope of sending.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rolloutdeck.watch.file_endings import hash_open_file
from rolloutdeck.watch.follower import FilePart, Follower, build_file_stamp, build_step_axis
from rolloutdeck.watch.state import SentFile
from rolloutdeck.watch.upload import UploadTarget

MAX_MISSES = 3
SAMPLED = 20  # files by which an attempt is looked for where the token may not list them


def recover_state(follower: Follower, target: UploadTarget) -> None:
    """Fills the follower's state. Raises RetryLaterError, ActionRequiredError."""
    base = follower.state.attempt
    numbers = _listed(target, base)
    if numbers is not None and max(numbers, default=1) == 1:
        return  # one launch only: whatever is sent again is known
    pieces = list(_pieces(follower, base))
    if numbers is None:
        numbers = _probed(target, base, pieces)
    latest = max(numbers, default=1)
    state = follower.state
    state.number, state.attempt = latest, _key(base, latest)
    for piece in pieces:
        for number in sorted(numbers, reverse=True):
            if target.knows(_under(piece, _key(base, number))):
                state.files[piece.found.source] = SentFile(
                    piece.stamp, _key(base, number), piece.sha256, piece.found.step
                )
                if number == latest and piece.found.step is not None:
                    name = build_step_axis(piece.found)
                    state.top[name] = max(piece.found.step, state.top.get(name, 0))
                break


def _key(base: str, number: int) -> str:
    return base if number == 1 else f"{base}-{number}"


def _under(piece: FilePart, attempt: str) -> FilePart:
    return FilePart(piece.found, attempt, piece.sha256, piece.size, piece.stamp)


def _listed(target: UploadTarget, base: str) -> list[int] | None:
    keys = target.attempts()
    if keys is None:
        return None
    shape = re.compile(re.escape(base) + r"(?:-(\d{1,6}))?\Z")
    return [int(found.group(1) or 1) for found in map(shape.match, keys) if found]


def _probed(target: UploadTarget, base: str, pieces: Sequence[FilePart]) -> list[int]:
    numbers, number = [1], 2
    while number - numbers[-1] <= MAX_MISSES:
        if any(target.knows(_under(piece, _key(base, number))) for piece in pieces[-SAMPLED:]):
            numbers.append(number)
        number += 1
    return numbers


def _pieces(follower: Follower, attempt: str) -> Iterator[FilePart]:
    """The whole files as they are now, without their bytes, in the order of their writing."""
    for found in follower.whole_files():
        try:
            with found.path.open("rb") as file:
                stamp = build_file_stamp(found.path.stat())
                yield FilePart(found, attempt, hash_open_file(file)[0], stamp[0], stamp)
        except OSError:
            continue
