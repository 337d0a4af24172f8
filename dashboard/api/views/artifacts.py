"""Artifacts of a run: told by the nodes that have the files, asked for, and read back."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import BinaryIO, ClassVar

from asgiref.sync import sync_to_async
from django.http import Http404, StreamingHttpResponse
from django.http.response import HttpResponseBase
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api import serializers_replay
from dashboard.api.pagination import ApiPagination
from dashboard.api.parsers import parse_json_body, parse_query_params
from dashboard.api.schema import AcceptedParams
from rolloutdeck.protocol import ARTIFACT_ROLES, SHA256_PATTERN, SPLITS, STEP_KINDS, UID_PATTERN
from rollouts.errors import ConflictError, InvalidInputError
from rollouts.lib import parse_choice, parse_integer, parse_text
from rollouts.models import Artifact, Run
from rollouts.pins import (
    ArtifactManifest,
    add_artifact_to_pins,
    explain_unavailability,
    find_bound_pins,
    find_file_size,
    list_requested_files,
    prefetch_blobs,
    register_artifact,
)
from rollouts.storage import open_blob
from workers import dispatch

PIECE = 1 << 20
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})\Z")


class Artifacts(APIView):
    """What a trainer can load again."""

    scopes = {"PUT": "ingest"}
    paged = True
    takes: ClassVar[AcceptedParams] = {
        "GET": {
            "step": "A number.",
            "step_kind": "What the number counts.",
            "split": "train or eval.",
            "role": f"{', '.join(ARTIFACT_ROLES)}.",
            "state": "waiting, uploading, ready, unsafe or gone.",
        },
        "PUT": {
            "attempt": "Key of the launch; `files` unless told.",
            "split": "train (default) or eval.",
            "step_kind": "What the step counts; global_step unless told.",
            "step": "A number.",
            "role": f"{', '.join(ARTIFACT_ROLES)}.",
            "files": "{relative path: {sha256, bytes}}.",
            "facts": "What it is compared by with a run that asks for it; a missing one is unknown.",
            "origin": "{host, path, command}: where the files lie, and what would send them.",
            "send_now": "true: the sender does not wait for a pin.",
            "gone": "Why the files cannot be sent any more.",
            "wire": "Version of the client's words.",
        },
    }

    def get(self, request: Request, uid: str) -> Response:
        """The run's artifacts in step order, filtered by `step`, `role` and `state`."""
        query = parse_query_params(request, self)
        rows = permissions.run_or_404(request, uid).artifacts.order_by("step", "pk")
        words = {
            "split": SPLITS,
            "step_kind": STEP_KINDS,
            "role": ARTIFACT_ROLES,
            "state": Artifact.State.values,
        }
        chosen = {name: parse_choice(query.get(name), name, allowed, default="") for name, allowed in words.items()}
        rows = rows.filter(**{name: value for name, value in chosen.items() if value})
        if (step := parse_integer(query.get("step"), "step")) is not None:
            rows = rows.filter(step=step)
        pages = ApiPagination()
        page = pages.paginate_queryset(prefetch_blobs(rows), request, self) or []
        return pages.get_paginated_response([serializers_replay.serialize_artifact(row) for row in page])

    def put(self, request: Request, uid: str) -> Response:
        """Tell of the files of a step; `id` is the sha256 of the canonical manifest, `missing` what is not here yet."""
        data = parse_json_body(request, self)
        attempt = parse_text(data.get("attempt"), "attempt", most=120)
        row, created = register_artifact(
            permissions.find_or_open_requested_run(request, uid), attempt, ArtifactManifest.from_request(data)
        )
        if created:
            add_artifact_to_pins(row)
        if row.due:
            dispatch.send_artifact(row.pk)
        return Response(serializers_replay.serialize_registered_artifact(row), status=201 if created else 200)


class Wanted(APIView):
    """Which bytes are asked for."""

    scopes = {"GET": "ingest"}
    takes: ClassVar[AcceptedParams] = {"GET": {"host": "The node that asks; it is told of its own files only."}}

    def get(self, request: Request, uid: str) -> Response:
        """Files of the run that a pin wants and that are not here; ask again with each heartbeat."""
        query = parse_query_params(request, self)
        run = permissions.run_or_404(request, uid, scope="ingest")
        host = parse_text(query.get("host"), "host", most=120)
        return Response({"files": [asdict(file) for file in list_requested_files(run, host)]})


class RangeNotSatisfiableError(APIException):
    status_code = 416
    default_code = "bad_range"


class OneFile(APIView):
    """A file of an artifact; PUT and HEAD are in `dashboard/uploads/app.py`."""

    def get(self, request: Request, uid: str, key: str, sha256: str) -> HttpResponseBase:
        """The very bytes that were dumped, whole or a `Range` of them. 409 unless a trainer may safely have them."""
        artifact, size = file_or_404(find_replayable_run(request, uid), key, sha256)
        if reason := explain_unavailability(artifact):
            raise ConflictError(reason)
        first, last = parse_byte_range(request.headers.get("Range", ""), size)
        file = open_blob(artifact.run.project_id, sha256)
        response = StreamingHttpResponse(read_file_pieces(file, first, last), content_type="application/octet-stream")
        response["Content-Length"] = str(last - first)
        response["Accept-Ranges"], response["ETag"] = "bytes", f'"{sha256}"'
        response["Content-Disposition"] = f'attachment; filename="{sha256}"'
        if "Range" in request.headers:
            response.status_code = 206
            response["Content-Range"] = f"bytes {first}-{last - 1}/{size}"
        return response


def find_replayable_run(request: Request, uid: str) -> Run:
    """A run that you may see; one in the bin too, while a run that has not ended replays its steps. Raises Http404."""
    binned = permissions.trashed_runs(request).filter(pins__in=find_bound_pins()).select_related("project")
    run = binned.by_uid(uid) if UID_PATTERN.match(uid) else None
    return run or permissions.run_or_404(request, uid)


def file_or_404(run: Run, key: str, sha256: str) -> tuple[Artifact, int]:
    """The artifact and the bytes of its file."""
    if not SHA256_PATTERN.match(key) or not SHA256_PATTERN.match(sha256):
        raise InvalidInputError("An artifact and its files are named by a sha256: 64 lower-case hex digits.")
    artifact = Artifact.objects.select_related("run").filter(run=run, key=key).first()
    size = find_file_size(artifact, sha256) if artifact else None
    if artifact is None or size is None:
        raise Http404(f"This run has no artifact {key[:12]}… with a file {sha256[:12]}….")
    return artifact, size


def parse_byte_range(asked_for: str, size: int) -> tuple[int, int]:
    """(first, one after the last) byte of a single Range. Raises NoSuchRange."""
    if not asked_for:
        return 0, size
    found = RANGE.match(asked_for.strip())
    start, end = found.groups() if found else ("", "")
    first = int(start) if start else max(0, size - int(end or 0))
    last = min(int(end) + 1, size) if start and end else size
    if not found or not (start or end) or first >= last:
        raise RangeNotSatisfiableError(f"The file has {size} bytes; ask for one range within them.")
    return first, last


async def read_file_pieces(file: BinaryIO, first: int, last: int) -> AsyncIterator[bytes]:
    """The bytes from `first` to before `last`, a megabyte at a time."""
    read = sync_to_async(file.read, thread_sensitive=False)
    try:
        file.seek(first)
        while first < last and (piece := await read(min(PIECE, last - first))):
            first += len(piece)
            yield piece
    finally:
        file.close()
