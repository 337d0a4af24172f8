"""`rolloutdeck watch`: uploads the files of running trainings as they are written, until Ctrl-C."""

from __future__ import annotations

import argparse
import hashlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rolloutdeck import watch
from rolloutdeck.cli.common import (
    SignalInterrupter,
    connect,
    format_sentence,
    parse_file_args,
    print_message,
    refuse_redaction,
    require_run,
)
from rolloutdeck.cli.folders.run_follower import PruneMode, RunFollower
from rolloutdeck.cli.folders.watch_report import report_run
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import ServerClient, Settings

FILES_ATTEMPT = "files"  # the default attempt of files
DISCOVER_SECONDS = 5.0
MAX_IDLE_SECONDS = 30.0
MAX_RETRY_SECONDS = 10.0  # between requests to a server that does not answer
MAX_FAILURES = 3  # with --once: the command fails instead of retrying for ever


class WatchLoop:
    """Sends the files of all runs in turn. If the server does not respond, all runs pause, for increasing times; after
    an error response only its run."""

    def __init__(self, poll: float) -> None:
        self.poll = poll
        self.run_followers: dict[watch.TreeRun | None, RunFollower] = {}
        self.refused_runs: set[watch.TreeRun] = set()  # runs that the server will never accept
        self.last_error, self.failures, self.due = "", 0, 0.0

    def run_once(self) -> int:
        """Sends the ready parts of each run that is due, and returns their number.

        Raises UploadRejectedError if the server refuses the run of the given folders.
        """
        sent = 0
        # Those that wait longest first: a run that always fails, and then pauses all, must not be the only one.
        for identity, follower in sorted(self.run_followers.items(), key=lambda item: item[1].due):
            responses = follower.target.response_count
            if time.monotonic() < max(follower.due, self.due):
                continue
            try:
                parts = self._send_throttled(follower)
            except watch.RetryLaterError as error:
                self._log_failure(follower, error, has_response=follower.target.response_count != responses)
                continue
            except watch.UploadRejectedError as error:
                if identity is None:
                    raise
                print_message(f"{identity.project}/{identity.run} is skipped: {error}")
                self.refused_runs.add(identity)
                del self.run_followers[identity]
                continue
            except OSError as error:
                self._log_read_error(follower, error)
                continue
            sent += parts
        return sent

    def _send_throttled(self, follower: RunFollower) -> int:
        """Sends the ready parts and sets the next time.

        Scans take at most a tenth of the time. A run without changes is scanned less often, at least every 30 s.
        """
        started, responses = time.monotonic(), follower.target.response_count
        parts = follower.send_ready()
        follower.read_error, follower.has_failed = "", False
        now = time.monotonic()
        if parts or follower.pending_count:
            follower.quiet_since = now
        idle = 0.0 if len(self.run_followers) == 1 else min(MAX_IDLE_SECONDS, (now - follower.quiet_since) / 20)
        follower.due = now + max(self.poll, 9 * (now - started) if not parts else 0, idle)
        if follower.target.response_count != responses:
            self.failures, follower.failures, follower.action_required = 0, 0, ""
            if self.last_error and not any(other.has_failed for other in self.run_followers.values()):
                print_message("The server answers again.")
                self.last_error = ""
        return parts

    def _log_read_error(self, follower: RunFollower, error: OSError) -> None:
        """Prints the error once and sets the next try. The other runs are not affected."""
        message = f"{error.filename or follower.base}: {error.strerror or error}."
        if follower.read_error != message:
            print_message(f"{follower.target.name}: {message} Trying again every 30 s.")
        follower.read_error, follower.has_failed = message, False
        follower.due = time.monotonic() + MAX_IDLE_SECONDS

    def _log_failure(self, follower: RunFollower, error: watch.RetryLaterError, *, has_response: bool) -> None:
        """Prints the error once and sets the next try: of all runs if there was no response, or if the server asked for
        a pause. No data is lost, since the files remain."""
        if isinstance(error, watch.ActionRequiredError):
            if follower.action_required != str(error):
                failure = f"{follower.target.name}: {format_sentence(error)}"
                print_message(f"{failure} Nothing is lost; trying again every 30 s.")
            follower.action_required, follower.has_failed = str(error), False
            follower.due = time.monotonic() + MAX_IDLE_SECONDS
            return
        if not self.last_error:
            print_message(f"{format_sentence(error)} Nothing is lost; trying again until it works.")
        self.last_error = str(error)
        self.failures = 0 if has_response else self.failures + 1
        follower.has_failed, follower.failures = True, follower.failures + 1
        pause = min(MAX_RETRY_SECONDS, self.poll * 2.0 ** min((self.failures or follower.failures) - 1, 10))
        follower.due = time.monotonic() + max(pause * random.uniform(0.5, 1.0), error.pause)
        self.due = self.due if has_response and not error.pause else follower.due


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
        self, target: watch.UploadTarget, roots: Sequence[watch.WatchedFolder], base: Path, *, is_tree_run: bool
    ) -> RunFollower:
        return RunFollower(target, roots, base, self.scan, is_tree_run, self.artifacts, self.prune)


