"""How a run, an attempt and a dump come to be. Every verb here may be called twice with the same input."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Case, F, Max, Q, When
from django.utils import timezone
from django.utils.translation import gettext as _

from rolloutdeck.protocol import wire
from rollouts.errors import BadInput, NotThere
from rollouts.lib.redaction import masked
from rollouts.lib.validation import number, one_of, text
from rollouts.live import notifications
from rollouts.models import Attempt, Dump, Project, Run, RunAlias
from rollouts.storage import files

# A message usually brings a worker within milliseconds; the sweep sends a dump again when it is older than this.
FIRST_DUE = timedelta(seconds=15)
LATE = timedelta(seconds=5)  # a launch that the server hears of sooner is the newest, whatever its clock says
AFTERGLOW = timedelta(seconds=2 * wire.HEARTBEAT_SECONDS)  # news this soon after the end is of before the end
FILES_KEY = re.compile(r"^files(-[0-9]+)?$")
FILES = "files"  # the attempt of dumps that nobody's launch is known for


@dataclass(frozen=True, slots=True)
class DumpHeader:
    """What a dump says of itself. `step` is None for files that carry their own steps; `offset` in bytes; `columns`
    says which column of a table is which part of a sample, see `rollouts/formats/table/columns.py`."""

    attempt: str
    split: str
    step: int | None
    step_kind: str = "global_step"
    source: str = ""
    format: str = ""
    offset: int | None = None
    generation: int = 0
    producer: str = ""
    columns: str = ""

    @classmethod
    def read(cls, query: Mapping[str, Any]) -> DumpHeader:
        """From the query parameters of the upload. Raises BadInput naming the parameter."""
        known = set(cls.__dataclass_fields__)
        if strange := sorted(set(query) - known):
            raise BadInput(
                f"`{strange[0][:40]}` is no parameter of a dump; known are {', '.join(sorted(known))}.", strange[0][:40]
            )
        return cls(
            attempt=text(query.get("attempt"), "attempt", most=120) or FILES,
            split=one_of(query.get("split"), "split", wire.SPLITS, default="train"),
            step=number(query.get("step"), "step"),
            step_kind=one_of(query.get("step_kind"), "step_kind", wire.STEP_KINDS, default="global_step"),
            source=text(query.get("source"), "source", most=500),
            format=text(query.get("format"), "format", most=40),
            offset=number(query.get("offset"), "offset"),
            generation=number(query.get("generation"), "generation", most=2**31 - 1) or 0,
            producer=text(query.get("producer"), "producer", most=80),
            columns=text(query.get("columns"), "columns", most=1000),
        )

    def identity(self, run: Run, sha256: str) -> str:
        """sha256 over the natural key, each part preceded by its length. The format is no part of it; columns are where
        they are told, so that the same table may be read anew in another way."""
        known = asdict(self)
        left_out = ("format",) if self.columns else ("format", "columns")
        parts = [run.uid, sha256, *(known[name] for name in known if name not in left_out)]
        key = hashlib.sha256()
        for part in parts:
            piece = "" if part is None else str(part)
            key.update(f"{len(piece)}:{piece}".encode())
        return key.hexdigest()


def open_run(
    project: Project,
    *,
    uid: str = "",
    name: str = "",
    framework: str = "",
    config: dict[str, Any] | None = None,
    attempt: str = "",
    resume: str = "",
    host: str = "",
    job: str = "",
    tags: list[str] | None = None,
    waited: timedelta = timedelta(0),
    owner: User | None = None,
) -> tuple[Run, bool]:
    """The run that the caller means, made on first sight for its `owner`; the bool says whether it was made now.

    A known uid (or one that was joined to a run) is that run. An existing name continues only with `resume="allow"`, or
    where the run was made ready for a launch that has not come (`pull` does), and then a new uid becomes another name
    of that run; else the run becomes `name-2`, `name-3`, …
    Raises BadInput for malformed words, NotThere when the run lies in the bin or in another project.
    """
    if uid and not wire.UID.match(uid):
        raise BadInput("`uid` must be 1 to 64 of A-Z a-z 0-9 . _ - and begin with a letter or digit.", "uid")
    if resume not in ("", "allow", "never"):
        raise BadInput("`resume` must be `allow` or `never`.", "resume")
    fresh = {
        "framework": text(framework, "framework", most=40),
        "config": masked(config or {}),
        "tags": tag_list(tags),
        "owner": owner,
    }
    wished = text(name, "name", most=190).strip() or f"run-{(uid or uuid4().hex)[:8]}"

    def joins(taken: Run) -> bool:
        if resume or not attempt or not is_awaited(taken):
            return resume == "allow"
        launch(taken, attempt, config, host=host, job=job, waited=waited)
        return True

    run, created = find_or_create(project, uid, wished, joins, fresh)
    if attempt:
        launch(run, attempt, None if created else config, host=host, job=job, waited=waited)
    if created:
        notifications.changed(run)
    return run, created


def tag_list(tags: Any) -> list[str]:
    """At most fifty short, different words, in their order. Raises BadInput."""
    if tags is None:
        return []
    if not isinstance(tags, list) or len(tags) > 50:
        raise BadInput(_("`tags` must be a list of at most 50 words."), "tags")
    return list(dict.fromkeys(text(tag, "tags", most=60).strip() for tag in tags if tag))


def find_or_create(
    project: Project, uid: str, name: str, joins: Callable[[Run], bool], fresh: dict[str, Any]
) -> tuple[Run, bool]:
    """The uniqueness of uid and of (project, name) decides between launches that race; the loser looks again."""
    while True:
        if found := known_run(project, uid):
            return found, False
        try:
            with transaction.atomic():
                return named_run(project, uid, name, joins, fresh)
        except IntegrityError:
            continue


def known_run(project: Project, uid: str) -> Run | None:
    """The run with this uid. Raises NotThere when it is in the bin or in another project."""
    run = Run.objects.by_uid(uid) if uid else None
    if run is None:
        return None
    if run.project_id != project.pk:
        raise NotThere(f"The run id {uid} is not one of project {project.slug}; give the run an id of its own.", "uid")
    if run.deleted_at:
        raise NotThere(f"The run {run.name} is in the bin; restore it to go on with it.", "uid")
    return run


def named_run(
    project: Project, uid: str, name: str, joins: Callable[[Run], bool], fresh: dict[str, Any]
) -> tuple[Run, bool]:
    for suffix in count(1):
        candidate = name if suffix == 1 else f"{name}-{suffix}"
        taken = Run.objects.filter(project=project, name=candidate).first()
        if taken is None:
            return Run.objects.create(project=project, uid=uid or uuid4().hex, name=candidate, **fresh), True
        if not taken.deleted_at and joins(taken):
            if uid:
                RunAlias.objects.create(uid=uid, run=taken)
            return taken, False
    raise AssertionError("count() does not end")


def is_awaited(run: Run) -> bool:
    """Whether the run was made for a launch that has not come. Of two that come at once the second waits here, and
    finds the other."""
    Run.objects.select_for_update(no_key=True).get(pk=run.pk)
    return not run.attempts.exists()


def launch(
    run: Run, key: str, config: dict[str, Any] | None, *, host: str, job: str, waited: timedelta = timedelta(0)
) -> Attempt:
    """The attempt; if it is the newest and brings a config, the run takes it over, and what a later one changes is
    recorded on it."""
    known = run.attempts.filter(key=key).exists()
    attempt = attempt_of(run, key, host=host, job=job, waited=waited)
    if not known and config is not None and (config or attempt.number > 1) and not replaced(attempt):
        now = masked(config)
        if attempt.number > 1:
            names = [name for name in {**run.config, **now} if run.config.get(name) != now.get(name)]
            attempt.config_changes = {name: [run.config.get(name), now.get(name)] for name in sorted(names)}
            attempt.save(update_fields=["config_changes"])
        Run.objects.filter(pk=run.pk).update(config=now)
    return attempt


def attempt_of(run: Run, key: str, *, host: str = "", job: str = "", waited: timedelta = timedelta(0)) -> Attempt:
    """The attempt with this key, made on first sight with the next number; a new launch opens a finished run again.

    A launch whose news `waited` in a spool is numbered before those that began meanwhile.
    """
    key = text(key, "attempt", most=120) or FILES
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
                    host=text(host, "host", most=120),
                    job=text(job, "job", most=120),
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


def known_dump(run: Run, header: DumpHeader, sha256: str) -> Dump | None:
    """The dump that was accepted under the same identity, whatever became of it."""
    return Dump.objects.filter(identity=named(header, sha256).identity(run, sha256)).first()


def sent_again(known: Dump) -> Dump:
    """Bytes that another version of their source has replaced meanwhile are its newest version again, and wait to be
    indexed; else nothing changes. Chunks say by their generation what they belong to."""
    same = ("run", "attempt", "split", "step_kind", "source", "producer", "generation")
    versions = Dump.objects.filter(**{name: getattr(known, name) for name in same}).exclude(pk=known.pk)
    later = Q(received_at__gt=known.received_at) | Q(received_at=known.received_at, pk__gt=known.pk)
    if known.offset is not None or not versions.filter(later, Q(step=known.step) | Q(step=None)).exists():
        return known
    now = timezone.now()
    # The tries of a claim go on: its worker must not take the next claim for its own.
    Dump.objects.filter(pk=known.pk).update(
        state=Dump.State.RECEIVED,
        tries=Case(When(state=Dump.State.INDEXING, then=F("tries")), default=0),
        received_at=now,
        due_at=now + FIRST_DUE,
        message="",
    )
    known.refresh_from_db()
    seen(known.run, known.attempt)
    return known


def named(header: DumpHeader, sha256: str) -> DumpHeader:
    """A dump without a source is its own source, so that sending it twice is still the same dump."""
    if header.source:
        return header
    return DumpHeader(**{**asdict(header), "source": f"upload:{sha256[:32]}"})


def accept_dump(run: Run, header: DumpHeader, sha256: str, plain: Path, size: int) -> tuple[Dump, bool]:
    """Makes the bytes durable, then the row; the bool says whether the dump is new. `plain` is gone afterwards.

    `size` in bytes. Raises StorageUnavailable when the disk refuses; the caller has checked the hash.
    """
    header = named(header, sha256)
    if known := known_dump(run, header, sha256):
        plain.unlink(missing_ok=True)
        return sent_again(known), False
    attempt = attempt_of(run, header.attempt)
    files.keep_raw(run.project_id, sha256, plain)
    told = {name: value for name, value in asdict(header).items() if name != "attempt"}
    dump, created = Dump.objects.get_or_create(
        identity=header.identity(run, sha256),
        defaults={
            **told,
            "run": run,
            "attempt": attempt,
            "sha256": sha256,
            "bytes": size,
            "due_at": timezone.now() + FIRST_DUE,
        },
    )
    seen(run, attempt)
    return dump, created


def seen(run: Run, attempt: Attempt) -> None:
    now = timezone.now()
    Run.objects.filter(pk=run.pk).update(seen_at=now)
    Attempt.objects.filter(pk=attempt.pk).update(seen_at=now)


def heartbeat(
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
    launched = attempt_of(run, attempt)
    with transaction.atomic():
        row = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
        before = (row.outcome, row.phase, row.dropped)
        row.phase = text(phase, "phase", most=40, default=row.phase)
        row.dropped = {**row.dropped, **counts(dropped)}
        alive = (not dropped or phase is not None or step is not None) and not replaced(launched)
        if alive and row.finished_at and timezone.now() - row.finished_at > AFTERGLOW:
            row.outcome, row.finished_at = "", None
        row.save(update_fields=["phase", "dropped", "outcome", "finished_at"])
        seen(row, launched)
        if before != (row.outcome, row.phase, row.dropped):
            notifications.changed(row)


def replaced(attempt: Attempt) -> bool:
    """Whether there is a later launch. Files that somebody watches or imports beside it are none."""
    later = Attempt.objects.filter(run=attempt.run_id, number__gt=attempt.number)
    if not FILES_KEY.match(attempt.key):
        later = later.exclude(key__regex=FILES_KEY.pattern)
    return later.exists()


def counts(dropped: Any) -> dict[str, dict[str, int]]:
    """What clients say they could not keep. Raises BadInput."""
    if not dropped:
        return {}
    if not isinstance(dropped, Mapping) or not all(isinstance(reasons, Mapping) for reasons in dropped.values()):
        raise BadInput("`dropped` must be {spool: {reason: count}}.", "dropped")
    return {
        text(spool, "dropped", most=200): {
            text(reason, "dropped", most=80): number(amount, "dropped") or 0 for reason, amount in reasons.items()
        }
        for spool, reasons in dropped.items()
    }


def finish(run: Run, attempt: str, outcome: str = "finished") -> None:
    """The launch has ended. An older launch's belated end does not end the newer one."""
    ended = attempt_of(run, attempt)
    outcome = one_of(outcome, "outcome", [Run.Outcome.FINISHED, Run.Outcome.FAILED], default=Run.Outcome.FINISHED)
    if replaced(ended):
        return
    Run.objects.filter(pk=run.pk).update(outcome=outcome, finished_at=timezone.now(), seen_at=timezone.now())
    notifications.changed(run)
