"""Steps that a trainer can load again, in the folders of a running training.

`ArtifactCollector.collect` finds complete steps, registers the new ones, polls for requested files and uploads them for
a limited time. A file next to the state of the watch stores what was registered, so that a restart hashes nothing
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolloutdeck import client
from rolloutdeck.client import ArtifactUploadQueue, FileChangedError, FileStamp, LocalArtifact
from rolloutdeck.lib import ServerResponse, get_path_type, is_safe_to_follow
from rolloutdeck.protocol import format_step_ranges
from rolloutdeck.trainer_api import LoadableStep, StepLocation, find_steps, read_step
from rolloutdeck.watch.upload import RetryLaterError, UploadRejectedError, UploadTarget, parse_response

SCAN_SECONDS = 2.0  # between scans; a scan takes at most a tenth of the time
POLL_SECONDS = 10.0  # between polls for requested files
UPLOAD_SECONDS = 2.0  # for requested files in one `collect`, so that dumps need not wait
QUIET_SECONDS = 2.0  # a complete step is registered after this long without a change
GROWING_SECONDS = 600.0  # the same for a step of which the number of inner folders is unknown

REQUESTED_FILES_KEY = Path("wanted/")  # the key of this request among the printed messages

Stamps = dict[str, FileStamp]


@dataclass(frozen=True)
class ArtifactOptions:
    """The user's options: when bytes are uploaded (`now`, `on-pin`, `never`), and the tokenizer of the run.

    With `on-pin`, a step that the trainer will overwrite is uploaded at once too.
    """

    mode: str = "on-pin"
    tokenizer: LocalArtifact | None = None

    def build_step_artifact(self, step: LoadableStep) -> LocalArtifact:
        """Returns the artifact with the tokenizer's facts. Raises OSError, FileChangedError or ValueError."""
        facts = {**step.facts, **(self.tokenizer.facts if self.tokenizer else {})}
        return client.build_artifact(step.path, step.files, step.role, step.step, step_kind=step.step_kind, facts=facts)


