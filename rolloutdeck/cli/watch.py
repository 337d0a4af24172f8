"""`rolloutdeck watch`: uploads the files of running trainings as they are written, until Ctrl-C."""

from __future__ import annotations

import argparse
import hashlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rolloutdeck import watch
from rolloutdeck.cli.common import (
    connect,
    format_count,
    format_sentence,
    parse_file_args,
    print_message,
    refuse_redaction,
    require_run,
)
from rolloutdeck.cli.signals import SignalInterrupter
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import ServerClient, find_home_folder
from rolloutdeck.protocol import HEARTBEAT_SECONDS, format_step_ranges

PruneMode = Literal["never", "dry-run", "delete"]

FILES_ATTEMPT = "files"  # the default attempt of files
DISCOVER_SECONDS = 5.0
MAX_IDLE_SECONDS = 30.0
MAX_RETRY_SECONDS = 10.0  # between requests to a server that does not answer
MAX_FAILURES = 3  # with --once: the command fails instead of retrying for ever


class RunFollower:
    """Follows one run: its folders, its upload target, and the state of what was sent.

    `send_at_once`: open the run on the server at the first turn, even if there are no files yet. A run of a tree is
    opened only when a file is found.
    """

    def __init__(
        self,
        target: watch.UploadTarget,
        roots: Sequence[watch.WatchedFolder],
        base: Path,
        options: watch.ScanOptions,
        send_at_once: bool = True,
        artifact_options: watch.ArtifactOptions | None = None,
        prune: PruneMode = "never",
    ) -> None:
        self.target, self.roots, self.base, self.send_at_once = target, list(roots), base, send_at_once
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
        self.response_count = 0
        self.action_required = ""  # the message of the last ActionRequiredError
        self.heartbeat_at = self.saved_at = self.due = 0.0
        self.quiet_since = time.monotonic()

    def send_ready(self) -> int:
        """Uploads the parts that are ready and returns their number.

        Raises RetryLaterError, ActionRequiredError; while the run is not open, also UploadRejectedError.
        """
        if not any(root.path.exists() for root in self.roots):
            if not self.has_waited:
                print_message(f"Waiting for {', '.join(str(root.path) for root in self.roots)} …")
            self.has_waited = True
            return 0
        if not self.is_open:
            if not self.send_at_once and not self.follower.find_changed() and not self.collector.find_new_steps():
                return 0  # a folder without dumps is not a run
            self._open()
        sent: list[watch.FilePart] = []
        try:
            for candidate in self.follower.find_changed():
                self._send_file(candidate, sent)
        finally:
            if sent:
                self._save()
                print_message(f"{self.target.name}: sent {_summarize_parts(sent)}.")
        artifacts = self.collector.collect()
        self.response_count += artifacts
        self._send_heartbeat()
        pruned = self.pruner.prune() if self.pruner else 0
        return len(sent) + artifacts + pruned

    @property
    def pending_count(self) -> int:
        """The number of files and steps that may be complete soon, of requested files, and of files to be deleted."""
        return self.follower.pending + self.collector.pending + (self.pruner.pending if self.pruner else 0)

    def _step_folders(self) -> list[Path]:
        """Returns the folders that may contain replayable steps: the base of a tree's run, else the given folders."""
        return [root.path for root in self.roots] if self.send_at_once else [self.base]

    def _send_file(self, candidate: watch.ChangedFile, sent: list[watch.FilePart]) -> None:
        try:
            for part in self.follower.read_parts(candidate):
                self.target.attempt = self.state.attempt
                self._upload(part)
                sent.append(part)
                if time.monotonic() - self.saved_at > 1:
                    self._save()
        except OSError as error:
            path = error.filename or self.target.name
            print_message(f"{path} can't be read: {error.strerror or error}. Trying again.")

    def _upload(self, part: watch.FilePart) -> None:
        try:
            self.target.upload(part)
        except watch.UploadRejectedError as error:
            if error.changed:  # the file was changed during the upload; the next scan finds it again
                return
            print_message(f"{part.file.path} was refused: {error}")
            self.follower.mark_sent(part, is_rejected=True)
        else:
            self.follower.mark_sent(part)
            self.response_count += 1
            if self.target.warning and not self.has_warned:
                self.has_warned = True
                print_message(f"Warning of the server: {self.target.warning}")

    def _open(self) -> None:
        self.target.open_run()
        self.is_open = True
        self.response_count += 1
        if self.state.is_new and not self.target.created:
            watch.recover_state(self.follower, self.target)
        self.state.is_new = False
        self.target.attempt = self.state.attempt
        print_message(f"Watching {self.base} as {self.target.project}/{self.target.name} {self.target.url}".rstrip())

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
            self.response_count += 1


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


