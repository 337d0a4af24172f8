"""Artifacts of a run: registered by the nodes that have the files, requested, and downloaded."""

import re
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import BinaryIO

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView
from dashboard.api.serializers_replay import serialize_artifact, serialize_registered_artifact
from rolloutdeck.protocol import ARTIFACT_ROLES, SPLITS, STEP_KINDS, UID_PATTERN
from rollouts import pins
from rollouts.errors import ConflictError
from rollouts.models import Artifact, Run
from rollouts.storage import open_blob
from workers import dispatch

CHUNK_BYTES = 1 << 20
RANGE_PATTERN = re.compile(r"bytes=(\d{0,18})-(\d{0,18})\Z")


class Artifacts(ApiView):
    """Files of steps that a trainer can load."""

    scopes = {"PUT": "ingest"}
    statuses = {"PUT": ("201",)}
    paged = True
    takes = {
        "GET": {
            "step": "A number.",
            "step_kind": "What the number counts.",
            "split": "train or eval.",
            "role": f"{', '.join(ARTIFACT_ROLES)}.",
            "state": "waiting, uploading, ready, unsafe or gone.",
        },
        "PUT": {
            "attempt": "Key of the attempt, `files` by default.",
            "split": "train (default) or eval.",
            "step_kind": "What the step counts, global_step by default.",
            "step": "A number.",
            "role": f"{', '.join(ARTIFACT_ROLES)}.",
            "files": "{relative path: {sha256, bytes}}.",
            "facts": "Compared with the facts of a run that would replay the step; a missing fact is unknown.",
            "origin": "{host, path, command}: where the files are, and the command that uploads them.",
            "send_now": "true: the client uploads the files without a pin.",
            "gone": "Why the files can no longer be uploaded.",
            "wire": "Protocol version of the client.",
        },
    }

    def get(self, request: Request, uid: str) -> Response:
        """The run's artifacts in step order, filtered by `step`, `role` and `state`."""
        query = self.parse_query()
        rows = permissions.run_or_404(request, uid).artifacts.order_by("step", "pk")
        states = Artifact.State.values
        rows = rows.filter(**query.filters(split=SPLITS, step_kind=STEP_KINDS, role=ARTIFACT_ROLES, state=states))
        return self.paginate(pins.prefetch_blobs(rows), serialize_artifact)

    def put(self, request: Request, uid: str) -> Response:
        """Register the files of a step. `id` is the sha256 of the canonical manifest, `missing` is what to upload."""
        data = self.parse_body()
        attempt = data.text("attempt", 120)
        run = permissions.find_or_open_run(request, uid, request.headers)
        artifact, created = pins.register_artifact(run, attempt, pins.ArtifactManifest.from_request(data))
        if artifact.due:
            dispatch.send_now("check_artifact", artifact.pk)
        return Response(serialize_registered_artifact(artifact), status=201 if created else 200)


class Wanted(ApiView):
    """Files to upload."""

    scopes = {"GET": "ingest"}
    takes = {"GET": {"host": "The node that asks. It gets only its own files."}}

    def get(self, request: Request, uid: str) -> Response:
        """Files of the run that a pin needs and that are not uploaded yet. Clients ask with each heartbeat."""
        query = self.parse_query()
        run = permissions.run_or_404(request, uid, role="maintainer")
        return Response({"files": [asdict(file) for file in pins.list_requested_files(run, query.text("host", 120))]})


class RangeNotSatisfiableError(APIException):
    status_code = 416
    default_code = "bad_range"


class OneFile(ApiView):
    """A file of an artifact; PUT and HEAD are in `dashboard/uploads/app.py`."""

    sends = ("application/octet-stream",)

    def get(self, request: Request, uid: str, key: str, sha256: str) -> HttpResponseBase:
        """The recorded bytes, or a `Range` of them. 409 unless a trainer can load them safely."""
        artifact, size = permissions.artifact_file_or_404(find_replayable_run(request, uid), key, sha256)
        if reason := pins.explain_unavailability(artifact):
            raise ConflictError(reason)
        first, end = parse_byte_range(request.headers.get("Range", ""), size)
        file = open_blob(artifact.run.project_id, sha256)
        response = StreamingHttpResponse(read_file_chunks(file, first, end), content_type="application/octet-stream")
        response["Content-Length"] = str(end - first)
        response["Accept-Ranges"], response["ETag"] = "bytes", f'"{sha256}"'
        response["Content-Disposition"] = f'attachment; filename="{sha256}"'
        if "Range" in request.headers:
            response.status_code = 206
            response["Content-Range"] = f"bytes {first}-{end - 1}/{size}"
        return response


def find_replayable_run(request: Request, uid: str) -> Run:
    """A run that the caller may see, also one in the trash if an unfinished run replays it. Raises Http404."""
    trashed = permissions.trashed_runs(request).filter(pins__in=pins.find_bound_pins()).select_related("project")
    run = trashed.by_uid(uid) if UID_PATTERN.match(uid) else None
    return run or permissions.run_or_404(request, uid)


def parse_byte_range(header: str, size: int) -> tuple[int, int]:
    """(first byte, end) of a Range header with one range. Raises RangeNotSatisfiableError."""
    if not header:
        return 0, size
    match = RANGE_PATTERN.match(header.strip())
    start, last = match.groups() if match else ("", "")
    first = int(start) if start else max(0, size - int(last or 0))
    end = min(int(last) + 1, size) if start and last else size
    if not match or not (start or last) or first >= end:
        raise RangeNotSatisfiableError(f"The file has {size} bytes. Send one range within them.")
    return first, end


async def read_file_chunks(file: BinaryIO, first: int, end: int) -> AsyncIterator[bytes]:
    read = sync_to_async(file.read, thread_sensitive=False)
    try:
        file.seek(first)
        while first < end and (chunk := await read(min(CHUNK_BYTES, end - first))):
            first += len(chunk)
            yield chunk
    finally:
        file.close()
