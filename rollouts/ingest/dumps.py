"""Dumps: the header of a dump and the row for its bytes. Safe to call twice with the same input."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.db.models import Q
from django.utils import timezone

from rolloutdeck.protocol import SPLITS, STEP_KINDS
from rollouts.errors import InvalidInputError
from rollouts.ingest.attempts import FILES_ATTEMPT_KEY, get_or_create_attempt, record_activity
from rollouts.lib import parse_choice, parse_integer, parse_text
from rollouts.models import Dump, Run, get_step_position
from rollouts.storage import confirm_raw_dump, is_raw_dump_stored, store_raw_dump

# A worker usually receives the task within milliseconds. The sweep sends a dump again when it is older than this.
FIRST_SWEEP_DELAY = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class DumpHeader:
    """The description of a dump, sent with it.

    `step` is None for files that contain their steps. `offset` is in bytes. `columns` maps the columns of a table to
    the fields of a sample, see `rollouts/formats/table/mapping.py`.
    """

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
    def from_query(cls, query: Mapping[str, Any]) -> DumpHeader:
        """Returns the header of the upload's query parameters. Raises InvalidInputError naming the parameter."""
        known_params = set(cls.__dataclass_fields__)
        if unknown := sorted(set(query) - known_params):
            name = unknown[0][:40]
            message = f"`{name}` is not a parameter of a dump. Use: {', '.join(sorted(known_params))}."
            raise InvalidInputError(message, name)
        return cls(
            attempt=parse_text(query.get("attempt"), "attempt", max_chars=120) or FILES_ATTEMPT_KEY,
            split=parse_choice(query.get("split"), "split", SPLITS, default="train"),
            step=parse_integer(query.get("step"), "step"),
            step_kind=parse_choice(query.get("step_kind"), "step_kind", STEP_KINDS, default="global_step"),
            source=parse_text(query.get("source"), "source", max_chars=500),
            format=parse_text(query.get("format"), "format", max_chars=40),
            offset=parse_integer(query.get("offset"), "offset"),
            generation=parse_integer(query.get("generation"), "generation", maximum=2**31 - 1) or 0,
            producer=parse_text(query.get("producer"), "producer", max_chars=80),
            columns=parse_text(query.get("columns"), "columns", max_chars=1000),
        )

    def identity(self, run: Run, sha256: str) -> str:
        """Returns the SHA-256 of the natural key, in which the length of each part precedes the part.

        The format is not a part of the key. `columns` is one if it is set, so that the same table can be uploaded again
        with other columns.
        """
        values = asdict(self)
        excluded = ("format",) if self.columns else ("format", "columns")
        parts = [run.uid, sha256, *(values[name] for name in values if name not in excluded)]
        key = hashlib.sha256()
        for part in parts:
            text = "" if part is None else str(part)
            key.update(f"{len(text)}:{text}".encode())
        return key.hexdigest()


def find_dump(run: Run, header: DumpHeader, sha256: str) -> Dump | None:
    """Returns the dump that was accepted with the same identity, in any state, or None."""
    return Dump.objects.filter(identity=fill_source(header, sha256).identity(run, sha256)).first()


def has_lost_bytes(dump: Dump) -> bool:
    """Whether the raw bytes should be stored and are not: a disk lost them, or `fsck --repair` removed damaged ones.

    Raises StorageUnavailableError.
    """
    should_be_stored = not dump.is_from_artifact and dump.raw_dropped_at is None
    return should_be_stored and not is_raw_dump_stored(dump.run.project_id, dump.sha256)


def requeue_resent_dump(dump: Dump) -> Dump:
    """Queues a resent dump again if another version of its source was uploaded after it. Otherwise changes nothing.

    The resent bytes become the newest version of the source. A chunk (a dump with an offset) is never queued again: its
    generation says which version it belongs to.
    """
    source_fields = ("run", "attempt", "split", "step_kind", "source", "producer", "generation")
    versions = Dump.objects.filter(**{name: getattr(dump, name) for name in source_fields}).exclude(pk=dump.pk)
    is_later = Q(received_at__gt=dump.received_at) | Q(received_at=dump.received_at, pk__gt=dump.pk)
    if dump.offset is not None or not versions.filter(is_later, Q(step=dump.step) | Q(step=None)).exists():
        return dump
    now = timezone.now()
    Dump.objects.filter(pk=dump.pk).requeue(now + FIRST_SWEEP_DELAY, received_at=now)
    dump.refresh_from_db()
    record_activity(dump.run, dump.attempt)
    return dump


def move_arrival(dump: Dump, received_at: datetime) -> Dump:
    """Moves the time of arrival of a dump forward, never back: equal bytes of a step may be in several versions of a
    file. Queues the dump again if another dump of the step arrived in between, since their order changes."""
    if received_at <= dump.received_at:
        return dump
    others = Dump.objects.filter(**get_step_position(dump)).exclude(pk=dump.pk)
    changed = Dump.objects.filter(pk=dump.pk, received_at__lt=received_at)
    if others.filter(received_at__range=(dump.received_at, received_at)).exists():
        changed.requeue(timezone.now() + FIRST_SWEEP_DELAY, received_at=received_at)
    else:
        changed.update(received_at=received_at)
    dump.refresh_from_db()
    return dump


def fill_source(header: DumpHeader, sha256: str) -> DumpHeader:
    """Returns the header with a source. The default is made of the hash, so a repeated upload is the same dump."""
    return header if header.source else replace(header, source=f"upload:{sha256[:32]}")


def accept_dump(
    run: Run,
    header: DumpHeader,
    sha256: str,
    uncompressed_path: Path,
    size: int,
    received_at: datetime | None = None,
) -> tuple[Dump, bool]:
    """Stores the bytes, then creates the row. Returns the dump and whether it is new. Removes the file.

    Bytes of a dump that were lost are stored again, and indexed if they never were. `size` is in bytes. `received_at`
    is the time of arrival, by default now. The caller has checked the hash. Raises StorageUnavailableError if the disk
    refuses the write.
    """
    header = fill_source(header, sha256)
    if existing_dump := find_dump(run, header, sha256):
        if has_lost_bytes(existing_dump):
            restore_lost_bytes(existing_dump, uncompressed_path)
        uncompressed_path.unlink(missing_ok=True)
        if received_at is None:
            return requeue_resent_dump(existing_dump), False
        return move_arrival(existing_dump, received_at), False
    attempt = get_or_create_attempt(run, header.attempt)
    store_raw_dump(run.project_id, sha256, uncompressed_path)
    due_at = timezone.now() + FIRST_SWEEP_DELAY
    stored = {"run": run, "attempt": attempt, "sha256": sha256, "bytes": size, "due_at": due_at}
    with confirm_raw_dump(run.project_id, sha256):
        dump, created = Dump.objects.get_or_create(
            identity=header.identity(run, sha256), defaults={**asdict(header), **stored}
        )
        if received_at is not None and created:
            Dump.objects.filter(pk=dump.pk).update(received_at=received_at)
            dump.received_at = received_at
        elif received_at is not None:
            dump = move_arrival(dump, received_at)
    record_activity(run, attempt)
    return dump, created


def restore_lost_bytes(dump: Dump, uncompressed_path: Path) -> None:
    store_raw_dump(dump.run.project_id, dump.sha256, uncompressed_path)
    unread = Dump.objects.filter(pk=dump.pk, state__in=(Dump.State.FAILED, Dump.State.RECEIVED))
    unread.requeue(timezone.now() + FIRST_SWEEP_DELAY)
    dump.refresh_from_db()
