"""Steps that a trainer could load again, in the folders of a run that is being written: told to the server once they
are whole, and sent when they are wanted.

A look finds them, `turn` tells of the new ones, asks what is wanted and sends for a moment. What was told survives a
restart in a file beside the watch's own memory, so that nothing is hashed twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolloutdeck.client import (
    ArtifactUploadQueue,
    FileChangedError,
    FileStamp,
    LocalArtifact,
    build_artifact,
    build_import_command,
    fetch_requested_files,
    is_permanent_rejection,
    read_file_stamp,
    register_artifact,
)
from rolloutdeck.lib import ServerResponse, is_safe_to_follow
from rolloutdeck.protocol import format_step_ranges
from rolloutdeck.trainer_api import LoadableStep, StepLocation, find_steps, read_step
from rolloutdeck.watch.upload import RetryLaterError, UploadRejectedError, UploadTarget, parse_response

LOOK_SECONDS = 2.0  # between looks, which take at most a tenth of the time
ASK_SECONDS = 10.0
SEND_SECONDS = 2.0  # for wanted files in one turn, so that dumps are not kept waiting
QUIET_SECONDS = 2.0  # a whole step is taken after this long without a change,
GROWING_SECONDS = 600.0  # one whose tree does not tell how many inner folders it gets, after this long

REQUESTED_FILES_KEY = Path("wanted/")  # what the question is called among what was complained of

Stamps = dict[str, FileStamp]


@dataclass(frozen=True)
class ArtifactOptions:
    """What the person said: when bytes go (`now`, `on-pin`, `never`), and the run's tokenizer. With `on-pin`, too, what
    a trainer will write over goes at once."""

    mode: str = "on-pin"
    tokenizer: LocalArtifact | None = None

    def build_step_artifact(self, found: LoadableStep) -> LocalArtifact:
        """Returns the artifact of a step, with the tokenizer's facts. Raises OSError, FileChangedError, ValueError."""
        tokenizer_facts = self.tokenizer.facts if self.tokenizer else {}
        return build_artifact(
            found.path,
            found.files,
            found.role,
            found.step,
            step_kind=found.step_kind,
            facts={**found.facts, **tokenizer_facts},
        )