class WatchLoop:
    """Sends the files of all runs in turn. If the server does not answer, all runs pause, for increasing times."""

    def __init__(self, poll: float) -> None:
        self.poll = poll
        self.run_followers: dict[watch.TreeRun | None, RunFollower] = {}
        self.last_error, self.failures, self.due = "", 0, 0.0

    def run_once(self) -> int:
        """Sends the ready parts of each run that is due, and returns their number.

        Raises UploadRejectedError if the server refuses the run of the given folders.
        """
        sent = 0
        for identity, follower in list(self.run_followers.items()):
            if time.monotonic() < max(follower.due, self.due):
                continue
            try:
                parts = self._send_throttled(follower)
            except watch.RetryLaterError as error:
                self._log_failure(follower, error)
                continue
            except watch.UploadRejectedError as error:
                if identity is None:
                    raise
                print_message(f"{identity.project}/{identity.run} is skipped: {error}")
                del self.run_followers[identity]
                continue
            sent += parts
        return sent

    def _send_throttled(self, follower: RunFollower) -> int:
        """Sends the ready parts and sets the next time.

        Scans take at most a tenth of the time. A run without changes is scanned less often, at least every 30 s.
        """
        started, responses = time.monotonic(), follower.response_count
        parts = follower.send_ready()
        now = time.monotonic()
        if parts or follower.pending_count:
            follower.quiet_since = now
        idle = 0.0 if len(self.run_followers) == 1 else min(MAX_IDLE_SECONDS, (now - follower.quiet_since) / 20)
        follower.due = now + max(self.poll, 9 * (now - started) if not parts else 0, idle)
        if follower.response_count != responses:
            if self.last_error:
                print_message("The server answers again.")
            self.last_error, self.failures, follower.action_required = "", 0, ""
        return parts

    def _log_failure(self, follower: RunFollower, error: watch.RetryLaterError) -> None:
        """Prints the error once and sets the next try. No data is lost, since the files remain."""
        if isinstance(error, watch.ActionRequiredError):
            if follower.action_required != str(error):
                failure = f"{follower.target.name}: {format_sentence(error)}"
                print_message(f"{failure} Nothing is lost; trying again every 30 s.")
            follower.action_required = str(error)
            follower.due = time.monotonic() + MAX_IDLE_SECONDS
            return
        if not self.last_error:
            print_message(f"{format_sentence(error)} Nothing is lost; trying again until it works.")
        self.last_error = str(error)
        self.failures += 1
        pause = min(MAX_RETRY_SECONDS, self.poll * 2.0 ** min(self.failures - 1, 10))
        self.due = time.monotonic() + pause * random.uniform(0.5, 1.0)


@dataclass(frozen=True)
class RunOptions:
    """The options that all watched runs share."""

    server: ServerClient
    attempt: str
    scan: watch.ScanOptions
    artifacts: watch.ArtifactOptions
    prune: PruneMode = "never"

    def build_target(self, project: str, name: str, uid: str, user: str = "") -> watch.UploadTarget:
        tags = [f"user:{user}"] if user else []
        return watch.UploadTarget(self.server, project, name, self.attempt, uid, tags=tags)

    def build_follower(
        self, target: watch.UploadTarget, roots: Sequence[watch.WatchedFolder], base: Path, *, send_at_once: bool
    ) -> RunFollower:
        return RunFollower(target, roots, base, self.scan, send_at_once, self.artifacts, self.prune)


