"""Attempts of a run: made on first sight, numbered in order, kept alive by heartbeats, ended. Safe to call twice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Max
from django.utils import timezone

from rolloutdeck.protocol import HEARTBEAT_SECONDS
from rollouts.errors import InvalidInputError
from rollouts.lib import parse_choice, parse_integer, parse_text, redact_secrets
from rollouts.live import notify_run_changed
from rollouts.models import Attempt, Run

LATE = timedelta(seconds=5)  # a launch that the server hears of sooner is the newest, whatever its clock says
AFTERGLOW = timedelta(seconds=2 * HEARTBEAT_SECONDS)  # news this soon after the end is of before the end
FILES_ATTEMPT_PATTERN = re.compile(r"^files(-[0-9]+)?$")
FILES = "files"  # the attempt of dumps that nobody's launch is known for


def launch(
    run: Run, key: str, config: dict[str, Any] | None, *, host: str, job: str, waited: timedelta = timedelta(0)
) -> Attempt:
    """The attempt; if it is the newest and brings a config, the run takes it over, and what a later one changes is
    recorded on it."""
    known = run.attempts.filter(key=key).exists()
    attempt = get_or_create_attempt(run, key, host=host, job=job, waited=waited)
    if not known and config is not None and (config or attempt.number > 1) and not replaced(attempt):
        now = redact_secrets(config)
        if attempt.number > 1:
            names = [name for name in {**run.config, **now} if run.config.get(name) != now.get(name)]
            attempt.config_changes = {name: [run.config.get(name), now.get(name)] for name in sorted(names)}
            attempt.save(update_fields=["config_changes"])
        Run.objects.filter(pk=run.pk).update(config=now)
    return attempt


def get_or_create_attempt(
    run: Run, key: str, *, host: str = "", job: str = "", waited: timedelta = timedelta(0)
) -> Attempt:
    """The attempt with this key, made on first sight with the next number; a new launch opens a finished run again.

    A launch whose news `waited` in a spool is numbered before those that began meanwhile.
    """
    key = parse_text(key, "attempt", most=120) or FILES
    found = run.attempts.filter(key=key).first()
    while found is None:
        try:
            with transaction.atomic():
                Run.objects.select_for_update(no_key=True).get(pk=run.pk)
                began = timezone.now() - waited
                found = Attempt.objects.create(
                    run=run,
                    key=key,
                    number=place_for(run, began if waited >= LATE else None),
                    host=parse_text(host, "host", most=120),
                    job=parse_text(job, "job", most=120),
                )
                Attempt.objects.filter(pk=found.pk).update(created_at=began)
                if not replaced(found):
                    Run.objects.filter(pk=run.pk).update(outcome="", finished_at=None)
        except IntegrityError:
            found = run.attempts.filter(key=key).first()
    return found


def place_for(run: Run, began: datetime | None) -> int:
    """The number of a new launch: the next, or that of the first which began later, which all move up by one. What a
    step shows depends only on the order of the numbers, and that stays."""
    later = run.attempts.filter(created_at__gt=began).order_by("number").first() if began else None
    if later is None:
        return (run.attempts.aggregate(last=Max("number"))["last"] or 0) + 1
    for attempt in run.attempts.filter(number__gte=later.number).order_by("-number"):
        Attempt.objects.filter(pk=attempt.pk).update(number=attempt.number + 1)
    return later.number


def record_activity(run: Run, attempt: Attempt) -> None:
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
    """News of a launch: it lives, in this phase; `dropped` is {spool: {reason: count so far}}.

    A run that was finished for a while is running again, unless the news is only of what an old spool had dropped or
    comes from an older launch.
    """
    launched = get_or_create_attempt(run, attempt)
    with transaction.atomic():
        row = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
        before = (row.outcome, row.phase, row.dropped)
        row.phase = parse_text(phase, "phase", most=40, default=row.phase)
        row.dropped = {**row.dropped, **counts(dropped)}
        alive = (not dropped or phase is not None or step is not None) and not replaced(launched)
        if alive and row.finished_at and timezone.now() - row.finished_at > AFTERGLOW:
            row.outcome, row.finished_at = "", None
        row.save(update_fields=["phase", "dropped", "outcome", "finished_at"])
        record_activity(row, launched)
        if before != (row.outcome, row.phase, row.dropped):
            notify_run_changed(row)


def replaced(attempt: Attempt) -> bool:
    """Whether there is a later launch. Files that somebody watches or imports beside it are none."""
    later = Attempt.objects.filter(run=attempt.run_id, number__gt=attempt.number)
    if not FILES_ATTEMPT_PATTERN.match(attempt.key):
        later = later.exclude(key__regex=FILES_ATTEMPT_PATTERN.pattern)
    return later.exists()


def counts(dropped: Any) -> dict[str, dict[str, int]]:
    """What clients say they could not keep. Raises BadInput."""
    if not dropped:
        return {}
    if not isinstance(dropped, Mapping) or not all(isinstance(reasons, Mapping) for reasons in dropped.values()):
        raise InvalidInputError("`dropped` must be {spool: {reason: count}}.", "dropped")
    return {
        parse_text(spool, "dropped", most=200): {
            parse_text(reason, "dropped", most=80): parse_integer(amount, "dropped") or 0
            for reason, amount in reasons.items()
        }
        for spool, reasons in dropped.items()
    }


def finish_attempt(run: Run, attempt: str, outcome: str = "finished") -> None:
    """The launch has ended. An older launch's belated end does not end the newer one."""
    ended = get_or_create_attempt(run, attempt)
    outcome = parse_choice(outcome, "outcome", [Run.Outcome.FINISHED, Run.Outcome.FAILED], default=Run.Outcome.FINISHED)
    if replaced(ended):
        return
    Run.objects.filter(pk=run.pk).update(outcome=outcome, finished_at=timezone.now(), seen_at=timezone.now())
    notify_run_changed(run)
