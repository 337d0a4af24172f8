"""`rolloutdeck watch`: follows the folders of runs that are being written, until Ctrl-C."""

from __future__ import annotations

import argparse
import hashlib
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rolloutdeck.cli.common import (
    build_server_client,
    format_count,
    format_sentence,
    load_settings,
    parse_artifact_options,
    parse_scan_options,
    print_message,
    require_run,
)
from rolloutdeck.cli.signals import SignalInterrupter
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import Settings, find_home_folder
from rolloutdeck.protocol import HEARTBEAT_SECONDS, format_step_ranges
from rolloutdeck.watch import (
    ActionRequiredError,
    ArtifactCollector,
    ArtifactOptions,
    ChangedFile,
    FilePart,
    Follower,
    RetryLaterError,
    ScanOptions,
    TreePattern,
    TreeRun,
    UploadRejectedError,
    UploadTarget,
    WatchedFolder,
    WatchState,
    build_usage_error,
    find_base_folder,
    get_absolute_path,
    recover_state,
)

FILES_ATTEMPT = "files"  # the attempt of files whose launch nobody names
DISCOVER_SECONDS = 5.0
MAX_IDLE_SECONDS = 30.0
MAX_RETRY_SECONDS = 10.0  # between tries to reach a server that does not answer
MAX_FAILURES = 3  # with --once, which nobody waits for


class RunFollower:
    """One run: its folders, its place on the server, and what was sent."""

    def __init__(
        self,
        target: UploadTarget,
        roots: Sequence[WatchedFolder],
        base: Path,
        choice: ScanOptions,
        eager: bool = True,
        keeping: ArtifactOptions | None = None,
    ) -> None:
        self.target, self.roots, self.base, self.eager = target, list(roots), base, eager
        self.key = (target.server.url, target.project, target.uid or target.name, str(base), target.attempt)
        self.state = WatchState.load(find_home_folder() / "watch", self.key, target.attempt)
        self.follower = Follower(self.roots, base, self.state, choice, print_message)
        memory = self.state.path.with_suffix(".artifacts.jsonl")
        self.gatherer = ArtifactCollector(self._places, target, keeping or ArtifactOptions(), memory, print_message)
        self.opened = self.waited = False
        self.told: int | None = None
        self.answers = 0
        self.denied = ""
        self.beat_at = self.saved_at = self.due = 0.0
        self.quiet_since = time.monotonic()

    def turn(self) -> int:
        """Sends what is ready; how many pieces. Raises RetryLaterError, ActionRequiredError; before the first contact
        UploadRejectedError too."""
        if not any(root.path.exists() for root in self.roots):
            if not self.waited:
                print_message(f"Waiting for {', '.join(str(root.path) for root in self.roots)} …")
            self.waited = True
            return 0
        if not self.opened:
            if not self.eager and not self.follower.find_changed() and not self.gatherer.find_new_steps():
                return 0  # a folder without dumps is no run
            self._open()
        sent: list[FilePart] = []
        try:
            for candidate in self.follower.find_changed():
                self._send(candidate, sent)
        finally:
            if sent:
                self._save()
                print_message(f"{self.target.name}: sent {_summary(sent)}.")
        kept = self.gatherer.collect()
        self.answers += kept
        self._beat()
        return len(sent) + kept

    @property
    def pending(self) -> int:
        """Files and steps that may soon be whole, and files that are wanted."""
        return self.follower.pending + self.gatherer.pending

    def _places(self) -> list[Path]:
        """Where steps that can be loaded again may lie: all of a tree's run, else the folders that were given."""
        return [root.path for root in self.roots] if self.eager else [self.base]

    def _send(self, candidate: ChangedFile, sent: list[FilePart]) -> None:
        try:
            for piece in self.follower.read_parts(candidate):
                self.target.attempt = self.state.attempt
                self._push(piece)
                sent.append(piece)
                if time.monotonic() - self.saved_at > 1:
                    self._save()
        except OSError as error:
            print_message(
                f"{error.filename or self.target.name} can't be read now: {error.strerror or error}; trying again."
            )

    def _push(self, piece: FilePart) -> None:
        try:
            self.target.upload(piece)
        except UploadRejectedError as error:
            if error.changed:  # written to while it was sent: the next look sees it
                return
            print_message(f"{piece.file.path} was refused: {error}")
            self.follower.mark_sent(piece, is_rejected=True)
        else:
            self.follower.mark_sent(piece)
            self.answers += 1

    def _open(self) -> None:
        self.target.open_run()
        self.opened = True
        self.answers += 1
        if self.state.is_new and not self.target.created:
            recover_state(self.follower, self.target)
        self.state.is_new = False
        self.target.attempt = self.state.attempt
        print_message(f"Watching {self.base} as {self.target.project}/{self.target.name} {self.target.url}".rstrip())

    def _save(self) -> None:
        try:
            self.state.save(self.key)
        except OSError as error:
            print_message(
                f"{self.state.path} can't be written ({error.strerror or error}); after a restart files are sent again."
            )
        self.saved_at = time.monotonic()

    def _beat(self) -> None:
        """Says that the run is alive, but only when its files changed: a watch must not keep a dead run alive."""
        now = time.monotonic()
        if self.told is None:  # how it was found is no news
            self.told = self.follower.signature
        if self.follower.signature == self.told:
            return
        self.told = self.follower.signature  # a beat that is not due is left out: later it could open an ended run
        if now - self.beat_at >= HEARTBEAT_SECONDS:
            self.target.heartbeat(max(self.state.last_steps.values(), default=None))
            self.beat_at = now
            self.answers += 1


