"""The API's description. A view says once, in `takes`, what its methods take: that is checked and that is described."""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter

AcceptedParams = dict[
    str, dict[str, str]
]  # method -> name of a query parameter or of a field of the body -> what it is

PAGED = {"page": "From 1.", "page_size": "At most 500."}
UPLOAD = {
    "attempt": "The launch; `files` unless told.",
    "split": "train (default) or eval.",
    "step": "None for files that carry their own steps.",
    "step_kind": "global_step (default), rollout_id, policy_version, feed_index or iteration.",
    "source": "Producer and relative path, or a uuid per call; other bytes from the same source supersede.",
    "format": "A name from docs/formats.md, or native; found by the server unless told.",
    "offset": "Of a chunk of an append file, in bytes; a chunk ends in a newline.",
    "generation": "Rises when an append file starts anew.",
    "producer": "Only where several processes generate for the same step.",
    "columns": "Of a table: part=column with commas between them, where the columns' names do not tell.",
}
DUMP = "The file, or a chunk of an append file, plain or gzipped."
FILE = "A file that the artifact's manifest names, plain or gzipped; verified whole, also when it is known."
PARTS = (
    "201 new, 200 known, with a receipt {sha256, bytes}; 409 when the hash differs, 413 when it is too large, 507 when "
    "the disk is full. A long body may come in parts with `Content-Range: bytes first-last/total`, each answered 202 "
    "{received}; `bytes */total` asks how far it is. A run that the server never saw is made from the headers "
    "X-Rolloutdeck-Project and X-Rolloutdeck-Run; X-Rolloutdeck-Resume: allow joins the run of that name."
)


class ApiSchema(AutoSchema):
    """Parameters and bodies from the view's `takes`; the prose is the methods' docstrings."""

    @property
    def taken(self) -> dict[str, str]:
        return dict(getattr(self.view, "takes", {}).get(self.method, {}))

    def get_override_parameters(self) -> list[Any]:
        if self.method != "GET":
            return []
        paged = PAGED if getattr(self.view, "paged", False) else {}
        return [build_parameter(name, words) for name, words in {**self.taken, **paged}.items()]

    def get_request_serializer(self) -> Any:
        if self.method in ("GET", "DELETE"):
            return None
        fields = {name: {"description": words} for name, words in self.taken.items()}
        return {"application/json": {"type": "object", "properties": fields, "additionalProperties": False}}

    def get_response_serializers(self) -> Any:
        return None if self.method == "DELETE" else OpenApiTypes.OBJECT

    def get_operation_id(self) -> str:
        return (
            f"{self.view.__class__.__module__.rpartition('.')[2]}_{self.view.__class__.__name__}_{self.method}".lower()
        )


def build_parameter(name: str, words: str) -> OpenApiParameter:
    return OpenApiParameter(name, OpenApiTypes.STR, description=words)


def add_upload_operations(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Adds the PUTs that are answered before Django."""
    dumps = result["paths"]["/api/v1/runs/{uid}/dumps/{sha256}/"]
    dumps["put"] = build_upload_operation(dumps["get"], "uploads_put", DUMP, UPLOAD)
    files = result["paths"]["/api/v1/runs/{uid}/artifacts/{key}/files/{sha256}/"]
    files["put"] = build_upload_operation(files["get"], "uploads_file", FILE, {})
    return result


def build_upload_operation(get: dict[str, Any], name: str, words: str, taken: dict[str, str]) -> dict[str, Any]:
    query = [
        {"in": "query", "name": name, "schema": {"type": "string"}, "description": words}
        for name, words in taken.items()
    ]
    return {
        "operationId": name,
        "description": f"{words} {PARTS}",
        "tags": ["runs"],
        "parameters": [*get.get("parameters", []), *query],
        "requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}},
        "security": get.get("security", []),
        "responses": {
            "201": {"description": "Stored."},
            "200": {"description": "Known."},
            "202": {"description": "Part."},
        },
    }
