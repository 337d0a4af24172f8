"""Runs: opened by a client or a user, listed, changed, moved to the trash; heartbeat and end of an attempt."""

from datetime import timedelta

from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView, Params, filter_by_owner
from dashboard.api.serializers import serialize_full_run, serialize_run
from dashboard.public_urls import build_public_url
from rolloutdeck.protocol import UID_PATTERN, WAITED_HEADER
from rollouts.errors import InvalidInputError
from rollouts.ingest import (
    end_attempts,
    finish_attempt,
    list_running_attempts,
    open_run,
    parse_tags,
    record_context,
    record_heartbeat,
)
from rollouts.lib import redact_secrets
from rollouts.live import notify_run_changed
from rollouts.models import AttemptContext, Run
from rollouts.runs import archive_runs, find_runs, move_run_to_trash, restore_run
from rollouts.storage import load_location

MAX_WAITED_SECONDS = 10**9
RUN_STATUSES = ("running", "silent", "finished", "failed", "planned")


class Runs(ApiView):
    """Runs that you may see, most recently updated first; or opens one."""

    scopes = {"POST": "ingest"}
    statuses = {"POST": ("201",)}
    paged = True
    takes = {
        "GET": {
            "project": "A slug.",
            "q": "The query language of the run list, such as `score>0.5 status:running,failed lr=1e-6`.",
            "name": "Part of the name.",
            "status": "running, silent, finished, failed or planned (created before it starts).",
            "tag": "One of its tags.",
            "archived": "true: only archived runs, false: only others.",
            "deleted": "true: runs in the trash.",
        },
        "POST": {
            "uid": "The run's id, made by the client. If it is known, that run is opened.",
            "project": "A slug; optional with a token for one project.",
            "name": "If the name is taken, a number is appended (name-2), unless `resume` is allow.",
            "framework": "The trainer.",
            "config": "Any JSON object; secrets are masked before it is stored.",
            "attempt": "Key of this attempt.",
            "resume": "allow: continue the run of that name.",
            "default_name": "true: the client chose the name, since none was requested.",
            "host": "Of this attempt.",
            "job": "Of this attempt.",
            "tags": "A list of strings.",
            "waited": "Seconds since this attempt started, if the client could not report it at once.",
            "wire": "Protocol version of the client.",
        },
    }

    def get(self, request: Request) -> Response:
        """Runs by `q`, `project`, `name` (part of it), `status`, `tag`, `archived`; `deleted=true` lists the trash."""
        return self.paginate(find_requested_runs(request, self.parse_query()), serialize_run)

    def post(self, request: Request) -> Response:
        """Open a run: the one with this `uid`, else a new one; a taken `name` continues only with `resume: allow`.

        `running` in the response: other attempts of the run that run at the same time, or ended a moment ago. `server`
        is the id of this server, which has another one after a restore.
        """
        data = self.parse_body()
        names = {name: data.text(name, 200) for name in ("uid", "name", "attempt", "resume")}
        details = {name: data.text(name, 120) for name in ("framework", "host", "job")}
        config, slug = data.get("config"), data.text("project", 200)
        if config is not None and not isinstance(config, dict):
            raise InvalidInputError("`config` must be a JSON object.", "config")
        project = permissions.project_for_ingest(request, slug)
        waited = timedelta(seconds=data.integer("waited", maximum=MAX_WAITED_SECONDS) or 0)
        tags = data.get("tags")
        is_default = data.get("default_name") is True
        run, created = open_run(
            project,
            **names,
            **details,
            config=config,
            tags=tags,
            waited=waited,
            owner=self.user,
            default_name=is_default,
        )
        url = build_public_url(f"/runs/{run.uid}/")
        body: dict[str, object] = {"id": run.uid, "name": run.name, "url": url, "attempt": names["attempt"]}
        body["server"] = load_location().server
        if names["attempt"]:  # also of a run that this request created: another process may have opened it meanwhile
            running = list_running_attempts(run, names["attempt"])
            body["running"] = [{"attempt": row.key, "host": row.host, "keys": row.process_keys} for row in running]
        return Response(body, status=201 if created else 200)


