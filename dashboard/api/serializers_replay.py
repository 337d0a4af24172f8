"""Artifacts, pins, plans and replays as the API shows them; the words are those of the design and stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dashboard.api.serializers import build_public_url, serialize_pin_source
from rolloutdeck.protocol import FactDifference
from rollouts.models import Artifact, Pin, Revision, Run
from rollouts.pins import PinStatus, count_received_bytes, list_missing_hashes, load_pin_status
from rollouts.replay import EntryCompatibility, ExcludedRows, ReplayTimeline, ReplayTimelineStep


def serialize_artifact(row: Artifact) -> dict[str, Any]:
    """One of `artifacts.with_blobs`."""
    return {
        "id": row.key,
        "run": row.run.uid,
        "attempt": row.attempt.key,
        "split": row.split,
        "step_kind": row.step_kind,
        "step": row.step,
        "role": row.role,
        "state": row.state,
        "message": row.message,
        "bytes": row.bytes,
        "received": count_received_bytes(row),
        "files": row.files,
        "facts": row.facts,
        "origin": row.origin,
        "send_now": row.send_now,
        "url": build_files_url(row),
        "created_at": row.created_at,
        "ready_at": row.ready_at,
    }


def build_files_url(row: Artifact) -> str:
    """Below the server's address; the sha256 of a file follows."""
    return f"/api/v1/runs/{row.run.uid}/artifacts/{row.key}/files/"


def serialize_pin(row: Pin, standing: PinStatus | None = None) -> dict[str, Any]:
    """A pin with how far its bytes are."""
    told = standing or load_pin_status(row)
    return {
        "id": row.pk,
        "project": row.project.slug,
        **serialize_pin_source(row),
        "attempt": row.attempt.key,
        "split": row.split,
        "note": row.note,
        "user": row.user.get_username(),
        "url": build_public_url(f"/runs/{row.run.uid}/steps/{row.step}/"),
        "state": told.state,
        "bytes": told.bytes,
        "received": told.received,
        "available": told.available,
        "prompts": told.prompts,
        "messages": told.messages,
        "senders": [{**asdict(sender), "quiet": sender.is_silent} for sender in told.senders],
        "artifacts": [
            {"id": one.key, "role": one.role, "step": one.step, "state": one.state} for one in told.artifacts
        ],
        "created_at": row.created_at,
        "removed_at": row.removed_at,
    }


def serialize_plan_revision(name: str, revision: Revision | None) -> dict[str, Any]:
    """A revision without its entries; number 0 while there is none."""
    return {
        "plan": name,
        "revision": revision.number if revision else 0,
        "action": revision.action if revision else "cache",
        "on_mismatch": revision.on_mismatch if revision else "generate",
        "exclude_flagged": bool(revision and revision.exclude_flagged),
        "user": revision.user.get_username() if revision else None,
        "created_at": revision.created_at if revision else None,
    }


def serialize_plan_entries(rows: Sequence[EntryCompatibility]) -> list[dict[str, Any]]:
    """The entries of a plan for the run that asks: what to load, from where, and in what it differs.

    `flagged` of a source counts its samples that are flagged bad; `unplaced` those of them that are in none of its
    files. Of an artifact, `flagged` is file -> records from 0, and `whole` that nothing of it is without a flag.
    """
    return [
        {
            "target_step": row.entry.target_step,
            "pin": row.entry.pin_id,
            "role": row.artifacts[0].role if row.artifacts else "",
            "source": {
                **serialize_pin_source(row.entry.pin),
                "flagged": row.excluded.flagged,
                "unplaced": row.excluded.unplaced,
            },
            "artifacts": [serialize_artifact_to_load(one, row.excluded.artifacts.get(one.pk)) for one in row.artifacts],
            "differences": serialize_differences(row.differences),
        }
        for row in rows
    ]


def serialize_artifact_to_load(row: Artifact, excluded: ExcludedRows | None) -> dict[str, Any]:
    names = ("role", "step_kind", "step", "state", "message", "facts", "files")
    told = {
        "flagged": {path: list(records) for path, records in excluded.records.items()} if excluded else {},
        "whole": bool(excluded and excluded.whole),
    }
    return {"id": row.key, **{name: getattr(row, name) for name in names}, **told, "url": build_files_url(row)}


def serialize_differences(rows: Iterable[FactDifference]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def serialize_timeline_step(row: ReplayTimelineStep) -> dict[str, Any]:
    told = {name: getattr(row, name) for name in ("step", "step_kind", "state", "rows", "seconds", "saved", "reason")}
    return {
        **told,
        "pin": row.pin.pk if row.pin else None,
        "source": serialize_pin_source(row.pin) if row.pin else None,
    }


def serialize_replay_timeline(row: ReplayTimeline) -> dict[str, Any]:
    totals = {"rows": row.rows, "seconds": row.seconds, "saved": row.saved, "estimated": row.estimated}
    return {"cells": [serialize_timeline_step(one) for one in row.cells], "counts": row.counts, "totals": totals}


def serialize_registered_artifact(row: Artifact) -> dict[str, Any]:
    """What a node that told of an artifact needs to know."""
    return {"id": row.key, "state": row.state, "step": row.step, "missing": list_missing_hashes(row)}


def serialize_binding(run: Run) -> Mapping[str, Any]:
    """The revision that a run is bound to; None of a run that is not bound yet."""
    bound = getattr(run, "binding", None)
    if bound is None:
        return {"bound": None}
    name = str(bound.revision) if bound.revision else ""
    return {"bound": {"revision": name, "created_at": bound.created_at}}