def choose_attempt(args: argparse.Namespace, settings: Settings) -> str:
    """Returns the attempt that files belong to, for `watch` and `import`."""
    return args.attempt or settings.attempt or FILES_ATTEMPT


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
    options = RunOptions(server, choose_attempt(args, settings), *parse_file_args(args), prune)
    loop, pattern = WatchLoop(args.poll), None
    if args.tree:
        project, name = args.project or settings.project, args.run or settings.run
        pattern = watch.TreePattern.parse(args.tree, project=project, run=name)
        print_message(f"Watching the runs of {args.tree}")
    else:
        project, name = require_run(args, settings)
        paths = [watch.get_absolute_path(path) for path in args.paths]
        if args.once and (missing := [str(path) for path in paths if not path.exists()]):
            hint = "Check the path, or watch without --once to wait for it."
            raise UsageError(f"There is no file or folder {', '.join(missing)}. {hint}")
        target = options.build_target(project, name, settings.run_id)
        folders, base = [watch.WatchedFolder(path) for path in paths], watch.find_base_folder(paths)
        loop.run_followers[None] = options.build_follower(target, folders, base, is_tree_run=False)

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
                if args.once:
                    hint = "Check the pattern, or watch without --once to wait for it."
                    raise UsageError(f"No folder matches {args.tree}. {hint}")
                print_message(f"No folder matches the pattern yet; checking every {DISCOVER_SECONDS:.0f} s.")
        sent = loop.run_once()
        stop.raise_pending()
        if args.once and _is_done(loop, sent):
            errors = [error for run in loop.run_followers.values() for error in (run.read_error, *run.unread_files)]
            if read_error := next(filter(None, errors), ""):
                raise UsageError(read_error)
            status = max(map(report_run, loop.run_followers.values()), default=0)
            return 1 if loop.refused_runs else status
        messages = (follower.action_required for follower in loop.run_followers.values())
        action_required = next(filter(None, messages), "")
        if action_required and (args.once or (is_first and not args.tree)):  # retrying can't help before the user acts
            raise UsageError(format_sentence(action_required))
        if args.once and any(run.failures > MAX_FAILURES for run in loop.run_followers.values()):
            raise UsageError(format_sentence(loop.last_error))
        is_first = False
        time.sleep(min(args.poll, 0.2 if args.once else args.poll))


def _is_done(loop: WatchLoop, sent: int) -> bool:
    """Whether all that can be read is sent."""
    readable = [run for run in loop.run_followers.values() if not run.read_error]
    return not sent and not any(run.has_failed or run.action_required or run.pending_count for run in readable)


def _discover_runs(loop: WatchLoop, pattern: watch.TreePattern, options: RunOptions) -> None:
    """Adds the runs and folders that are new since the last call, without the runs that the server refused.

    Runs of two users with the same name are two runs: the run id is derived from the folder, and the user's name is
    put in front of the run name.
    """
    runs = pattern.find_runs()
    for identity, roots in runs.items():
        if identity in loop.refused_runs:
            continue
        run_follower = loop.run_followers.get(identity)
        if run_follower:
            known = {root.path for root in run_follower.roots}
            run_follower.roots += [root for root in roots if root.path not in known]
            run_follower.follower.roots = run_follower.roots
            continue
        base = pattern.build_run_folder(identity)
        uid = "tree-" + hashlib.sha256(str(base).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        names = [(other.project, other.run) for other in runs]
        is_ambiguous = names.count((identity.project, identity.run)) > 1
        name = f"{identity.user}-{identity.run}" if is_ambiguous else identity.run
        target = options.build_target(identity.project, name, uid, user=identity.user)
        loop.run_followers[identity] = options.build_follower(target, roots, base, is_tree_run=True)
