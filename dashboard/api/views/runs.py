"""Runs: opened by a client or a person, listed, changed, binned; heartbeat and end of a launch."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api import serializers
from dashboard.api.pagination import ApiPagination
from dashboard.api.parsers import parse_json_body, parse_query_params
from dashboard.api.schema import AcceptedParams
from rolloutdeck.protocol import UID_PATTERN
from rollouts.errors import InvalidInputError
from rollouts.ingest import finish_attempt, open_run, parse_tags, record_heartbeat
from rollouts.lib import parse_boolean, parse_choice, parse_integer, parse_text, redact_secrets
from rollouts.live import notify_run_changed
from rollouts.models import Run
from rollouts.runs import archive_runs, move_run_to_trash, restore_run

MAX_WAITED_SECONDS = 10**9  # seconds
RUN_STATUSES = ("running", "silent", "finished", "failed")


class Runs(APIView):
    """Runs that you may see, newest news first; or opens one."""

    scopes = {"POST": "ingest"}
    paged = True
    takes: ClassVar[AcceptedParams] = {
        "GET": {
            "project": "A slug.",
            "name": "Part of the name.",
            "status": "running, silent, finished or failed.",
            "tag": "One of its tags.",
            "archived": "true: only archived ones, false: only others.",
            "deleted": "true: the bin.",
        },
        "POST": {
            "uid": "The run's id, made by the client; a known one is that run.",
            "project": "A slug; may be left out with a token for one project.",
            "name": "What people call it; a taken name becomes name-2 unless `resume` is allow.",
            "framework": "The trainer.",
            "config": "Any JSON object; secrets are masked before it is stored.",
            "attempt": "Key of this launch.",
            "resume": "allow: go on with the run of that name.",
            "host": "Of this launch.",
            "job": "Of this launch.",
            "tags": "A list of words.",
            "waited": "Seconds since this launch began, where it could not say so at once.",
            "wire": "Version of the client's words.",
        },
    }

    def get(self, request: Request) -> Response:
        """Runs by `project`, `name` (part of it), `status`, `tag`, `archived`; `deleted=true` lists the bin."""
        query = parse_query_params(request, self)
        pages = ApiPagination()
        page = pages.paginate_queryset(find_requested_runs(request, query), request, self) or []
        return pages.get_paginated_response([serializers.serialize_run(run) for run in page])

    def post(self, request: Request) -> Response:
        """Open a run: the one with this `uid`, else a new one; a taken `name` continues only with `resume: allow`."""
        data = parse_json_body(request, self)
        user, token = permissions.require_user(request), permissions.resolve_caller(request)[1]
        words = {
            name: parse_text(data.get(name), name, most=200) for name in ("uid", "project", "name", "attempt", "resume")
        }
        about = {name: parse_text(data.get(name), name, most=120) for name in ("framework", "host", "job")}
        config = data.get("config")
        if config is not None and not isinstance(config, dict):
            raise InvalidInputError("`config` must be a JSON object.", "config")
        project = permissions.project_for_ingest(user, token, words.pop("project"))
        waited = parse_integer(data.get("waited"), "waited", most=MAX_WAITED_SECONDS) or 0
        run, created = open_run(
            project,
            **words,
            **about,
            config=config,
            tags=data.get("tags"),
            waited=timedelta(seconds=waited),
            owner=user,
        )
        short = {
            "id": run.uid,
            "name": run.name,
            "url": serializers.build_public_url(f"/runs/{run.uid}/"),
            "attempt": words["attempt"],
        }
        return Response(short, status=201 if created else 200)


def find_requested_runs(request: Request, query: dict[str, str]) -> QuerySet[Run] | list[Run]:
    """Status is no column, it follows from the clock: those with that filter are looked at one by one."""
    status = parse_choice(query.get("status"), "status", RUN_STATUSES, default="")
    runs: QuerySet[Run] = permissions.visible_runs(request)
    if parse_boolean(query.get("deleted", "false"), "deleted"):
        runs = permissions.trashed_runs(request)
    if "project" in query:
        runs = runs.filter(project=permissions.project_or_404(request, query["project"]))
    if "name" in query:
        runs = runs.filter(name__icontains=query["name"])
    if "archived" in query:
        runs = runs.filter(archived_at__isnull=not parse_boolean(query["archived"], "archived"))
    runs = runs.select_related("project", "owner").order_by("-seen_at", "-pk")
    if status in (Run.Outcome.FINISHED, Run.Outcome.FAILED):
        runs = runs.filter(outcome=status)
    elif status:
        runs = runs.filter(outcome="")
    if status in ("running", "silent"):
        return [run for run in runs if run.status == status and has_requested_tag(run, query)]
    return [run for run in runs if has_requested_tag(run, query)] if "tag" in query else runs


def has_requested_tag(run: Run, query: dict[str, str]) -> bool:
    return "tag" not in query or query["tag"] in run.tags


class OneRun(APIView):
    """One run."""

    scopes = {"PATCH": "ingest", "DELETE": "admin"}
    takes: ClassVar[AcceptedParams] = {
        "PATCH": {
            "name": "A name that is free in the project.",
            "tags": "A list of words.",
            "config": "Replaces the config.",
            "framework": "The trainer.",
            "archived": "true: out of the ordinary list, false: back into it.",
            "deleted": "false: out of the bin.",
        },
        "DELETE": {"force": "Also while pins exist."},
    }

    def get(self, request: Request, uid: str) -> Response:
        """A run with config, attempts, counts of its dumps by state, and the dumps that failed with their messages."""
        return Response(serializers.serialize_full_run(permissions.run_or_404(request, uid)))

    def patch(self, request: Request, uid: str) -> Response:
        """Change name, tags, config, framework, `archived`; `deleted: false` takes it out of the bin (owners)."""
        data = parse_json_body(request, self)
        if "deleted" in data:
            restore_requested_run(request, uid, data)
        run = permissions.run_or_404(request, uid, scope="ingest")
        update_run(run, data)
        if "archived" in data:
            archive_runs([run], permissions.require_user(request), back=not parse_boolean(data["archived"], "archived"))
        return Response(serializers.serialize_full_run(run))

    def delete(self, request: Request, uid: str) -> Response:
        """Put a run into the bin, from which it goes for good after a week; 409 while it has pins, unless `force`."""
        query = parse_query_params(request, self)
        run = permissions.run_or_404(request, uid, scope="admin")
        move_run_to_trash(
            run, permissions.require_user(request), force=parse_boolean(query.get("force", "false"), "force")
        )
        return Response(status=204)


def restore_requested_run(request: Request, uid: str, data: dict[str, Any]) -> None:
    if parse_boolean(data["deleted"], "deleted"):
        raise InvalidInputError("Send DELETE to put a run into the bin.", "deleted")
    run = (
        permissions.trashed_runs(request).select_related("project").filter(uid=uid).first()
        if UID_PATTERN.match(uid)
        else None
    )
    if run is not None:
        _, token = permissions.resolve_caller(request)
        if token and not token.allows("admin"):
            raise PermissionDenied("Taking a run out of the bin needs the scope admin.")
        permissions.require_role(request, run.project, permissions.ROLE_BY_SCOPE["admin"])
        restore_run(run, permissions.require_user(request))


def update_run(run: Run, data: dict[str, Any]) -> None:
    """Writes what is told and nothing else, since others may write at the same time. Raises BadInput, also when the
    name is taken."""
    told = [name for name in ("name", "tags", "framework", "config") if name in data]
    if not told:
        return
    if "name" in data:
        run.name = parse_text(data["name"], "name", most=190).strip()
        if not run.name:
            raise InvalidInputError("`name` must not be empty.", "name")
    if "tags" in data:
        run.tags = parse_tags(data["tags"])
    if "framework" in data:
        run.framework = parse_text(data["framework"], "framework", most=40)
    if "config" in data:
        if not isinstance(data["config"], dict):
            raise InvalidInputError("`config` must be a JSON object.", "config")
        run.config = redact_secrets(data["config"])
    try:
        with transaction.atomic():
            run.save(update_fields=told)
            notify_run_changed(run)
    except IntegrityError as error:
        raise InvalidInputError(f"There is a run called {run.name} in this project already.", "name") from error


class Heartbeat(APIView):
    """News of a launch."""

    scopes = {"POST": "ingest"}
    takes: ClassVar[AcceptedParams] = {
        "POST": {
            "attempt": "Key of the launch.",
            "step": "Where it is.",
            "phase": "What it does.",
            "now": "The client's clock, seconds since 1970.",
            "dropped": "{spool: {reason: count}} of what it could not keep, so far.",
            "host": "Of this launch.",
            "job": "Of this launch.",
            "wire": "Version of the client's words.",
        }
    }

    def post(self, request: Request, uid: str) -> Response:
        """The launch `attempt` lives; `step`, `phase`, and `dropped`: what its spools could not keep."""
        data = parse_json_body(request, self)
        run = permissions.find_or_open_requested_run(request, uid)
        step, phase = parse_integer(data.get("step"), "step"), data.get("phase")
        attempt = parse_text(data.get("attempt"), "attempt", most=120)
        record_heartbeat(run, attempt=attempt, step=step, phase=phase, dropped=data.get("dropped"))
        return Response({"id": run.uid, "status": Run.objects.get(pk=run.pk).status})


class Finish(APIView):
    """End of a launch."""

    scopes = {"POST": "ingest"}
    takes: ClassVar[AcceptedParams] = {
        "POST": {
            "attempt": "Key of the launch.",
            "outcome": "finished (default) or failed.",
            "step": "Where it was.",
            "phase": "What it did.",
            "now": "The client's clock, seconds since 1970.",
            "dropped": "As in a heartbeat.",
            "wire": "Version of the client's words.",
        }
    }

    def post(self, request: Request, uid: str) -> Response:
        """The launch `attempt` has ended with `outcome` finished or failed."""
        data = parse_json_body(request, self)
        run = permissions.find_or_open_requested_run(request, uid)
        finish_attempt(run, parse_text(data.get("attempt"), "attempt", most=120), data.get("outcome", ""))
        return Response({"id": run.uid, "status": Run.objects.get(pk=run.pk).status})
