"""Artifacts, pins, plans and replays as JSON. The field names are part of the API."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dashboard.api.serializers import pick_fields, serialize_pin_source
from dashboard.public_urls import build_public_url
from rollouts.models import Artifact, Pin, Revision, Run
from rollouts.pins import PinStatus, count_received_bytes, list_missing_hashes, load_pin_status
from rollouts.replay import (
    EntryCompatibility,
    EntryEffect,
    EntryPreview,
    ExcludedRows,
    PromptEffect,
    ReplayTimeline,
    ReplayTimelineStep,
)


def serialize_artifact(row: Artifact) -> dict[str, Any]:
    """An artifact from `prefetch_blobs`."""
    return {
        "id": row.key,
        "run": row.run.uid,
        "attempt": row.attempt.key,
        "received": count_received_bytes(row),
        "url": build_files_url(row),
        **pick_fields(row, "split", "step_kind", "step", "role", "state", "message", "bytes"),
        **pick_fields(row, "files", "facts", "origin", "send_now", "created_at", "ready_at"),
    }


def serialize_registered_artifact(row: Artifact) -> dict[str, Any]:
    """The response for the node that registers an artifact."""
    return {"id": row.key, "state": row.state, "step": row.step, "missing": list_missing_hashes(row)}


def build_files_url(row: Artifact) -> str:
    """Relative to the server's URL. The sha256 of a file is appended."""
    return f"/api/v1/runs/{row.run.uid}/artifacts/{row.key}/files/"


def serialize_pin(row: Pin, status: PinStatus | None = None) -> dict[str, Any]:
    """A pin and how many of its bytes are uploaded."""
    status = status or load_pin_status(row)
    artifacts = [{"id": item.key, **pick_fields(item, "role", "step", "state")} for item in status.artifacts]
    return {
        "id": row.pk,
        "project": row.project.slug,
        **serialize_pin_source(row),
        "attempt": row.attempt.key,
        "user": row.user.get_username(),
        "url": build_public_url(f"/runs/{row.run.uid}/steps/{row.step}/"),
        **pick_fields(row, "split", "note", "created_at", "removed_at"),
        "state": status.state,
        "bytes": status.bytes,
        "received": status.received,
        "available": status.available,
        "prompts": status.prompts,
        "messages": status.messages,
        "senders": [{**asdict(sender), "quiet": not sender.is_polling} for sender in status.senders],
        "artifacts": artifacts,
    }


def serialize_plan_revision(name: str, revision: Revision | None) -> dict[str, Any]:
    """A revision without its entries. Number 0 if there is none."""
    return {
        "plan": name,
        "revision": revision.number if revision else 0,
        "action": revision.action if revision else "cache",
        "on_mismatch": revision.on_mismatch if revision else "generate",
        "on_selected": revision.on_selected if revision else "keep",
        "selected_by": revision.selected_by if revision else "flags",
        "exclude_flagged": bool(revision and revision.on_selected != "keep"),
        "user": revision.user.get_username() if revision else None,
        "created_at": revision.created_at if revision else None,
    }


def serialize_plan_entries(rows: Sequence[EntryCompatibility]) -> list[dict[str, Any]]:
    """The entries of a plan for the run that requests it: what to load, from where, and the differences.

    In `source`, `flagged` counts the samples that the plan selects, by default those flagged bad, and `unplaced` counts
    those of them that are in none of its files. In an artifact, `flagged` is {file: record numbers from 0}, and `whole`
    means that nothing of it would remain. `selected` says what the plan does with them: `action` is one of keep, mask,
    drop, regenerate, and `guidance_version` that of the rules.
    """
    return [
        {
            "target_step": row.entry.target_step,
            "pin": row.entry.pin_id,
            "role": row.artifacts[0].role if row.artifacts else "",
            "source": {
                **serialize_pin_source(row.entry.pin),
                "flagged": row.excluded.selected_count,
                "unplaced": row.excluded.not_found,
            },
            "artifacts": [
                serialize_artifact_to_load(artifact, row.excluded.artifacts.get(artifact.pk))
                for artifact in row.artifacts
            ],
            "selected": {
                "action": row.action,
                "samples": row.excluded.selected_count,
                "prompts": row.excluded.prompts,
                "guidance_version": row.excluded.version,
                "complete": row.excluded.is_complete,
            },
            "differences": [asdict(difference) for difference in row.differences],
        }
        for row in rows
    ]


def serialize_previews(
    entries: list[dict[str, Any]], previews: Mapping[int, EntryPreview], effects: Mapping[int, EntryEffect]
) -> list[dict[str, Any]]:
    """The entries with their preview, the effect of the plan on selected samples (None if there are none), and their
    outcome in the run: None if the run does not use them."""
    return [
        {
            **entry,
            **serialize_preview(previews[entry["target_step"]]),
            "effect": serialize_effect(effects.get(entry["target_step"])),
        }
        for entry in entries
    ]


def serialize_effect(row: EntryEffect | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {
        **pick_fields(row, "action", "text", "samples", "rules", "left_off", "without_difference"),
        "regenerates_step": row.regenerates_step,
        "prompt_count": row.prompt_count,
        "guidance_version": row.version,
        "complete": row.is_complete,
        "prompts": [serialize_prompt_effect(prompt) for prompt in row.prompts],
    }


def serialize_prompt_effect(row: PromptEffect) -> dict[str, Any]:
    samples = [pick_fields(sample, "id", "score", "correct", "rules") for sample in row.samples]
    numbers = pick_fields(row, "group", "prompt_key", "selected", "total", "remaining", "mean", "remaining_mean")
    return {**numbers, **pick_fields(row, "rules", "text", "note"), "samples": samples}


def serialize_preview(row: EntryPreview) -> dict[str, Any]:
    outcome = row.outcome
    return {
        "preview": pick_fields(row, "state", "label", "reason"),
        "outcome": pick_fields(outcome, "state", "label", "reason", "replayed", "reported", "selection")
        if outcome
        else None,
    }


def serialize_artifact_to_load(row: Artifact, excluded: ExcludedRows | None) -> dict[str, Any]:
    return {
        "id": row.key,
        **pick_fields(row, "role", "step_kind", "step", "state", "message", "facts", "files"),
        "flagged": {path: list(records) for path, records in excluded.records.items()} if excluded else {},
        "whole": bool(excluded and excluded.is_fully_selected),
        "url": build_files_url(row),
    }


def serialize_timeline_step(row: ReplayTimelineStep) -> dict[str, Any]:
    values = pick_fields(row, "step", "step_kind", "state", "rows", "seconds", "saved", "reason")
    values |= pick_fields(row, "selected_action", "selected", "guidance_version")
    pin = row.pin
    return {**values, "pin": pin.pk if pin else None, "source": serialize_pin_source(pin) if pin else None}


def serialize_replay_timeline(row: ReplayTimeline) -> dict[str, Any]:
    totals = {"rows": row.rows, **pick_fields(row, "seconds", "saved", "estimated", "wall")}
    return {"cells": [serialize_timeline_step(step) for step in row.steps], "counts": row.counts, "totals": totals}


def serialize_binding(run: Run) -> dict[str, Any]:
    """The revision that a run is bound to. None if the run is not bound."""
    binding = getattr(run, "binding", None)
    if binding is None:
        return {"bound": None}
    return {"bound": {"revision": str(binding.revision or ""), "created_at": binding.created_at}}
