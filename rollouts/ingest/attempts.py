"""Attempts of a run: created, numbered in order, updated by heartbeats, finished. Safe to call twice."""

import re
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Max
from django.utils import timezone

from rollouts.errors import InvalidInputError
from rollouts.ingest.concurrency import (
    FILES_ATTEMPT_PATTERN,
    LATE_UPDATE_WINDOW,
    find_running_peers,
    update_concurrent_attempts,
)
from rollouts.ingest.launches import add_process, find_attempt, find_shared_attempt, parse_launch_key
from rollouts.lib import MAX_INT64, parse_choice, parse_integer, parse_text, redact_secrets
from rollouts.live import notify_run_changed
from rollouts.models import Attempt, Run

# An attempt that waited less than this gets the next number; its start time is ignored.
MIN_REPORT_DELAY = timedelta(seconds=5)
MAX_CLOCK_CHANGE = timedelta(days=2)  # a heartbeat further ahead was stored with a wrong clock
FILES_ATTEMPT_KEY = "files"  # the attempt of dumps without a known attempt
MAX_REASON_CHARS = 80  # of a reason why a client dropped data
UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def register_attempt(
    run: Run,
    key: str,
    config: dict[str, Any] | None,
    *,
    name: str | None = None,
    host: str,
    job: str,
    waited: timedelta = timedelta(0),
) -> Attempt:
    """Returns the attempt, created if it is new.

    If a new attempt is the newest and has a config, the run takes this config. A later attempt stores its changes.
    `name` is the requested name of the run, "" for none.
    """
    exists = find_attempt(run, key) is not None
    attempt = get_or_create_attempt(run, key, name=name, host=host, job=job, waited=waited)
    if attempt.key != key:  # another process of the same launch
        exists = True
        if config and not run.config:
            Run.objects.filter(pk=run.pk).update(config=redact_secrets(config))
    if not exists and config is not None and (config or attempt.number > 1) and not has_later_attempt(attempt):
        new_config = redact_secrets(config)
        if attempt.number > 1:
            names = [name for name in {**run.config, **new_config} if run.config.get(name) != new_config.get(name)]
            attempt.config_changes = {name: [run.config.get(name), new_config.get(name)] for name in sorted(names)}
            attempt.save(update_fields=["config_changes"])
        Run.objects.filter(pk=run.pk).update(config=new_config)
    return attempt


def get_or_create_attempt(
    run: Run,
    key: str,
    *,
    name: str | None = None,
    host: str = "",
    job: str = "",
    waited: timedelta = timedelta(0),
) -> Attempt:
    """Returns the attempt with this key, or the one that the process with this key shares.

    A new one gets the next number and reopens a finished run. An attempt that `waited` in a spool gets a number before
    the attempts that started meanwhile. `name` is the requested name of the run, by default the run's.
    """
    key = parse_text(key, "attempt", max_chars=120) or FILES_ATTEMPT_KEY
    attempt = find_attempt(run, key)
    while attempt is None:
        try:
            with transaction.atomic():
                Run.objects.select_for_update(no_key=True).get(pk=run.pk)
                started_at = choose_start_time(run, waited)
                process = parse_launch_key(key, run.name if name is None else name)
                attempt = find_shared_attempt(run, process, started_at) if process else None
                if attempt is None:
                    number = choose_number(run, started_at if waited >= MIN_REPORT_DELAY else None)
                    names = {
                        "host": parse_text(host, "host", max_chars=120),
                        "job": parse_text(job, "job", max_chars=120),
                    }
                    attempt = Attempt.objects.create(run=run, key=key, number=number, **names)
                    Attempt.objects.filter(pk=attempt.pk).update(created_at=started_at, alive_at=started_at)
                    if not has_later_attempt(attempt):
                        Run.objects.filter(pk=run.pk).update(outcome="", finished_at=None)
                    update_concurrent_attempts(run)
                    attempt.refresh_from_db()
                if process:
                    add_process(attempt, process)
        except IntegrityError:
            attempt = find_attempt(run, key)
    return attempt


def choose_start_time(run: Run, waited: timedelta) -> datetime:
    """Returns when an attempt started that `waited` in a spool.

    While the server's clock is set back it is a moment after the last heartbeat of the run. Otherwise the attempt would
    have started before the one that it continues, and both would count as running together.
    """
    now, last = timezone.now(), run.attempts.aggregate(last=Max("alive_at"))["last"]
    return last + timedelta(microseconds=1) if last and now <= last < now + MAX_CLOCK_CHANGE else now - waited


def choose_number(run: Run, started_at: datetime | None) -> int:
    """Returns the number of a new attempt: the next, or that of the first attempt that started after `started_at`.

    In the second case all later attempts move up by one. The samples that a step shows depend only on the order of the
    numbers, which does not change.
    """
    later = run.attempts.filter(created_at__gt=started_at).order_by("number").first() if started_at else None
    if later is None:
        return (run.attempts.aggregate(last=Max("number"))["last"] or 0) + 1
    for attempt in run.attempts.filter(number__gte=later.number).order_by("-number"):
        Attempt.objects.filter(pk=attempt.pk).update(number=attempt.number + 1)
    return later.number