def _summary(sent: Sequence[FilePart]) -> str:
    steps: dict[str, set[int]] = {}
    for piece in sent:
        if piece.file.step is not None and piece.file.kind.holds == "samples":
            steps.setdefault(piece.file.split, set()).add(piece.file.step)
    parts = [
        f"{split} step{'s' if len(own) > 1 else ''} {format_step_ranges(list(own))}" for split, own in steps.items()
    ]
    if metrics := sum(piece.file.kind.holds == "metrics" or piece.file.step is None for piece in sent):
        parts.append(f"metrics ({format_count(metrics, 'piece')})")
    return ", ".join(parts)


class WatchLoop:
    """All runs, turn by turn. One server that does not answer pauses all of them, with growing pauses."""

    def __init__(self, poll: float) -> None:
        self.poll = poll
        self.follows: dict[TreeRun | None, RunFollower] = {}
        self.trouble, self.failures, self.due = "", 0, 0.0

    def turn(self) -> int:
        """One turn of each run that is due; how many pieces were sent. Raises UploadRejectedError from a run's first
        contact."""
        sent = 0
        for identity, follow in list(self.follows.items()):
            if time.monotonic() < max(follow.due, self.due):
                continue
            try:
                pieces = self._timed(follow)
            except RetryLaterError as error:
                self._failed(follow, error)
                continue
            except UploadRejectedError as error:
                if identity is None:
                    raise
                print_message(f"{identity.project}/{identity.run} is left out: {error}")
                del self.follows[identity]
                continue
            sent += pieces
        return sent

    def _timed(self, follow: RunFollower) -> int:
        """Looking takes at most a tenth of the time, and a quiet run is looked at less often, at least every 30 s."""
        started, answers = time.monotonic(), follow.answers
        pieces = follow.turn()
        now = time.monotonic()
        if pieces or follow.pending:
            follow.quiet_since = now
        idle = 0.0 if len(self.follows) == 1 else min(MAX_IDLE_SECONDS, (now - follow.quiet_since) / 20)
        follow.due = now + max(self.poll, 9 * (now - started) if not pieces else 0, idle)
        if follow.answers != answers:
            if self.trouble:
                print_message("The server answers again.")
            self.trouble, self.failures, follow.denied = "", 0, ""
        return pieces

    def _failed(self, follow: RunFollower, error: RetryLaterError) -> None:
        """Says it once; nothing is lost, the files are there."""
        if isinstance(error, ActionRequiredError):
            if follow.denied != str(error):
                print_message(
                    f"{follow.target.name}: {format_sentence(str(error))} Nothing is lost; trying again every 30 s."
                )
            follow.denied = str(error)
            follow.due = time.monotonic() + MAX_IDLE_SECONDS
            return
        if not self.trouble:
            print_message(f"{format_sentence(str(error))} Nothing is lost; trying again until it works.")
        self.trouble = str(error)
        self.failures += 1
        pause = min(MAX_RETRY_SECONDS, self.poll * 2.0 ** min(self.failures - 1, 10))
        self.due = time.monotonic() + pause * random.uniform(0.5, 1.0)


