"""Dumps: what a dump says of itself, and the row for its bytes. Safe to call twice with the same input."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db.models import Case, F, Q, When
from django.utils import timezone

from rolloutdeck.protocol import SPLITS, STEP_KINDS
from rollouts.errors import InvalidInputError
from rollouts.ingest.attempts import FILES, get_or_create_attempt, record_activity
from rollouts.lib import parse_choice, parse_integer, parse_text
from rollouts.models import Dump, Run
from rollouts.storage import store_raw_dump

# A message usually brings a worker within milliseconds; the sweep sends a dump again when it is older than this.
FIRST_SWEEP_DELAY = timedelta(seconds=15)


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
            raise InvalidInputError(
                f"`{strange[0][:40]}` is no parameter of a dump; known are {', '.join(sorted(known))}.", strange[0][:40]
            )
        return cls(
            attempt=parse_text(query.get("attempt"), "attempt", most=120) or FILES,
            split=parse_choice(query.get("split"), "split", SPLITS, default="train"),
            step=parse_integer(query.get("step"), "step"),
            step_kind=parse_choice(query.get("step_kind"), "step_kind", STEP_KINDS, default="global_step"),
            source=parse_text(query.get("source"), "source", most=500),
            format=parse_text(query.get("format"), "format", most=40),
            offset=parse_integer(query.get("offset"), "offset"),
            generation=parse_integer(query.get("generation"), "generation", most=2**31 - 1) or 0,
            producer=parse_text(query.get("producer"), "producer", most=80),
            columns=parse_text(query.get("columns"), "columns", most=1000),
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


def find_dump(run: Run, header: DumpHeader, sha256: str) -> Dump | None:
    """The dump that was accepted under the same identity, whatever became of it."""
    return Dump.objects.filter(identity=named(header, sha256).identity(run, sha256)).first()


def requeue_resent_dump(known: Dump) -> Dump:
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
        due_at=now + FIRST_SWEEP_DELAY,
        message="",
    )
    known.refresh_from_db()
    record_activity(known.run, known.attempt)
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
    if known := find_dump(run, header, sha256):
        plain.unlink(missing_ok=True)
        return requeue_resent_dump(known), False
    attempt = get_or_create_attempt(run, header.attempt)
    store_raw_dump(run.project_id, sha256, plain)
    told = {name: value for name, value in asdict(header).items() if name != "attempt"}
    dump, created = Dump.objects.get_or_create(
        identity=header.identity(run, sha256),
        defaults={
            **told,
            "run": run,
            "attempt": attempt,
            "sha256": sha256,
            "bytes": size,
            "due_at": timezone.now() + FIRST_SWEEP_DELAY,
        },
    )
    record_activity(run, attempt)
    return dump, created
