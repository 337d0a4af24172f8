"""One run that `rolloutdeck watch` follows: its folders, its upload target, and the state of what was sent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rolloutdeck import watch
from rolloutdeck.cli.common import format_count, print_message
from rolloutdeck.lib import find_home_folder, read_path_type
from rolloutdeck.protocol import HEARTBEAT_SECONDS, format_step_ranges

PruneMode = Literal["never", "dry-run", "delete"]
MAX_FAILED_FILES = 3  # in one turn; the other files are tried in the next ones


class RunFollower:
    """Follows one run: its folders, its upload target, and the state of what was sent.

    `is_tree_run`: the run of a folder of a tree. It is opened on the server when a file is found, and its replayable
    steps are searched in `base`. Other runs are opened at the first turn, and searched in `roots`.
    """

    def __init__(
        self,
        target: watch.UploadTarget,
        roots: Sequence[watch.WatchedFolder],
        base: Path,
        options: watch.ScanOptions,
        is_tree_run: bool = False,
        artifact_options: watch.ArtifactOptions | None = None,
        prune: PruneMode = "never",
    ) -> None:
        self.target, self.roots, self.base, self.is_tree_run = target, list(roots), base, is_tree_run
        self.key = (target.server.url, target.project, target.uid or target.name, str(base), target.attempt)
        self.state = watch.WatchState.load(find_home_folder() / "watch", self.key, target.attempt)
        self.follower = watch.Follower(self.roots, base, self.state, options, print_message)
        queue_file = self.state.path.with_suffix(".artifacts.jsonl")
        artifacts = artifact_options or watch.ArtifactOptions()
        self.collector = watch.ArtifactCollector(self._step_folders, target, artifacts, queue_file, print_message)
        self.pruner: watch.SourcePruner | None = None
        if prune != "never":
            is_dry_run = prune == "dry-run"
            self.pruner = watch.SourcePruner(self.follower, target, self._step_folders, print_message, is_dry_run)
        self.is_open = self.has_waited = self.has_warned = False
        self.reported_signature: int | None = None
        self.sent_sources: set[str] = set()
        self.failed_sources: dict[str, float] = {}  # when their last upload failed: they are sent after the others
        self.refused_count = 0  # parts that the server will never accept
        self.action_required = ""  # the message of the last ActionRequiredError
        self.read_error = ""  # the message of the last OSError
        self.unread_files: list[str] = []  # a message for each requested file that can't be read
        self.has_failed = False  # the server did not answer in the last turn
        self.failures = 0  # such turns since the last turn in which it did
        self.heartbeat_at = self.saved_at = self.due = 0.0
        self.quiet_since = time.monotonic()

    def send_ready(self) -> int:
        """Uploads the parts that are ready and returns their number.

        Raises RetryLaterError, ActionRequiredError, and OSError if a folder can't be read, after sending the parts of
        the others; while the run is not open, also UploadRejectedError.
        """
        is_present, error = self._check_roots()
        sent = self._send_parts() if is_present else 0
        if error:
            raise error
        if not is_present and not self.has_waited:
            print_message(f"Waiting for {', '.join(str(root.path) for root in self.roots)} …")
            self.has_waited = True
        return sent

    def _check_roots(self) -> tuple[bool, OSError | None]:
        """Returns whether one of the folders is there, and the error of the last one that can't be read."""
        is_present, error = False, None
        for root in self.roots:
            try:
                is_present |= bool(read_path_type(root.path))
            except OSError as found:
                error = found
        return is_present, error

    def _send_parts(self) -> int:
        if not self.is_open:
            if self.is_tree_run and not self.follower.find_changed() and not self.collector.find_new_steps():
                return 0  # a folder without dumps is not a run
            self._open()
        sent: list[watch.FilePart] = []
        refused_before = self.refused_count
        try:
            failure = self._send_files(sent)
        finally:
            if sent or self.refused_count > refused_before:
                self._save()
            if sent:
                print_message(f"{self.target.name}: sent {_summarize_parts(sent)}.")
        artifacts = self._collect_artifacts()
        self._send_heartbeat()
        pruned = self.pruner.prune() if self.pruner else 0
        if failure:
            raise failure
        return len(sent) + artifacts + pruned

    def _collect_artifacts(self) -> int:
        """Registers steps and sends requested files. Returns their number.

        A file that can't be read is printed once, and tried again after the others: no dump and no other file waits
        for it.
        """
        try:
            count = self.collector.collect()
        except OSError as error:
            message = f"{error.filename or self.base}: {error.strerror or error}."
            if message not in self.unread_files:
                self.unread_files.append(message)
                print_message(f"{self.target.name}: {message} Trying again.")
            return 0
        self.unread_files.clear()
        return count

    def _send_files(self, sent: list[watch.FilePart]) -> watch.RetryLaterError | None:
        """Sends the files that changed. Returns an error if some failed and the others were sent nevertheless.

        A proxy may refuse some files for ever. Raises RetryLaterError if all files would fail.
        """
        failures: list[watch.RetryLaterError] = []
        candidates = self.follower.find_changed()
        for candidate in sorted(candidates, key=lambda changed: self.failed_sources.get(changed.file.source, 0.0)):
            source, responses = candidate.file.source, self.target.response_count
            try:
                self._send_file(candidate, sent)
            except watch.ActionRequiredError:
                raise
            except watch.RetryLaterError as error:
                self.failed_sources[source] = time.monotonic()
                failures.append(error)
                is_answered = self.target.response_count > responses and not error.pause
                if not is_answered:
                    raise
                if len(failures) >= MAX_FAILED_FILES:
                    break
            else:
                self.failed_sources.pop(source, None)
        return failures[0] if failures else None

    @property
    def pending_count(self) -> int:
        """The number of files and steps that may be complete soon, of requested files that can be read, and of files to
        be deleted."""
        requested = max(0, self.collector.pending_count - len(self.unread_files))
        return self.follower.pending_count + requested + (self.pruner.pending_count if self.pruner else 0)

    def _step_folders(self) -> list[Path]:
        """Returns the folders that may contain replayable steps: the base of a tree's run, else the given folders."""
        return [self.base] if self.is_tree_run else [root.path for root in self.roots]

    def _send_file(self, candidate: watch.ChangedFile, sent: list[watch.FilePart]) -> None:
        try:
            for part in self.follower.read_parts(candidate):
                self.target.attempt = self.state.attempt
                if self._upload(part):
                    sent.append(part)
                if time.monotonic() - self.saved_at > 1:
                    self._save()
        except OSError as error:
            path = error.filename or self.target.name
            print_message(f"{path} can't be read: {error.strerror or error}. Trying again.")

    def _upload(self, part: watch.FilePart) -> bool:
        """Uploads a part. Returns whether the server has it now."""
        try:
            self.target.upload(part)
        except watch.UploadRejectedError as error:
            if error.changed:  # the file was changed during the upload; the next scan finds it again
                self.follower.pending_count += 1
                return False
            print_message(f"{part.file.path} was refused: {error}")
            self.follower.mark_sent(part, is_rejected=True)
            self.refused_count += 1
            return False
        self.follower.mark_sent(part)
        self.sent_sources.add(part.file.source)
        if self.target.warning and not self.has_warned:
            self.has_warned = True
            print_message(f"Warning of the server: {self.target.warning}")
        return True

    def _open(self) -> None:
        self.target.open_run()
        known = self.state.server
        is_other = bool(known and self.target.server_id and self.target.server_id != known)
        if (is_other or self.target.created) and (not self.state.is_new or self.collector.upload_queue.artifacts):
            self._forget_sent()
        if not self.target.created and (self.state.is_new or is_other):
            watch.recover_state(self.follower, self.target)
        self.state.server = self.target.server_id or known
        self.is_open = True  # not before: a recovery that failed is repeated
        self.state.is_new = False
        if is_other:
            self._save()
        self.target.attempt = self.state.attempt
        print_message(f"Watching {self.base} as {self.target.project}/{self.target.name} {self.target.url}".rstrip())

    def _forget_sent(self) -> None:
        """The server may lack what was sent: the run is new there, or the server was restored or replaced."""
        print_message(f"{self.target.name}: the server may not have what was sent before. Everything is sent again.")
        self.state.clear(self.target.attempt)
        self.collector.upload_queue.forget_registered()
        self._save()  # at the next start the server knows the run

    def _save(self) -> None:
        try:
            self.state.save(self.key)
        except OSError as error:
            failure = f"{self.state.path} can't be written ({error.strerror or error})"
            print_message(f"{failure}. Files are resent after a restart.")
        self.saved_at = time.monotonic()

    def _send_heartbeat(self) -> None:
        """Sends a heartbeat if the files have changed: watching must not show a stopped training as running."""
        now = time.monotonic()
        if self.reported_signature is None:  # the first scan is not a change
            self.reported_signature = self.follower.signature
        if self.follower.signature == self.reported_signature:
            return
        # A heartbeat that is not due is skipped, not postponed: later it could reopen a run that has ended.
        self.reported_signature = self.follower.signature
        if now - self.heartbeat_at >= HEARTBEAT_SECONDS:
            self.target.heartbeat(max(self.state.last_steps.values(), default=None))
            self.heartbeat_at = now


def _summarize_parts(sent: Sequence[watch.FilePart]) -> str:
    """Returns the steps of the parts by split, for example `train steps 1-3, metrics (1 piece)`.

    The steps of a table may be in its rows, which are not read here.
    """
    steps_by_split: dict[str, set[int]] = {}
    for part in sent:
        if part.file.step is not None and part.file.kind.content == "samples":
            steps_by_split.setdefault(part.file.split, set()).add(part.file.step)
    summary = []
    for split, steps in steps_by_split.items():
        summary.append(f"{split} step{'s' if len(steps) > 1 else ''} {format_step_ranges(list(steps))}")
    if tables := sum(part.file.kind.content == "samples" and part.file.step is None for part in sent):
        summary.append(f"{format_count(tables, 'file')} with steps in the rows")
    if metrics := sum(part.file.kind.content == "metrics" for part in sent):
        summary.append(f"metrics ({format_count(metrics, 'piece')})")
    return ", ".join(summary)