class ArtifactCollector:
    """`places` are the folders to look below. `pending` counts the steps that may soon be whole, and wanted files."""

    def __init__(
        self,
        places: Callable[[], Sequence[Path]],
        target: UploadTarget,
        keeping: ArtifactOptions,
        memory: Path | None,
        say: Callable[[str], None],
    ) -> None:
        self.places, self.target, self.keeping, self.say = places, target, keeping, say
        self.shelf = ArtifactUploadQueue(memory, lambda text: say(f"{text}."))
        self.waiting = 0
        self.left_out: dict[Path, Stamps] = {}
        self._reasons: dict[Path, str] = {}
        self._still: dict[Path, tuple[Stamps, float]] = {}
        self._look_at = self._ask_at = 0.0

    @property
    def pending(self) -> int:
        return self.waiting + self.shelf.pending_count

    def look(self) -> list[tuple[StepLocation, Stamps]]:
        """The whole steps that the server does not know yet."""
        if self.keeping.mode == "never":
            return []
        found = []
        self.waiting = 0
        for spot in dict.fromkeys(spot for place in self.places() if place.exists() for spot in find_steps(place)):
            stamps = _read_stamps(spot)
            folder = spot.path.parent if spot.path.is_file() else spot.path
            if (
                spot.reason
                or not stamps
                or self.shelf.is_registered(folder, stamps)
                or self.left_out.get(spot.path) == stamps
            ):
                continue
            if self._quiet(spot, stamps):
                found.append((spot, stamps))
            else:
                self.waiting += not spot.open
        return found

    def turn(self) -> int:
        """How many steps were told and files sent. What the server refuses is said, and keeps nothing else waiting.
        Raises RetryLaterError, ActionRequiredError."""
        tokenizer = self.keeping.tokenizer
        if (
            tokenizer
            and not self.shelf.is_registered(tokenizer.path, tokenizer.stamps)
            and tokenizer.path not in self._reasons
        ):
            self._add_tokenizer(tokenizer)
        done = self._tell() if time.monotonic() >= self._look_at else 0
        if self.shelf.artifacts and time.monotonic() >= self._ask_at:
            self._ask()
        return done + self._send()

    def _add_tokenizer(self, tokenizer: LocalArtifact) -> None:
        try:
            self.add(tokenizer, send_now=True)
        except UploadRejectedError as error:
            self._complain(tokenizer.path, f"the tokenizer {tokenizer.path} is left out: {error}")

    def _ask(self) -> None:
        """What is wanted. Raises RetryLaterError, ActionRequiredError."""
        told = None
        try:
            told = parse_response(fetch_requested_files(self.target.ask_run))
        except UploadRejectedError as error:
            self._complain(REQUESTED_FILES_KEY, f"{self.target.name}: the server does not say what it wants: {error}")
        self.shelf.enqueue_requested(told.get("files") if isinstance(told, dict) else None)
        self._ask_at = time.monotonic() + ASK_SECONDS

    def add(self, found: LocalArtifact, send_now: bool = False) -> None:
        """Tells the server of an artifact, and puts it on the shelf. Raises RetryLaterError, ActionRequiredError,
        UploadRejectedError."""
        told = self._register(found, send_now)
        self.shelf.add(found, told.get("missing") or () if send_now else ())

    def _register(self, found: LocalArtifact, send_now: bool = False, missing_reason: str = "") -> dict[str, Any]:
        target = self.target
        command = build_import_command(found.path, target.project, target.name, target.attempt)
        told = parse_response(
            register_artifact(target.ask_run, found, target.attempt, command, send_now, missing_reason)
        )
        if not isinstance(told, dict) or told.get("id") != found.key:
            raise RetryLaterError("the answer to an artifact does not name it")
        return told

    def _tell(self) -> int:
        started = time.monotonic()
        told: list[int] = []
        try:
            for spot, stamps in self.look():
                if found := self._take(spot, stamps):
                    told.append(found.step)
        finally:
            self._look_at = time.monotonic() + max(LOOK_SECONDS, 9 * (time.monotonic() - started))
            if told:
                self._ask_at = 0.0
                self.say(
                    f"{self.target.name}: step{'s' if len(told) > 1 else ''} {format_step_ranges(told)} can be pinned."
                )
        return len(told)

    def _take(self, spot: StepLocation, stamps: Stamps) -> LoadableStep | None:
        """What was told of; None where it is left out or not whole."""
        found = read_step(spot)
        if isinstance(found, str):
            self._leave(spot, stamps, found)
            return None
        if not self._told(spot, stamps, found):
            return None
        self._still.pop(spot.path, None)
        return found

    def _told(self, spot: StepLocation, stamps: Stamps, found: LoadableStep) -> bool:
        try:
            made = self.keeping.build_step_artifact(found)
            if made.stamps != stamps:  # else files of two steps, or what was said of other bytes, would be one step
                raise FileChangedError(f"{spot.path} changed while it was looked at")
            self.add(made, self.keeping.mode == "now" or spot.fleeting)
        except (FileChangedError, OSError):  # the next look sees it
            self.waiting += 1
            return False
        except (ValueError, UploadRejectedError) as error:
            self._leave(spot, stamps, str(error))
            return False
        return True

    def _leave(self, spot: StepLocation, stamps: Stamps, reason: str) -> None:
        self.left_out[spot.path] = stamps  # a trainer that writes over its files gives the same reason again and again
        self._complain(spot.path, f"{spot.path} is left out: {reason}")

    def _send(self) -> int:
        """Wanted files, part by part, for a moment. Raises RetryLaterError, ActionRequiredError."""
        before, end = len(self.shelf.sent), time.monotonic() + SEND_SECONDS
        while time.monotonic() < end and upload_requested_part(self.shelf, self.target):
            pass
        while self.shelf.missing_artifacts:
            self._tell_lost(*self.shelf.missing_artifacts[0])
            self.shelf.missing_artifacts.popleft()
        sent = self.shelf.sent[before:]
        if sent:
            names = sorted({f"step {errand.artifact.step}" for errand in sent})
            self.say(f"{self.target.name}: sent files of {', '.join(names[:8])}.")
        return len(sent)

    def _tell_lost(self, lost: LocalArtifact, why: str) -> None:
        try:
            self._register(lost, missing_reason=why)
        except UploadRejectedError as error:
            self._complain(lost.path, f"that {why} was refused: {error}")

    def _complain(self, about: Path, text: str) -> None:
        """Says it, unless it is what was said of it last."""
        if self._reasons.get(about) != text:
            self.say(text)
        self._reasons[about] = text

    def _quiet(self, spot: StepLocation, stamps: Stamps) -> bool:
        before, since = self._still.get(spot.path, ({}, 0.0))
        if before != stamps:
            since = time.monotonic()
            self._still[spot.path] = stamps, since
        quiet = time.monotonic() - since >= (GROWING_SECONDS if spot.open else QUIET_SECONDS)
        return quiet and before == stamps


def upload_requested_part(shelf: ArtifactUploadQueue, target: UploadTarget) -> ServerResponse | None:
    """One request of a wanted file; None where nothing waits. Raises RetryLaterError, ActionRequiredError."""
    answer = shelf.upload_next(target.ask_run)
    if answer is not None and not answer.is_success and not is_permanent_rejection(answer):
        parse_response(answer)
    return answer


def _read_stamps(spot: StepLocation) -> Stamps:
    """Of all its files; {} where one is gone, or is a link that is not followed."""
    folder = spot.path.parent if spot.path.is_file() else spot.path
    if not all(is_safe_to_follow(folder / name) for name in spot.files):
        return {}
    try:
        return {name: read_file_stamp(folder / name) for name in spot.files}
    except OSError:
        return {}
