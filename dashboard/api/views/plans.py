"""Replay plans of a project, and the revision of one that a run is bound to."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api import serializers_replay
from dashboard.api.parsers import parse_json_body, parse_query_params
from dashboard.api.schema import AcceptedParams
from dashboard.api.views.pins import PIN_ROLE
from rolloutdeck.protocol import resolve_targets
from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.lib import parse_boolean, parse_integer, parse_text
from rollouts.models import Binding, Pin, Project, Revision, Run
from rollouts.replay import (
    DEFAULT_PLAN_NAME,
    bind_run,
    check_plan_compatibility,
    find_current_revision,
    find_first_steps,
    find_revision,
    load_plan_entries,
    load_run_facts,
    parse_plan_name,
    resolve_run_revision,
    save_plan,
)

ETAG = re.compile(r'(?:W/)?"?(\d{1,9})"?\Z')
MAX_PLAN_STEPS = 10_000  # of a strip


class PreconditionRequiredError(APIException):
    status_code = 428
    default_code = "match_required"
    default_detail = "Send `If-Match` with the revision that you have looked at, 0 where there is none yet."


class ProjectPlan(APIView):
    """A replay plan of a project."""

    scopes = {"PUT": "admin"}
    takes: ClassVar[AcceptedParams] = {
        "GET": {
            "plan": "Its name; `default` unless told.",
            "revision": "An older one.",
            "run": "A run's id: adds what the plan means for it.",
            "steps": "With it, so many steps of the strip; up to the last target unless told.",
        },
        "PUT": {
            "plan": "Its name; `default` unless told.",
            "action": "cache (default), repeat or repeat_last: what happens past the last target.",
            "on_mismatch": "generate (default) or stop: what a run does at a step whose pin does not fit it.",
            "exclude_flagged": "true: prompts with a sample flagged bad are left out of what is replayed.",
            "entries": "[{pin, target_step}], one for each target.",
        },
    }

    def get(self, request: Request, slug: str) -> Response:
        """The newest revision, or `revision`; its number is the ETag. `run` adds the verdict for that run."""
        query = parse_query_params(request, self)
        project = permissions.project_or_404(request, slug)
        name = parse_plan_name(query.get("plan"))
        revision = revision_of(project, name, parse_integer(query.get("revision"), "revision"))
        run = permissions.run_or_404(request, query["run"]) if "run" in query else None
        if run and run.project_id != project.pk:
            raise NotFoundError(f"The run {run.uid} is not one of {project.slug}.", "run")
        return build_plan_response(
            project, name, revision, run, parse_integer(query.get("steps"), "steps", most=MAX_PLAN_STEPS)
        )

    def put(self, request: Request, slug: str) -> Response:
        """Save the plan as a new revision; 412 when somebody has saved one since the revision of `If-Match`."""
        data = parse_json_body(request, self)
        project = permissions.project_or_404(request, slug)
        permissions.require_role(request, project, PIN_ROLE)
        name = parse_plan_name(data.get("plan") or request.query_params.get("plan"))
        revision = save_plan(
            project,
            name,
            permissions.require_user(request),
            if_match=parse_if_match(request),
            action=data.get("action") or "cache",
            on_mismatch=data.get("on_mismatch") or "generate",
            exclude_flagged=parse_boolean(data.get("exclude_flagged", False), "exclude_flagged"),
            entries=entries_of(project, data.get("entries", [])),
        )
        return build_plan_response(project, name, revision, None, None)


def parse_if_match(request: Request) -> int:
    """The revision of If-Match. Raises MatchRequired."""
    found = ETAG.match(request.headers.get("If-Match", "").strip())
    if not found:
        raise PreconditionRequiredError
    return int(found[1])


def entries_of(project: Project, rows: Any) -> list[tuple[Pin, Any]]:
    """Raises BadInput."""
    told = rows if isinstance(rows, list) else [None]
    if not all(isinstance(row, dict) and set(row) == {"pin", "target_step"} for row in told):
        raise InvalidInputError("`entries` must be a list of objects {pin, target_step}.", "entries")
    ids = [parse_integer(row["pin"], "entries") for row in rows]
    known = {pin.pk: pin for pin in Pin.objects.filter(project=project, pk__in={pk for pk in ids if pk is not None})}
    for pk in ids:
        if pk not in known:
            raise NotFoundError(f"There is no pin {pk} in {project.slug}.", "entries")
    return [(known[pk], row["target_step"]) for pk, row in zip(ids, rows, strict=True) if pk is not None]


def revision_of(project: Project, name: str, wanted: int | None) -> Revision | None:
    """Raises NotThere for an older revision that is not there."""
    if not wanted:
        return None if wanted == 0 else find_current_revision(project, name)
    return find_revision(project, f"{name}@{wanted}")


def build_plan_response(
    project: Project, name: str, revision: Revision | None, run: Run | None, steps: int | None
) -> Response:
    facts = load_run_facts(run) if run else {}
    entries = load_plan_entries(revision)
    last = max((entry.target_step for entry in entries), default=0)
    first = min(find_first_steps([entry.pin_id for entry in entries]).values(), default=1)
    preview = range(first, (last if steps is None else steps) + 1)[:MAX_PLAN_STEPS]
    action = revision.action if revision else "cache"
    told = {
        **serializers_replay.serialize_plan_revision(name, revision),
        "project": project.slug,
        "loosened": project.loosened,
    }
    told["entries"] = serializers_replay.serialize_plan_entries(check_plan_compatibility(revision, facts))
    told["strip"] = resolve_targets(action, [entry.target_step for entry in entries], preview)
    if run is None:
        told["entries"] = [{**entry, "differences": []} for entry in told["entries"]]
    else:
        told |= {"run": run.uid, "facts": facts, **serializers_replay.serialize_binding(run)}
    return Response(told, headers={"ETag": f'"{told["revision"]}"'})


class RunPlan(APIView):
    """The plan that a run replays."""

    scopes = {"POST": "ingest"}
    takes: ClassVar[AcceptedParams] = {
        "POST": {
            "plan": "name or name@revision; the newest of `default` unless told.",
            "facts": "What the run says of itself, to be compared with each pin.",
            "bind": "false: only ask. true (default): the run keeps this revision.",
            "wire": "Version of the client's words.",
        }
    }

    def get(self, request: Request, uid: str) -> Response:
        """The revision that the run is bound to, with its entries; number 0 of a run that is not bound."""
        parse_query_params(request, self)
        run = permissions.run_or_404(request, uid)
        bound = Binding.objects.filter(run=run).select_related("revision__plan__project", "revision__user").first()
        return Response(serialize_run_plan(run, bound.revision if bound else None))

    def post(self, request: Request, uid: str) -> Response:
        """Bind the run to a revision and answer what it has to load. A run that has begun keeps what it is bound to."""
        data = parse_json_body(request, self)
        run = permissions.find_or_open_requested_run(request, uid)
        ref, facts = parse_text(data.get("plan"), "plan", most=120), data.get("facts")
        if facts is not None and not isinstance(facts, dict):
            raise InvalidInputError("`facts` must be an object.", "facts")
        if not parse_boolean(data.get("bind", True), "bind"):
            return Response(
                serialize_run_plan(run, resolve_run_revision(run, ref), {**load_run_facts(run), **(facts or {})})
            )
        bound = bind_run(run, ref, facts)
        run.refresh_from_db()
        return Response(serialize_run_plan(run, bound.revision))


def serialize_run_plan(run: Run, revision: Revision | None, facts: dict[str, Any] | None = None) -> dict[str, Any]:
    told = facts if facts is not None else load_run_facts(run)
    name = revision.plan.name if revision else DEFAULT_PLAN_NAME
    return {
        **serializers_replay.serialize_plan_revision(name, revision),
        "run": run.uid,
        "facts": told,
        **serializers_replay.serialize_binding(run),
        "entries": serializers_replay.serialize_plan_entries(check_plan_compatibility(revision, told)),
    }
