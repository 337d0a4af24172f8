"""Replay plans of a project, and the revision that a run is bound to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView
from dashboard.api.serializers_replay import (
    serialize_binding,
    serialize_plan_entries,
    serialize_plan_revision,
    serialize_previews,
)
from dashboard.api.views.replay.pins import PIN_ROLE
from rolloutdeck.protocol import resolve_targets
from rollouts import replay
from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.lib import parse_integer
from rollouts.models import Binding, Pin, Project, Revision, Run

if TYPE_CHECKING:
    from django.contrib.auth.models import User

ETAG_PATTERN = re.compile(r'(?:W/)?"?(\d{1,9})"?\Z')
MAX_PREVIEW_STEPS = 10_000


class PreconditionRequiredError(APIException):
    status_code = 428
    default_code = "match_required"
    default_detail = "Send `If-Match` with the number of the revision that you have read, 0 if there is none yet."


class ProjectPlan(ApiView):
    """A replay plan of a project."""

    scopes = {"PUT": "admin"}
    takes = {
        "GET": {
            "plan": "Its name, `default` by default.",
            "revision": "Number of an older revision.",
            "run": "A run's id: compares settings and prompts with it, and adds its outcomes.",
            "steps": "Number of steps in `strip`. Default: up to the last target.",
        },
        "PUT": {
            "plan": "Its name, `default` by default.",
            "action": "cache (default), repeat or repeat_last: what happens after the last target.",
            "on_mismatch": "generate (default) or stop: what a run does at a step whose pin is incompatible.",
            "on_selected": "What a replay does with selected samples: keep (default), mask, drop (their prompts), "
            "regenerate, or exclude: the trainer's default of these.",
            "selected_by": "flags (default): samples flagged bad. rules: those that the guidance rules select.",
            "exclude_flagged": "true: the same as on_selected=exclude. Ignored if on_selected is there.",
            "entries": "[{pin, target_step}], one for each target.",
        },
    }

    def get(self, request: Request, slug: str) -> Response:
        """The newest revision, or `revision`. Its number is the ETag.

        Each entry has a `preview`: will_replay, unknown, conflict or will_generate. `run` compares the entries with it.
        `effect` says what happens to the samples that the plan selects, for at most 200 prompts of all entries.
        """
        query = self.parse_query()
        project = permissions.project_or_404(request, slug)
        name = replay.parse_plan_name(query.get("plan"))
        number = query.integer("revision")
        if number:
            revision = replay.find_revision(project, f"{name}@{number}")
        else:
            revision = None if number == 0 else replay.find_current_revision(project, name)
        run = permissions.run_or_404(request, query["run"]) if "run" in query else None
        if run and run.project_id != project.pk:
            raise NotFoundError(f"The run {run.uid} does not belong to {project.slug}.", "run")
        steps = query.integer("steps", maximum=MAX_PREVIEW_STEPS)
        return build_plan_response(project, name, revision, self.user, run, steps)

    def put(self, request: Request, slug: str) -> Response:
        """Save the plan as a new revision; 412 if another one was saved after the revision of `If-Match`."""
        data = self.parse_body()
        project = permissions.project_or_404(request, slug)
        permissions.require_role(request, project, PIN_ROLE)
        name = replay.parse_plan_name(data.get("plan") or request.query_params.get("plan"))
        revision = replay.save_plan(
            project,
            name,
            self.user,
            if_match=parse_if_match(request),
            action=data.get("action") or "cache",
            on_mismatch=data.get("on_mismatch") or "generate",
            on_selected=data.get("on_selected") or ("exclude" if data.boolean("exclude_flagged") else "keep"),
            selected_by=data.get("selected_by") or "flags",
            entries=parse_entries(project, data.get("entries", [])),
        )
        return build_plan_response(project, name, revision, self.user)


def parse_if_match(request: Request) -> int:
    """The revision of If-Match. Raises PreconditionRequiredError."""
    match = ETAG_PATTERN.match(request.headers.get("If-Match", "").strip())
    if not match:
        raise PreconditionRequiredError
    return int(match[1])


def parse_entries(project: Project, rows: Any) -> list[tuple[Pin, Any]]:
    """[(pin, target step)]. Raises InvalidInputError, and NotFoundError for an unknown pin."""
    is_valid = isinstance(rows, list) and all(
        isinstance(row, dict) and set(row) == {"pin", "target_step"} for row in rows
    )
    if not is_valid:
        raise InvalidInputError("`entries` must be a list of objects {pin, target_step}.", "entries")
    ids = [parse_integer(row["pin"], "entries") for row in rows]
    pins = Pin.objects.filter(project=project).in_bulk({pk for pk in ids if pk is not None})
    for pk in ids:
        if pk not in pins:
            raise NotFoundError(f"There is no pin {pk} in {project.slug}.", "entries")
    return [(pins[pk], row["target_step"]) for pk, row in zip(ids, rows, strict=True) if pk is not None]


def build_plan_response(
    project: Project,
    name: str,
    revision: Revision | None,
    reader: User,
    run: Run | None = None,
    steps: int | None = None,
) -> Response:
    facts = replay.load_run_facts(run) if run else {}
    entries = replay.load_plan_entries(revision)
    targets = [entry.target_step for entry in entries]
    first = min(replay.find_first_steps([entry.pin_id for entry in entries]).values(), default=1)
    preview = range(first, (max(targets, default=0) if steps is None else steps) + 1)[:MAX_PREVIEW_STEPS]
    compared = replay.check_plan_compatibility(revision, facts, reader, is_shown=True)
    previews = preview_plan(revision, compared, run, facts)
    plan = {
        **serialize_plan_revision(name, revision),
        "project": project.slug,
        "plans": replay.list_plan_names(project),
        "loosened": project.loosened,
        "entries": serialize_previews(serialize_plan_entries(compared), previews, replay.describe_effects(compared)),
        "preview_counts": replay.count_states(previews.values()),
        "strip": resolve_targets(revision.action if revision else "cache", targets, preview),
    }
    if run is None:
        plan["entries"] = [{**entry, "differences": []} for entry in plan["entries"]]
    else:
        plan |= {"run": run.uid, "facts": facts, **serialize_binding(run)}
    return Response(plan, headers={"ETag": f'"{plan["revision"]}"'})


def preview_plan(
    revision: Revision | None, compared: list[replay.EntryCompatibility], run: Run | None, facts: dict[str, Any]
) -> dict[int, replay.EntryPreview]:
    """{target step: preview}."""
    if revision is None:
        return {}
    context = replay.PlanContext(run, revision.plan.project.loosened, revision.on_selected, revision.selected_by, facts)
    targets = {row.entry.target_step: row.entry.pin_id for row in compared}
    outcomes = replay.load_entry_outcomes(run, revision.action, targets) if run else {}
    return replay.preview_entries(compared, context, outcomes)


class RunPlan(ApiView):
    """The plan that a run replays."""

    scopes = {"POST": "ingest"}
    takes = {
        "POST": {
            "plan": "name or name@revision. Default: the newest revision of `default`.",
            "facts": "Facts of the run, to be compared with each pin.",
            "bind": "true (default): bind the run to this revision. false: only return it.",
            "wire": "Protocol version of the client.",
        }
    }

    def get(self, request: Request, uid: str) -> Response:
        """The revision that the run is bound to, with its entries. Number 0 if the run is not bound."""
        self.parse_query()
        run = permissions.run_or_404(request, uid)
        binding = Binding.objects.filter(run=run).select_related("revision__plan__project", "revision__user").first()
        revision, facts = binding.revision if binding else None, replay.load_run_facts(run)
        return Response(serialize_run_plan(run, revision, facts, self.user, is_shown=True))

    def post(self, request: Request, uid: str) -> Response:
        """Bind the run to a revision and return what it has to load. A run that has started keeps its binding."""
        data = self.parse_body()
        run = permissions.find_or_open_run(request, uid, request.headers)
        ref, facts = data.text("plan", 120), data.get("facts")
        if facts is not None and not isinstance(facts, dict):
            raise InvalidInputError("`facts` must be an object.", "facts")
        if not data.boolean("bind", True):
            all_facts = {**replay.load_run_facts(run), **(facts or {})}
            return Response(serialize_run_plan(run, replay.resolve_run_revision(run, ref), all_facts, self.user))
        binding = replay.bind_run(run, ref, facts)
        run.refresh_from_db()
        return Response(serialize_run_plan(run, binding.revision, replay.load_run_facts(run), self.user))


def serialize_run_plan(
    run: Run, revision: Revision | None, facts: dict[str, Any], reader: User, *, is_shown: bool = False
) -> dict[str, Any]:
    compared = replay.check_plan_compatibility(revision, facts, reader, is_shown=is_shown)
    return {
        **serialize_plan_revision(revision.plan.name if revision else replay.DEFAULT_PLAN_NAME, revision),
        "run": run.uid,
        "facts": facts,
        **serialize_binding(run),
        "entries": serialize_plan_entries(compared),
    }


class RunPrompts(ApiView):
    """The prompts that the steps of a run will ask for."""

    scopes = {"POST": "ingest"}
    statuses = {"POST": ("201",)}
    takes = {
        "POST": {
            "steps": "{step: [prompt, …]}, as a dry run of the data loader gives them.",
            "step_kind": "What the steps count, global_step by default.",
            "wire": "Protocol version of the client.",
        }
    }

    def post(self, request: Request, uid: str) -> Response:
        """Store the prompts of a dry run as hashes, so that the preview of a plan can compare them with its pins."""
        data = self.parse_body()
        run = permissions.find_or_open_run(request, uid, request.headers)
        count = replay.record_step_prompts(run, data.get("steps"), data.text("step_kind", 20))
        return Response({"run": run.uid, "steps": count}, status=201)
