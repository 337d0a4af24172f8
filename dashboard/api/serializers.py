"""Rows as the API shows them; the words are those of the design and stay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.db.models import Count

from rollouts.models import Dump, Flag, Pin, Project, Replay, Run, Step, Token

FAILED = (Dump.State.FAILED, Dump.State.UNSAFE)


def serialize_project(row: Project, role: str) -> dict[str, Any]:
    return {
        "slug": row.slug,
        "role": role,
        "reasons": row.reasons,
        "correct": row.correct,
        "loosened": row.loosened,
        "created_at": row.created_at,
    }


def build_public_url(path: str) -> str:
    """A link that a person can open, see ROLLOUTDECK_PUBLIC_URL."""
    return f"{settings.PUBLIC_URL}{path}"


def serialize_run(row: Run) -> dict[str, Any]:
    """A run in a list."""
    return {
        "id": row.uid,
        "name": row.name,
        "project": row.project.slug,
        "url": build_public_url(f"/runs/{row.uid}/"),
        "framework": row.framework,
        "tags": row.tags,
        "owner": row.owner.get_username() if row.owner else "",
        "status": row.status,
        "phase": row.phase,
        "version": row.version,
        "dropped": row.dropped,
        "created_at": row.created_at,
        "seen_at": row.seen_at,
        "finished_at": row.finished_at,
        "archived_at": row.archived_at,
        "deleted_at": row.deleted_at,
    }


def serialize_full_run(row: Run) -> dict[str, Any]:
    """A run with its config, its attempts, and how far its dumps are; one whose step has no row yet shows here too."""
    counted = row.dumps.values_list("state").annotate(Count("pk")).order_by("state")
    failed = row.dumps.filter(state__in=FAILED).select_related("attempt").order_by("-pk")[:20]
    attempts = row.attempts.order_by("number")
    return {
        **serialize_run(row),
        "config": row.config,
        "attempts": [
            {
                "key": one.key,
                "number": one.number,
                "host": one.host,
                "job": one.job,
                "config_changes": one.config_changes,
                "created_at": one.created_at,
                "seen_at": one.seen_at,
            }
            for one in attempts
        ],
        "dumps": dict(counted),
        "failed": [serialize_dump(one) for one in failed],
    }


def serialize_dump(row: Dump) -> dict[str, Any]:
    return {
        "id": row.pk,
        "source": row.source,
        "state": row.state,
        "message": row.message,
        "rows": row.rows,
        "left_out": row.left_out,
        "problems": row.problems,
        "sha256": row.sha256,
        "bytes": row.bytes,
        "format": row.format,
        "attempt": row.attempt.key,
        "split": row.split,
        "step_kind": row.step_kind,
        "step": row.step,
        "received_at": row.received_at,
        "indexed_at": row.indexed_at,
    }


STEP_DUMP = ("id", "source", "state", "message", "rows", "left_out", "problems")


def serialize_steps(rows: Iterable[Step]) -> list[dict[str, Any]]:
    """Steps with their dumps, and what came of a replay there, which are asked for once for all of them."""
    found = list(rows)
    dumps: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    if found:
        numbers = {one.step for one in found}
        of = Dump.objects.filter(run=found[0].run_id, step__gte=min(numbers), step__lte=max(numbers))
        for row in of.select_related("attempt").order_by("pk"):
            whole = serialize_dump(row)
            key = (row.attempt_id, row.split, row.step_kind, row.step)
            dumps[key].append({name: whole[name] for name in STEP_DUMP})
    replayed = load_replay_events(found)
    return [
        serialize_step(one, dumps[(one.attempt_id, one.split, one.step_kind, one.step)], replayed.get(one.pk))
        for one in found
    ]


def load_replay_events(rows: list[Step]) -> dict[int, Replay]:
    """The replay events of training steps of one run, by the steps' ids."""
    places = {(row.attempt_id, row.step_kind, row.step): row.pk for row in rows if row.split == "train"}
    if not places:
        return {}
    numbers = [step for _, _, step in places]
    told = Replay.objects.filter(run=rows[0].run_id, step__gte=min(numbers), step__lte=max(numbers))
    found = {(one.attempt_id, one.step_kind, one.step): one for one in told.select_related("attempt", "pin__run")}
    return {pk: found[place] for place, pk in places.items() if place in found}


def serialize_step(row: Step, dumps: list[dict[str, Any]], replayed: Replay | None = None) -> dict[str, Any]:
    return {
        "step": row.step,
        "step_kind": row.step_kind,
        "split": row.split,
        "attempt": row.attempt.key,
        "superseded": row.superseded,
        "samples": row.samples,
        "trajectories": row.trajectories,
        "generated": row.generated,
        "groups": row.groups,
        "score_mean": row.score_mean,
        "score_min": row.score_min,
        "score_max": row.score_max,
        "score_std": row.score_std,
        "length_mean": row.length_mean,
        "truncated": row.truncated,
        "zero_variance_groups": row.zero_variance_groups,
        "facets": row.facets,
        "histogram": row.histogram,
        "by_source": row.by_source,
        "flags": row.flags,
        "replay": serialize_replay(replayed) if replayed else None,
        "dumps": dumps,
        "version": row.version,
        "updated_at": row.updated_at,
    }


def serialize_replay(row: Replay) -> dict[str, Any]:
    return {
        "attempt": row.attempt.key,
        "step_kind": row.step_kind,
        "step": row.step,
        "outcome": row.outcome,
        "pin": row.pin_id,
        "source": serialize_pin_source(row.pin) if row.pin else None,
        "rows": row.rows,
        "seconds": row.seconds,
        "saved": row.saved,
        "reason": row.reason,
        "created_at": row.created_at,
    }


def serialize_pin_source(row: Pin) -> dict[str, Any]:
    return {"run": row.run.uid, "name": row.run.name, "step": row.step, "step_kind": row.step_kind}


def serialize_flag(row: Flag) -> dict[str, Any]:
    return {
        "id": row.pk,
        "sample": row.sample,
        "run": row.run.uid,
        "split": row.step.split,
        "step": row.step.step,
        "user": row.user.get_username(),
        "label": row.label,
        "reason": row.reason,
        "text": row.text,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "withdrawn_at": row.withdrawn_at,
    }


def serialize_token(row: Token) -> dict[str, Any]:
    return {
        "id": row.pk,
        "name": row.name,
        "user": row.user.get_username(),
        "project": row.project.slug if row.project else None,
        "scopes": row.scopes.split(","),
        "created_at": row.created_at,
        "used_at": row.used_at,
        "expires_at": row.expires_at,
        "revoked_at": row.revoked_at,
    }
