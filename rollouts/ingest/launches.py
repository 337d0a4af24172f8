"""Processes that were started together but have no common attempt key: finds the attempt that they share.

Their keys say which launch they may belong to and their rank. A rank that has already reported belongs to a later
launch of the same program.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from rolloutdeck.protocol import LAUNCH_KEY_PATTERN
from rollouts.ingest.concurrency import MAX_SILENCE
from rollouts.models import Attempt, LaunchProcess, Project, Run

MAX_START_DELAY = timedelta(minutes=30)  # between two processes of a launch that were reported later than they started


@dataclass(frozen=True, slots=True)
class LaunchKey:
    """The parts of an attempt key of `LAUNCH_KEY_PATTERN`, and the requested name of the run, "" for none."""

    key: str
    launch: str
    rank: int
    starter: str
    name: str = ""


def parse_launch_key(key: str, name: str = "") -> LaunchKey | None:
    """Returns None for other attempt keys."""
    match = LAUNCH_KEY_PATTERN.match(key)
    return LaunchKey(key, match["launch"], int(match["rank"]), match["starter"], name) if match else None


def find_attempt(run: Run, key: str) -> Attempt | None:
    """Returns the attempt with this key, or that of a process with this key."""
    attempt = run.attempts.filter(key=key).first()
    if attempt or not LAUNCH_KEY_PATTERN.match(key):
        return attempt
    process = LaunchProcess.objects.filter(run=run, key=key).select_related("attempt").first()
    return process.attempt if process else None


def find_shared_attempt(scope: Project | Run, process: LaunchKey, started_at: datetime) -> Attempt | None:
    """Returns the attempt of the launch that a new process belongs to; None if it is the first one.

    The newest launch counts, of those that the same launcher started if there are any. The caller holds the lock of the
    project or of the run.
    """
    processes = LaunchProcess.objects.filter(launch=process.launch)
    if isinstance(scope, Run):
        processes = processes.filter(run=scope)
    else:
        processes = processes.filter(run__project=scope, run__deleted_at=None, name=process.name)
    known = list(processes.select_related("attempt__run"))
    alive = [other for other in known if is_alive(other.attempt, started_at)]
    siblings = [other for other in alive if other.starter == process.starter]
    candidates = siblings or alive
    if not candidates:
        return None
    newest = max(candidates, key=lambda other: other.attempt_id).attempt
    has_rank = any(other.rank == process.rank for other in known if other.attempt_id == newest.pk)
    return None if has_rank else newest


def is_alive(attempt: Attempt, at: datetime) -> bool:
    return attempt.created_at - MAX_START_DELAY <= at <= attempt.seen_at + MAX_SILENCE


def add_process(attempt: Attempt, process: LaunchKey) -> None:
    """Records that the process belongs to the attempt. Safe to call twice."""
    fields = {"launch": process.launch, "rank": process.rank, "starter": process.starter}
    LaunchProcess.objects.get_or_create(
        run_id=attempt.run_id, key=process.key, defaults={"attempt": attempt, "name": process.name, **fields}
    )