def find_requested_runs(request: Request, query: Params) -> QuerySet[Run] | list[Run]:
    """A list if the filter is not a column: tags, and a status that depends on the time of the last heartbeat."""
    status = query.choice("status", RUN_STATUSES)
    find_visible = permissions.trashed_runs if query.boolean("deleted") else permissions.visible_runs
    runs = filter_by_owner(find_visible(request), request, query)
    if "name" in query:
        runs = runs.filter(name__icontains=query["name"])
    if "archived" in query:
        runs = runs.filter(archived_at__isnull=not query.boolean("archived"))
    if status:
        runs = runs.filter(outcome=status if status in (Run.Outcome.FINISHED, Run.Outcome.FAILED) else "")
    if query.get("q"):
        found = find_runs(runs, query["q"], reader=permissions.require_user(request).pk, archived=None)
        runs = runs.filter(pk__in=[run.pk for run in found.matches])
    runs = runs.select_related("project", "owner").order_by("-seen_at", "-pk")
    if status not in ("planned", "running", "silent") and "tag" not in query:
        return runs
    tag = query.get("tag")
    return [run for run in runs if run.status == (status or run.status) and (tag is None or tag in run.tags)]


class OneRun(ApiView):
    """One run."""

    scopes = {"PATCH": "ingest", "DELETE": "admin"}
    takes = {
        "PATCH": {
            "name": "A name that is not taken in the project.",
            "tags": "A list of strings.",
            "config": "Replaces the config.",
            "framework": "The trainer.",
            "archived": "true: archive the run, false: back to the list.",
            "deleted": "false: restore it from the trash.",
        },
        "DELETE": {"force": "true: also if it has pins."},
    }

    def get(self, request: Request, uid: str) -> Response:
        """A run with config, attempts, counts of its dumps by state, and the dumps that failed with their messages."""
        return Response(serialize_full_run(permissions.run_or_404(request, uid)))

    def patch(self, request: Request, uid: str) -> Response:
        """Change name, tags, config, framework, `archived`; `deleted: false` restores it from the trash (owners)."""
        data = self.parse_body()
        if "deleted" in data:
            restore_requested_run(request, uid, data)
        run = permissions.run_or_404(request, uid, role="maintainer")
        update_run(run, data)
        if "archived" in data:
            archive_runs([run], self.user, back=not data.boolean("archived"))
        return Response(serialize_full_run(run))

    def delete(self, request: Request, uid: str) -> Response:
        """Move a run to the trash, which deletes it after a week; 409 if it has pins, unless `force`."""
        query = self.parse_query()
        run = permissions.run_or_404(request, uid, role="owner")
        move_run_to_trash(run, self.user, force=query.boolean("force"))
        return Response(status=204)


def restore_requested_run(request: Request, uid: str, data: Params) -> None:
    if data.boolean("deleted"):
        raise InvalidInputError("Send DELETE to move a run to the trash.", "deleted")
    trashed = permissions.trashed_runs(request).select_related("project")
    run = trashed.filter(uid=uid).first() if UID_PATTERN.match(uid) else None
    if run is not None:
        _, token = permissions.resolve_caller(request)
        if token and not token.allows("admin"):
            raise PermissionDenied("Restoring a run from the trash needs the scope admin.")
        permissions.require_role(request, run.project, permissions.ROLE_BY_SCOPE["admin"])
        restore_run(run, permissions.require_user(request))


def update_run(run: Run, data: Params) -> None:
    """Writes only the fields in `data`, because other requests may write the others. Raises InvalidInputError, also if
    the name is taken."""
    fields = [name for name in ("name", "tags", "framework", "config") if name in data]
    if not fields:
        return
    if "name" in data:
        run.name = data.text("name", 190).strip()
        if not run.name:
            raise InvalidInputError("`name` must not be empty.", "name")
    if "tags" in data:
        run.tags = parse_tags(data["tags"])
    if "framework" in data:
        run.framework = data.text("framework", 40)
    if "config" in data:
        if not isinstance(data["config"], dict):
            raise InvalidInputError("`config` must be a JSON object.", "config")
        run.config = redact_secrets(data["config"])
    try:
        with transaction.atomic():
            run.save(update_fields=fields)
            notify_run_changed(run)
    except IntegrityError as error:
        raise InvalidInputError(f"The name {run.name} is taken in this project.", "name") from error


