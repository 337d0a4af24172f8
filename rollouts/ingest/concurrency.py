"""Attempts of a run that run at the same time: they supersede nothing of each other.

A process whose launch is unknown opens an attempt of its own. If an earlier attempt of the run is still running, both
are probably processes of one training. Which attempts these are depends only on their keys and times, so it is computed
again with every sign of life, and a wrong first guess corrects itself.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Exists, F, OuterRef
from django.utils import timezone

from rolloutdeck.protocol import HEARTBEAT_SECONDS
from rollouts.ingest.superseded_steps import mark_superseded_steps
from rollouts.live import notify_run_changed
from rollouts.models import Attempt, LaunchProcess, Run

MAX_SILENCE = timedelta(seconds=3 * HEARTBEAT_SECONDS)  # of a process that may still run
LATE_UPDATE_WINDOW = timedelta(seconds=2 * HEARTBEAT_SECONDS)  # an update this soon after the end was sent before it
MAX_ATTEMPTS = 200  # the newest of a run, which are compared
MAX_GUESS_AGE = timedelta(days=1)  # of what the sweep checks again
FILES_ATTEMPT_PATTERN = re.compile(r"^files(-[0-9]+)?$")
RANDOM_KEY_PATTERN = re.compile(r"[0-9a-f]{32}\Z")  # keys that a client makes up if it cannot identify the launch


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """Another attempt that runs, or ended a moment ago, with the keys of all its processes."""

    key: str
    host: str
    process_keys: tuple[str, ...]


def update_concurrent_attempts(run: Run) -> bool:
    """Finds the attempts that run at the same time, and returns whether this changed.

    Then the superseded steps are marked again. The caller holds no lock on a step.
    """
    with transaction.atomic():
        if len(list_trainer_attempts(run)) < 2:
            return False
        Run.objects.select_for_update(no_key=True).get(pk=run.pk)
        attempts = list_trainer_attempts(run)
        firsts = group_attempts(attempts, timezone.now())
        changed = [attempt for attempt in attempts if attempt.concurrent_with_id != firsts.get(attempt.pk)]
        for attempt in changed:
            Attempt.objects.filter(pk=attempt.pk).update(concurrent_with=firsts.get(attempt.pk))
        if changed:
            mark_superseded_steps(run)
            notify_run_changed(run)
    return bool(changed)


def list_trainer_attempts(run: Run) -> list[Attempt]:
    """Returns the newest attempts by their start, without those of watched or imported files."""
    newest = run.attempts.exclude(key__regex=FILES_ATTEMPT_PATTERN.pattern).order_by("-number")[:MAX_ATTEMPTS]
    return sorted(newest, key=lambda attempt: (attempt.created_at, attempt.number))


def group_attempts(attempts: Iterable[Attempt], now: datetime) -> dict[int, int]:
    """Returns {id: smallest id of its group} of the attempts that run at the same time as another one.

    `attempts` are in the order of their start.
    """
    groups: list[list[Attempt]] = []
    for attempt in attempts:
        joined = [group for group in groups if any(ran_together(other, attempt, now) for other in group)]
        groups = [group for group in groups if group not in joined]
        groups.append([*(other for group in joined for other in group), attempt])
    return {one.pk: min(other.pk for other in group) for group in groups if len(group) > 1 for one in group}


def ran_together(earlier: Attempt, later: Attempt, now: datetime) -> bool:
    """Whether `earlier` was running when `later` started.

    If the launch of `later` is unknown, an attempt that may be running counts until it has been silent for too long.
    Otherwise `later` is a restart, unless `earlier` still ran a minute after it.
    """
    is_unknown = bool(RANDOM_KEY_PATTERN.match(later.key))
    last_sign = max(earlier.alive_at, earlier.ended_at or earlier.alive_at)
    if last_sign > later.created_at + (timedelta(0) if is_unknown else LATE_UPDATE_WINDOW):
        return True
    return is_unknown and may_run(earlier, now)


def may_run(attempt: Attempt, now: datetime) -> bool:
    has_ended = attempt.ended_at is not None and attempt.ended_at >= attempt.alive_at
    return not has_ended and now <= attempt.alive_at + MAX_SILENCE


def find_running_peers(attempt: Attempt) -> list[Attempt]:
    """Returns the other attempts that run at the same time as this one and may still be running."""
    if attempt.concurrent_with_id is None:
        return []
    peers = Attempt.objects.filter(concurrent_with=attempt.concurrent_with_id).exclude(pk=attempt.pk)
    return [peer for peer in peers.order_by("number") if may_run(peer, timezone.now())]


def list_running_attempts(run: Run, key: str) -> list[RunningAttempt]:
    """Returns the other attempts that run at the same time as the one of this process."""
    process = LaunchProcess.objects.filter(run=run, key=key).first()
    attempt = process.attempt if process else run.attempts.filter(key=key).first()
    peers = find_running_peers(attempt) if attempt else []
    return [
        RunningAttempt(peer.key, peer.host, (peer.key, *peer.processes.values_list("key", flat=True))) for peer in peers
    ]


def end_attempts(run: Run, keys: Collection[str]) -> None:
    """Records that the processes of these attempts have ended, as a process on their host has found."""
    if run.attempts.filter(key__in=keys, ended_at=None).update(ended_at=F("alive_at")):
        update_concurrent_attempts(run)


def recheck_concurrent_attempts() -> int:
    """Compares attempts again that were taken for running and have been silent since. Returns how many runs changed."""
    now = timezone.now()
    later = Attempt.objects.filter(concurrent_with=OuterRef("concurrent_with"), created_at__gt=OuterRef("alive_at"))
    silent = Attempt.objects.filter(Exists(later), concurrent_with__isnull=False, ended_at=None)
    due = silent.filter(alive_at__lt=now - MAX_SILENCE, alive_at__gt=now - MAX_GUESS_AGE)
    runs = Run.objects.filter(pk__in=due.values("run"))
    return sum(update_concurrent_attempts(run) for run in runs)