class ArtifactCollector:
    """Registers and uploads the steps below the folders that `get_folders` returns.

    `pending_count` counts the incomplete steps and the requested files.
    """

    def __init__(
        self,
        get_folders: Callable[[], Sequence[Path]],
        target: UploadTarget,
        options: ArtifactOptions,
        state_file: Path | None,
        on_message: Callable[[str], None],
    ) -> None:
        self.get_folders, self.target, self.options, self.on_message = get_folders, target, options, on_message
        self.upload_queue = ArtifactUploadQueue(
            state_file, lambda message: on_message(f"{message}."), retries_reading=True
        )
        self.incomplete_count = 0
        self.skipped_stamps: dict[Path, Stamps] = {}
        self._last_messages: dict[Path, str] = {}
        self._stable_since: dict[Path, tuple[Stamps, float]] = {}
        self._next_scan_at = self._next_poll_at = 0.0

    @property
    def pending_count(self) -> int:
        return self.incomplete_count + self.upload_queue.pending_count

    def find_new_steps(self) -> list[tuple[StepLocation, Stamps]]:
        """Returns the complete steps that the server does not know yet."""
        if self.options.mode == "never":
            return []
        new_steps, self.incomplete_count = [], 0
        folders = [folder for folder in self.get_folders() if get_path_type(folder)]
        for location in dict.fromkeys(location for folder in folders for location in find_steps(folder)):
            stamps = _read_stamps(location)
            step_folder = location.path.parent if location.path.is_file() else location.path
            if location.reason or not stamps or self.upload_queue.is_registered(step_folder, stamps):
                continue
            if self.skipped_stamps.get(location.path) == stamps:
                continue
            if self._is_unchanged(location, stamps):
                new_steps.append((location, stamps))
            else:
                self.incomplete_count += not location.grows
        return new_steps

    def collect(self) -> int:
        """Registers new steps and uploads requested files. Returns the number of steps and files.

        A rejection by the server is printed and does not block the rest. Raises RetryLaterError or ActionRequiredError,
        and OSError if a requested file can't be read now.
        """
        if self.options.tokenizer:
            self._add_tokenizer(self.options.tokenizer)
        count = self._register_new() if time.monotonic() >= self._next_scan_at else 0
        if self.upload_queue.artifacts and time.monotonic() >= self._next_poll_at:
            self._fetch_requested()
        return count + self._upload_requested()

    def _add_tokenizer(self, tokenizer: LocalArtifact) -> None:
        """Registers and uploads the tokenizer, unless the server has it or rejected it."""
        is_registered = self.upload_queue.is_registered(tokenizer.path, tokenizer.stamps)
        if is_registered or tokenizer.path in self._last_messages:
            return
        try:
            self.add(tokenizer, send_now=True)
        except UploadRejectedError as error:
            self._print_once(tokenizer.path, f"the tokenizer {tokenizer.path} is skipped: {error}")

    def _fetch_requested(self) -> None:
        """Fetches which files the server requests. Raises RetryLaterError or ActionRequiredError."""
        data = None
        try:
            data = parse_response(client.fetch_requested_files(self.target.request_run))
        except UploadRejectedError as error:
            message = f"{self.target.name}: the server does not list the requested files: {error}"
            self._print_once(REQUESTED_FILES_KEY, message)
        self.upload_queue.enqueue_requested(data.get("files") if isinstance(data, dict) else None)
        self._next_poll_at = time.monotonic() + POLL_SECONDS

    def add(self, artifact: LocalArtifact, send_now: bool = False) -> None:
        """Registers an artifact and adds it to the upload queue.

        Raises RetryLaterError, ActionRequiredError or UploadRejectedError.
        """
        data = self._register(artifact, send_now)
        self.upload_queue.add(artifact, data.get("missing") or () if send_now else ())

    def _register(self, artifact: LocalArtifact, send_now: bool = False, missing_reason: str = "") -> dict[str, Any]:
        target = self.target
        command = client.build_import_command(artifact.path, target.project, target.name, target.attempt)
        request, attempt = target.request_run, target.attempt
        response = client.register_artifact(request, artifact, attempt, command, send_now, missing_reason)
        data = parse_response(response)
        if not isinstance(data, dict) or data.get("id") != artifact.key:
            raise RetryLaterError("the response to an artifact has another id")
        return data

    def _register_new(self) -> int:
        started = time.monotonic()
        registered_steps: list[int] = []
        try:
            for location, stamps in self.find_new_steps():
                if step := self._try_register(location, stamps):
                    registered_steps.append(step.step)
        finally:
            self._next_scan_at = time.monotonic() + max(SCAN_SECONDS, 9 * (time.monotonic() - started))
            if registered_steps:
                self._next_poll_at = 0.0
                steps = f"step{'s' if len(registered_steps) > 1 else ''} {format_step_ranges(registered_steps)}"
                self.on_message(f"{self.target.name}: {steps} can be pinned.")
        return len(registered_steps)

    def _try_register(self, location: StepLocation, stamps: Stamps) -> LoadableStep | None:
        """Returns the registered step; None if it is skipped or incomplete."""
        step = read_step(location)
        if isinstance(step, str):
            self._skip(location, stamps, step)
            return None
        try:
            artifact = self.options.build_step_artifact(step)
            if artifact.stamps != stamps:  # else it could mix the files of two steps, or facts of other bytes
                raise FileChangedError(f"{location.path} changed while it was read")
            self.add(artifact, self.options.mode == "now" or location.overwritten)
        except (FileChangedError, OSError):  # the next scan finds it again
            self.incomplete_count += 1
            return None
        except RetryLaterError:
            self.incomplete_count += 1
            raise
        except (ValueError, UploadRejectedError) as error:
            self._skip(location, stamps, str(error))
            return None
        self._stable_since.pop(location.path, None)
        return step

    def _skip(self, location: StepLocation, stamps: Stamps, reason: str) -> None:
        # Remembered, because a trainer that overwrites its files would give the same reason repeatedly.
        self.skipped_stamps[location.path] = stamps
        self._print_once(location.path, f"{location.path} is skipped: {reason}")

    def _upload_requested(self) -> int:
        """Uploads requested files, part by part, for a limited time.

        Raises RetryLaterError or ActionRequiredError, and OSError if a file can't be read now.
        """
        sent_before, end = len(self.upload_queue.sent), time.monotonic() + UPLOAD_SECONDS
        read_error: OSError | None = None
        try:
            while time.monotonic() < end and upload_requested_part(self.upload_queue, self.target):
                pass
        except OSError as error:  # raised below: the next turn begins with the other files
            read_error = error
        while self.upload_queue.missing_artifacts:
            self._report_missing(*self.upload_queue.missing_artifacts[0])
            self.upload_queue.missing_artifacts.popleft()
        sent = self.upload_queue.sent[sent_before:]
        if sent:
            names = sorted({f"step {upload.artifact.step}" for upload in sent})
            self.on_message(f"{self.target.name}: sent files of {', '.join(names[:8])}.")
        if read_error:
            raise read_error
        return len(sent)

    def _report_missing(self, artifact: LocalArtifact, reason: str) -> None:
        try:
            self._register(artifact, missing_reason=reason)
        except UploadRejectedError as error:
            self._print_once(artifact.path, f"the server rejected the report that {reason}: {error}")

    def _print_once(self, path: Path, message: str) -> None:
        """Prints a message unless it is the last one that was printed for this path."""
        if self._last_messages.get(path) != message:
            self.on_message(message)
        self._last_messages[path] = message

    def _is_unchanged(self, location: StepLocation, stamps: Stamps) -> bool:
        last_stamps, since = self._stable_since.get(location.path, ({}, 0.0))
        if last_stamps != stamps:
            since = time.monotonic()
            self._stable_since[location.path] = stamps, since
        is_stable = time.monotonic() - since >= (GROWING_SECONDS if location.grows else QUIET_SECONDS)
        return is_stable and last_stamps == stamps


def upload_requested_part(upload_queue: ArtifactUploadQueue, target: UploadTarget) -> ServerResponse | None:
    """Sends one request of a requested file. Returns its response; None if the queue is empty.

    Raises RetryLaterError or ActionRequiredError, and what `upload_next` raises.
    """
    response = upload_queue.upload_next(target.request_run)
    if response is not None and not response.is_success and not client.is_permanent_rejection(response):
        parse_response(response)
    return response


def _read_stamps(location: StepLocation) -> Stamps:
    """Returns the stamps of all files of a step; {} if one is missing or is a link that is unsafe to follow."""
    folder = location.path.parent if location.path.is_file() else location.path
    if not all(is_safe_to_follow(folder / name) for name in location.files):
        return {}
    try:
        return {name: client.read_file_stamp(folder / name) for name in location.files}
    except OSError:
        return {}