ATTEMPT_FIELDS = {
    "attempt": "Key of the attempt.",
    "step": "The current step.",
    "phase": "What the trainer does.",
    "now": "The client's clock, seconds since 1970.",
    "dropped": "{spool: {reason: count}} of the data that the client has dropped so far.",
    "wire": "Protocol version of the client.",
}


class Heartbeat(ApiView):
    """Heartbeat of an attempt."""

    scopes = {"POST": "ingest"}
    takes = {
        "POST": {
            **ATTEMPT_FIELDS,
            "host": "Of this attempt.",
            "job": "Of this attempt.",
            "ended": "Keys of attempts on the same host whose processes have ended.",
        }
    }

    def post(self, request: Request, uid: str) -> Response:
        """The `attempt` is alive, at `step` and in `phase`. `dropped`: data that its spools have dropped."""
        data = self.parse_body()
        ended = data.get("ended") or []
        if not isinstance(ended, list) or not all(isinstance(key, str) for key in ended):
            raise InvalidInputError("`ended` must be a list of attempt keys.", "ended")
        run = permissions.find_or_open_run(request, uid, request.headers)
        step, attempt = data.integer("step"), data.text("attempt", 120)
        record_heartbeat(run, attempt=attempt, step=step, phase=data.get("phase"), dropped=data.get("dropped"))
        if ended:
            end_attempts(run, ended)
        return build_status_response(run)


class Finish(ApiView):
    """End of an attempt."""

    scopes = {"POST": "ingest"}
    takes = {
        "POST": {**ATTEMPT_FIELDS, "outcome": "finished (default) or failed."},
    }

    def post(self, request: Request, uid: str) -> Response:
        """The `attempt` has ended with `outcome` finished or failed."""
        data = self.parse_body()
        run = permissions.find_or_open_run(request, uid, request.headers)
        waited = parse_waited_seconds(request.headers.get(WAITED_HEADER, ""))
        finish_attempt(run, data.text("attempt", 120), data.get("outcome", ""), waited)
        return build_status_response(run)


def parse_waited_seconds(text: str) -> timedelta:
    """Returns how long a request waited in a spool. A malformed header counts as none."""
    try:
        return timedelta(seconds=min(max(float(text), 0.0), MAX_WAITED_SECONDS))
    except ValueError:
        return timedelta(0)


class Context(ApiView):
    """What the processes of the attempts ran."""

    scopes = {"POST": "ingest"}
    takes = {
        "POST": {
            "attempt": "Key of the attempt.",
            "lead": "true: of the leading process, whose facts count for the attempt.",
            "command": "List of arguments; secrets are masked before it is stored.",
            "folder": "Name of the working folder.",
            "git": "{branch, commit, changed, patch}: code version, number of changed files, uncommitted changes.",
            "host": "Of this process.",
            "python": "Version.",
            "platform": "Operating system.",
            "packages": "{name: version}",
            "gpus": "{model: count} of the host.",
            "driver": "Version of the GPU driver.",
            "cpus": "Number of CPUs of the host.",
            "wire": "Protocol version of the client.",
        }
    }

    def get(self, request: Request, uid: str) -> Response:
        """Command, code version, hosts and versions of each attempt that reported them, in order."""
        run = permissions.run_or_404(request, uid)
        rows = AttemptContext.objects.filter(attempt__run=run).select_related("attempt").order_by("attempt__number")
        results = [
            {"attempt": row.attempt.key, "number": row.attempt.number, **row.facts, "patch": row.patch} for row in rows
        ]
        return Response({"results": results})

    def post(self, request: Request, uid: str) -> Response:
        """A process of the `attempt` reports what it runs; several hosts of an attempt add up."""
        data = self.parse_body()
        run = permissions.find_or_open_run(request, uid, request.headers)
        record_context(run, attempt=data.text("attempt", 120), facts=data)
        return build_status_response(run)


def build_status_response(run: Run) -> Response:
    return Response({"id": run.uid, "status": Run.objects.get(pk=run.pk).status})