def main(args: argparse.Namespace) -> int:
    if bool(args.paths) == bool(args.tree):
        raise UsageError("Say which folders to watch: either PATH... or --tree PATTERN.")
    if args.poll <= 0:
        raise UsageError("--poll must be more than 0 seconds.")
    settings, choice = load_settings(args), parse_scan_options(args)
    loop, pattern, keeping = WatchLoop(args.poll), None, parse_artifact_options(args, "on-pin")
    if args.tree:
        pattern = TreePattern.parse(args.tree, project=args.project or settings.project, run=args.run or settings.run)
        print_message(f"Watching the runs of {args.tree}")
    else:
        loop.follows[None] = _single(args, settings, choice, keeping)

    def discover() -> None:
        if pattern:
            _discover(loop, pattern, args, settings, choice, keeping)

    try:
        with SignalInterrupter() as stop:
            return _run(args, loop, discover, stop)
    except KeyboardInterrupt:
        print_message("Stopped. The same command goes on from here.")
        raise
    except UploadRejectedError as error:
        raise build_usage_error(error) from error


def _run(args: argparse.Namespace, loop: WatchLoop, discover: Callable[[], None], stop: SignalInterrupter) -> int:
    next_discovery, first = 0.0, True
    while True:
        if time.monotonic() >= next_discovery:
            discover()
            next_discovery = time.monotonic() + DISCOVER_SECONDS
            if first and not loop.follows:
                print_message(
                    "No folder fits it." if args.once else "No folder fits it yet; looking again now and then."
                )
        sent = loop.turn()
        stop.heed()
        if args.once and _settled(loop, sent):
            return 0
        denied = next((follow.denied for follow in loop.follows.values() if follow.denied), "")
        if denied and (args.once or (first and not args.tree)):  # a person must act first
            raise UsageError(format_sentence(denied))
        if args.once and loop.failures > MAX_FAILURES:
            raise UsageError(format_sentence(loop.trouble))
        first = False
        time.sleep(min(args.poll, 0.2 if args.once else args.poll))


def _settled(loop: WatchLoop, sent: int) -> bool:
    return not sent and not loop.trouble and all(not follow.pending for follow in loop.follows.values())


def _single(args: argparse.Namespace, settings: Settings, choice: ScanOptions, keeping: ArtifactOptions) -> RunFollower:
    project, name = require_run(args, settings)
    paths = [get_absolute_path(path) for path in args.paths]
    target = _target(args, settings, project, name, uid=settings.run_id)
    return RunFollower(
        target, [WatchedFolder(path) for path in paths], find_base_folder(paths), choice, keeping=keeping
    )


def _target(
    args: argparse.Namespace, settings: Settings, project: str, name: str, *, uid: str = "", user: str = ""
) -> UploadTarget:
    tags = [f"user:{user}"] if user else []
    return UploadTarget(
        build_server_client(settings), project, name, args.attempt or settings.attempt or FILES_ATTEMPT, uid, tags=tags
    )


def _discover(
    loop: WatchLoop,
    pattern: TreePattern,
    args: argparse.Namespace,
    settings: Settings,
    choice: ScanOptions,
    keeping: ArtifactOptions,
) -> None:
    """Runs and folders that are new since the last time. Two people's runs of one name are two runs: the id is made
    from the folder, and the later one's name says whose it is."""
    found = pattern.find_runs()
    for identity, roots in found.items():
        follow = loop.follows.get(identity)
        if follow:
            known = {root.path for root in follow.roots}
            follow.roots += [root for root in roots if root.path not in known]
            follow.follower.roots = follow.roots
            continue
        base = pattern.find_run_folder(roots[-1].path)
        uid = "tree-" + hashlib.sha256(str(base).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        twin = any(one != identity and (one.project, one.run) == (identity.project, identity.run) for one in found)
        name = f"{identity.user}-{identity.run}" if twin else identity.run
        target = _target(args, settings, identity.project, name, uid=uid, user=identity.user)
        loop.follows[identity] = RunFollower(target, roots, base, choice, False, keeping)
