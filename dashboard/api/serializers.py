"""Database rows as JSON. The field names are part of the API."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from django.db.models import Count

from dashboard.public_urls import build_public_url
from rollouts.guidance import RuleVersion
from rollouts.labels import RubricVersion, dump_questions
from rollouts.models import Dump, Label, Pin, Project, Replay, Run, Step, Token
from rollouts.retention import load_run_drops

FAILED_STATES = (Dump.State.FAILED, Dump.State.UNSAFE)


def pick_fields(row: object, *names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def serialize_project(row: Project, role: str) -> dict[str, Any]:
    return {"role": role, **pick_fields(row, "slug", "reasons", "correct", "loosened", "created_at")}


def serialize_run(row: Run) -> dict[str, Any]:
    """A run in a list."""
    return {
        "id": row.uid,
        "project": row.project.slug,
        "url": build_public_url(f"/runs/{row.uid}/"),
        "owner": row.owner.get_username() if row.owner else "",
        **pick_fields(row, "name", "framework", "tags", "status", "phase", "version", "dropped"),
        **pick_fields(row, "created_at", "seen_at", "finished_at", "archived_at", "deleted_at"),
    }


def serialize_full_run(row: Run) -> dict[str, Any]:
    """A run with its config, its attempts and the states of its dumps, also of dumps whose step has no row yet."""
    failed = row.dumps.filter(state__in=FAILED_STATES).select_related("attempt").order_by("-pk")[:20]
    attempt_fields = ("key", "number", "host", "job", "config_changes", "created_at", "seen_at")
    return {
        **serialize_run(row),
        "config": row.config,
        "attempts": [pick_fields(attempt, *attempt_fields) for attempt in row.attempts.order_by("number")],
        "dumps": dict(row.dumps.values_list("state").annotate(Count("pk")).order_by("state")),
        "failed": [serialize_dump(dump) for dump in failed],
        "retention": asdict(load_run_drops(row)),
    }


def serialize_step_dump(row: Dump) -> dict[str, Any]:
    """A dump in the list of its step."""
    return {"id": row.pk, **pick_fields(row, "source", "state", "message", "rows", "left_out", "problems")}


def serialize_dump(row: Dump) -> dict[str, Any]:
    return {
        **serialize_step_dump(row),
        "attempt": row.attempt.key,
        **pick_fields(row, "sha256", "bytes", "format", "split", "step_kind", "step", "received_at", "indexed_at"),
    }


def serialize_steps(rows: list[Step]) -> list[dict[str, Any]]:
    """Steps of one run with their dumps and replay events, which are loaded once for all steps."""
    if not rows:
        return []
    numbers = [row.step for row in rows]
    in_range = {"run": rows[0].run_id, "step__gte": min(numbers), "step__lte": max(numbers)}
    dumps: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for dump in Dump.objects.filter(**in_range).order_by("pk"):
        dumps[dump.attempt_id, dump.split, dump.step_kind, dump.step].append(serialize_step_dump(dump))
    events: dict[tuple[Any, ...], Replay] = {}
    if any(row.split == "train" for row in rows):
        for event in Replay.objects.filter(**in_range).select_related("attempt", "pin__run"):
            events[event.attempt_id, "train", event.step_kind, event.step] = event
    keys = [(row.attempt_id, row.split, row.step_kind, row.step) for row in rows]
    return [serialize_step(row, dumps[key], events.get(key)) for row, key in zip(rows, keys, strict=True)]


def serialize_step_drop(row: Step) -> dict[str, Any] | None:
    """What the retention policy dropped of a step; the statistics are those of all samples."""
    if not row.dropped:
        return None
    return {"dropped": row.dropped, "at": row.dropped_at, "rule": row.dropped_rule}


def serialize_step(row: Step, dumps: list[dict[str, Any]], event: Replay | None) -> dict[str, Any]:
    return {
        "attempt": row.attempt.key,
        **pick_fields(row, "step", "step_kind", "split", "superseded", "version", "updated_at"),
        **pick_fields(row, "samples", "trajectories", "generated", "groups", "truncated", "zero_variance_groups"),
        **pick_fields(row, "score_mean", "score_min", "score_max", "score_std", "length_mean", "staleness_mean"),
        **pick_fields(row, "staleness_max", "facets", "histogram", "by_source", "flags"),
        "retention": serialize_step_drop(row),
        "replay": serialize_replay(event) if event else None,
        "dumps": dumps,
    }


def serialize_replay(row: Replay) -> dict[str, Any]:
    return {
        "attempt": row.attempt.key,
        "pin": row.pin_id,
        "source": serialize_pin_source(row.pin) if row.pin else None,
        **pick_fields(row, "step_kind", "step", "outcome", "rows", "seconds", "saved", "reason", "created_at"),
        **pick_fields(row, "selected_action", "selected", "guidance_version"),
    }


def serialize_pin_source(row: Pin) -> dict[str, Any]:
    return {"run": row.run.uid, "name": row.run.name, "step": row.step, "step_kind": row.step_kind}


def serialize_flag(row: Label) -> dict[str, Any]:
    return {
        "id": row.pk,
        "run": row.run.uid,
        "split": row.step.split,
        "step": row.step.step,
        "user": row.author,
        "label": row.value,
        "text": row.rationale,
        **pick_fields(row, "sample", "reason", "created_at", "updated_at", "withdrawn_at"),
    }


def serialize_label(row: Label) -> dict[str, Any]:
    return {
        "id": row.pk,
        "run": row.run.uid,
        "split": row.step.split,
        "step": row.step.step,
        "user": row.user.get_username(),
        "rubric": row.version,
        **pick_fields(row, "sample", "name", "value", "rationale", "source", "author", "start", "end"),
        **pick_fields(row, "created_at", "updated_at", "withdrawn_at"),
    }


def serialize_rubric(rubric: RubricVersion, versions: Iterable[RubricVersion]) -> dict[str, Any]:
    return {
        "version": rubric.number,
        "questions": dump_questions(rubric.questions),
        **pick_fields(rubric, "guidelines", "created_by", "created_at"),
        "versions": [{"version": row.number, **pick_fields(row, "created_by", "created_at")} for row in versions],
    }


def serialize_guidance(guidance: RuleVersion, versions: Iterable[RuleVersion]) -> dict[str, Any]:
    return {
        "version": guidance.number,
        "rules": [rule.to_json() for rule in guidance.rules],
        **pick_fields(guidance, "baseline", "created_by", "created_at"),
        "versions": [{"version": row.number, **pick_fields(row, "created_by", "created_at")} for row in versions],
    }


def serialize_token(row: Token) -> dict[str, Any]:
    return {
        "id": row.pk,
        "user": row.user.get_username(),
        "project": row.project.slug if row.project else None,
        "scopes": row.scopes.split(","),
        **pick_fields(row, "name", "created_at", "used_at", "expires_at", "revoked_at"),
    }