def record_activity(run: Run, attempt: Attempt) -> None:
    """Sets the time of the last update of the run and of the attempt to now."""
    now = timezone.now()
    Run.objects.filter(pk=run.pk).update(seen_at=now)
    Attempt.objects.filter(pk=attempt.pk).update(seen_at=now)


def record_heartbeat(
    run: Run,
    *,
    attempt: str,
    step: int | None = None,
    phase: str | None = None,
    dropped: Mapping[str, Mapping[str, int]] | None = None,
) -> None:
    """Stores the heartbeat of an attempt: its phase and `dropped`, {spool: {reason: count so far}}.

    A heartbeat reopens a run that finished some time ago, unless it only reports what an old spool dropped or is from
    an attempt that a later one superseded.
    """
    reporting_attempt = get_or_create_attempt(run, attempt)
    with transaction.atomic():
        row = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
        before = (row.outcome, row.phase, row.dropped)
        row.phase = parse_text(phase, "phase", max_chars=40, default=row.phase)
        row.dropped = {**row.dropped, **parse_drop_counts(dropped)}
        is_alive = not dropped or phase is not None or step is not None
        is_newest = not has_later_attempt(reporting_attempt)
        if is_alive and is_newest and row.finished_at and timezone.now() - row.finished_at > LATE_UPDATE_WINDOW:
            row.outcome, row.finished_at = "", None
        row.save(update_fields=["phase", "dropped", "outcome", "finished_at"])
        record_activity(row, reporting_attempt)
        if before != (row.outcome, row.phase, row.dropped):
            notify_run_changed(row)
    if is_alive:
        Attempt.objects.filter(pk=reporting_attempt.pk).update(alive_at=timezone.now())
        update_concurrent_attempts(run)


def has_later_attempt(attempt: Attempt) -> bool:
    """Returns whether there is a later attempt, other than those that run at the same time.

    Attempts of watched or imported files do not count.
    """
    later = Attempt.objects.filter(run=attempt.run_id, number__gt=attempt.number)
    if attempt.concurrent_with_id is not None:
        later = later.exclude(concurrent_with=attempt.concurrent_with_id)
    if not FILES_ATTEMPT_PATTERN.match(attempt.key):
        later = later.exclude(key__regex=FILES_ATTEMPT_PATTERN.pattern)
    return later.exists()


def parse_drop_counts(dropped: Any) -> dict[str, dict[str, int]]:
    """Returns the counts of what the clients dropped. Raises InvalidInputError if it is not {spool: {reason: count}}.

    No reason or count is refused, since the heartbeat also says that the training is alive: a reason is cleaned, and a
    count that is no number is 0.
    """
    if not dropped:
        return {}
    if not isinstance(dropped, Mapping) or not all(isinstance(reasons, Mapping) for reasons in dropped.values()):
        raise InvalidInputError("`dropped` must be {spool: {reason: count}}.", "dropped")
    return {parse_text(spool, "dropped", max_chars=200): sum_drop_counts(reasons) for spool, reasons in dropped.items()}


def sum_drop_counts(reasons: Mapping[Any, Any]) -> dict[str, int]:
    """Returns {reason: count}, with reasons that can be stored; those that become equal are added up."""
    counts: Counter[str] = Counter()
    for reason, amount in reasons.items():
        clean_reason = UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", str(reason))[:MAX_REASON_CHARS]
        try:
            count = parse_integer(amount, "dropped") or 0
        except InvalidInputError:
            count = 0
        counts[clean_reason] = min(counts[clean_reason] + count, MAX_INT64)
    return dict(counts)


def finish_attempt(run: Run, attempt: str, outcome: str = "finished", waited: timedelta = timedelta(0)) -> None:
    """Marks the attempt as ended, and the run if no other attempt runs.

    A late end of an older attempt does not end a newer one. `waited` is the time that the request spent in a spool.
    Raises InvalidInputError.
    """
    ended_attempt = get_or_create_attempt(run, attempt)
    outcome = parse_choice(outcome, "outcome", [Run.Outcome.FINISHED, Run.Outcome.FAILED], default=Run.Outcome.FINISHED)
    ended_at = max(timezone.now() - waited, ended_attempt.alive_at)  # a slow server opens the run after its end
    Attempt.objects.filter(pk=ended_attempt.pk).update(ended_at=ended_at)
    update_concurrent_attempts(run)
    ended_attempt.refresh_from_db()
    if has_later_attempt(ended_attempt) or find_running_peers(ended_attempt):
        return
    Run.objects.filter(pk=run.pk).update(outcome=outcome, finished_at=timezone.now(), seen_at=timezone.now())
    notify_run_changed(run)