def main(args: argparse.Namespace) -> int:
    if bool(args.paths) == bool(args.tree):
        raise UsageError("No folders to watch. Use either PATH... or --tree PATTERN.")
    if args.poll <= 0:
        raise UsageError("--poll must be more than 0 seconds.")
    if args.dry_run and not args.prune_source:
        raise UsageError("--dry-run needs --prune-source: it prints which files that would delete.")
    prune: PruneMode = "dry-run" if args.dry_run else "delete" if args.prune_source else "never"
    settings, server = connect(args)
    refuse_redaction(settings)
    options = RunOptions(server, args.attempt or settings.attempt or FILES_ATTEMPT, *parse_file_args(args), prune)
    loop, pattern = WatchLoop(args.poll), None
    if args.tree:
        project, name = args.project or settings.project, args.run or settings.run
        pattern = watch.TreePattern.parse(args.tree, project=project, run=name)
        print_message(f"Watching the runs of {args.tree}")
    else:
        project, name = require_run(args, settings)
        paths = [watch.get_absolute_path(path) for path in args.paths]
        target = options.build_target(project, name, settings.run_id)
        folders, base = [watch.WatchedFolder(path) for path in paths], watch.find_base_folder(paths)
        loop.run_followers[None] = options.build_follower(target, folders, base, send_at_once=True)

    def discover() -> None:
        if pattern:
            _discover_runs(loop, pattern, options)

    try:
        with SignalInterrupter() as stop:
            return _run_loop(args, loop, discover, stop)
    except KeyboardInterrupt:
        print_message("Stopped. Run the same command to continue from here.")
        raise
    except watch.UploadRejectedError as error:
        raise UsageError(format_sentence(error)) from error


def _run_loop(args: argparse.Namespace, loop: WatchLoop, discover: Callable[[], None], stop: SignalInterrupter) -> int:
    """Runs the loop until Ctrl-C, or with --once until all complete files are sent. Raises UsageError."""
    next_discovery, is_first = 0.0, True
    while True:
        if time.monotonic() >= next_discovery:
            discover()
            next_discovery = time.monotonic() + DISCOVER_SECONDS
            if is_first and not loop.run_followers:
                later = "" if args.once else f" yet; checking every {DISCOVER_SECONDS:.0f} s"
                print_message(f"No folder matches the pattern{later}.")
        sent = loop.run_once()
        stop.raise_pending()
        if args.once and _is_done(loop, sent):
            return 0
        messages = (follower.action_required for follower in loop.run_followers.values())
        action_required = next(filter(None, messages), "")
        if action_required and (args.once or (is_first and not args.tree)):  # retrying can't help before the user acts
            raise UsageError(format_sentence(action_required))
        if args.once and loop.failures > MAX_FAILURES:
            raise UsageError(format_sentence(loop.last_error))
        is_first = False
        time.sleep(min(args.poll, 0.2 if args.once else args.poll))


def _is_done(loop: WatchLoop, sent: int) -> bool:
    followers = loop.run_followers.values()
    return not sent and not loop.last_error and all(not follower.pending_count for follower in followers)


def _discover_runs(loop: WatchLoop, pattern: watch.TreePattern, options: RunOptions) -> None:
    """Adds the runs and folders that are new since the last call.

    Runs of two users with the same name are two runs: the run id is derived from the folder, and the user's name is
    put in front of the run name.
    """
    runs = pattern.find_runs()
    for identity, roots in runs.items():
        run_follower = loop.run_followers.get(identity)
        if run_follower:
            known = {root.path for root in run_follower.roots}
            run_follower.roots += [root for root in roots if root.path not in known]
            run_follower.follower.roots = run_follower.roots
            continue
        base = pattern.find_run_folder(roots[-1].path)
        uid = "tree-" + hashlib.sha256(str(base).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        names = [(other.project, other.run) for other in runs]
        is_ambiguous = names.count((identity.project, identity.run)) > 1
        name = f"{identity.user}-{identity.run}" if is_ambiguous else identity.run
        target = options.build_target(identity.project, name, uid, user=identity.user)
        loop.run_followers[identity] = options.build_follower(target, roots, base, send_at_once=False)
