"""Finds raw dumps with the text, and marks raw bytes as dropped."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable
from pathlib import PurePosixPath
from typing import cast

import pyarrow as pa
import zstandard
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from rollouts.errors import RolloutError
from rollouts.forgetting.bodies import list_unscanned_dumps
from rollouts.forgetting.pending import add_pending
from rollouts.forgetting.texts import SearchText
from rollouts.formats import METRIC_FORMATS, TOKEN_ONLY_FORMATS
from rollouts.models import Dump, ForgottenPrompt, Project
from rollouts.storage import get_raw_dump_key, list_files, open_decompressed, open_raw_dump

PIECE_BYTES = 4 << 20
WAITING = Q(segment=None, state__in=(Dump.State.RECEIVED, Dump.State.INDEXING))  # indexing leaves the prompt out


def find_raw_dumps_with_text(project: Project, text: SearchText | None) -> tuple[list[Dump], list[Dump]]:
    """Returns the dumps without all of their rows in a body whose raw bytes have the text, and those that cannot be
    searched: their text is too short, or they are no files of text."""
    patterns = text.build_byte_patterns() if text else []
    found, unsearched = [], []
    for dump in list_unscanned_dumps(project):
        if dump.format in METRIC_FORMATS or dump.is_from_artifact:
            continue
        if patterns and has_bytes(project.pk, dump.sha256, patterns):
            found.append(dump)
        elif not patterns or dump.format in TOKEN_ONLY_FORMATS or not is_text(project.pk, dump.sha256):
            unsearched.append(dump)
    return found, unsearched


def find_orphan_raw_files(project: Project, text: SearchText | None) -> list[str]:
    """Returns the keys of raw files without a row that have the text."""
    patterns = text.build_byte_patterns() if text else []
    names = []
    for file in list_files(f"raw/{project.pk}/") if patterns else ():
        sha256 = PurePosixPath(file.key).stem
        known = Dump.objects.filter(run__project=project, sha256=sha256, raw_dropped_at=None)
        if not known.exists() and has_bytes(project.pk, sha256, patterns):
            names.append(file.key)
    return names


def has_bytes(project: int, sha256: str, patterns: Collection[bytes]) -> bool:
    longest, rest = max(map(len, patterns)), b""
    try:
        with open_raw_dump(project, sha256) as raw:
            stream = open_decompressed(io.BufferedReader(cast(io.RawIOBase, raw)))
            while piece := stream.read(PIECE_BYTES):
                data = rest + piece
                if any(pattern in data for pattern in patterns):
                    return True
                rest = data[-longest:]
    except (RolloutError, OSError, zstandard.ZstdError, pa.ArrowException):
        return False
    return False


def is_text(project: int, sha256: str) -> bool:
    try:
        with open_raw_dump(project, sha256) as raw:
            return b"\0" not in raw.read(4096)
    except (RolloutError, OSError, zstandard.ZstdError):
        return False


def drop_raw_dumps(forgotten: ForgottenPrompt, dumps: Iterable[Dump]) -> int:
    """Marks the raw bytes as dropped: those of the dumps, of dumps with equal bytes, and of the files that they were
    split from. Returns the number of files. `remove_pending_files` removes them."""
    hashes: set[str] = set()
    family = Q(pk__in=[])
    for dump in dumps:
        if dump.is_from_artifact:
            continue
        hashes.add(dump.sha256)
        names = ("run_id", "attempt_id", "split", "source", "producer", "offset", "generation")
        family |= Q(step=None, **{name: getattr(dump, name) for name in names})
    project = forgotten.project
    raw = Dump.objects.filter(run__project=project).exclude(source__startswith=Dump.ARTIFACT_PREFIX)
    hashes |= set(raw.filter(family).values_list("sha256", flat=True))
    with transaction.atomic():
        dropped = raw.filter(sha256__in=hashes, raw_dropped_at=None).exclude(WAITING)
        dropped.update(raw_dropped_at=timezone.now(), problems=[], message="")
        add_pending(forgotten, [get_raw_dump_key(project.pk, sha256) for sha256 in hashes])
    return len(hashes)
