"""The OpenAPI schema. Parameters and bodies come from `takes` of the views, so the schema shows what is checked."""

from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter

PAGE_PARAMS = {"page": "From 1.", "page_size": "At most 500."}
UPLOAD_PARAMS = {
    "attempt": "Key of the attempt, `files` by default.",
    "split": "train (default) or eval.",
    "step": "None for files that contain their own steps.",
    "step_kind": "global_step (default), rollout_id, policy_version, feed_index or iteration.",
    "source": "Producer and relative path, or a uuid per call. Other bytes from the same source supersede.",
    "format": "A name from docs/formats.md, or native. Detected by the server by default.",
    "offset": "Of a chunk of an append file, in bytes. A chunk ends in a newline.",
    "generation": "Increases when an append file starts again.",
    "producer": "Only if several processes generate for the same step.",
    "columns": "Of a table: part=column, separated by commas, if the names of the columns are not clear.",
}
DUMP = "The file, or a chunk of an append file, plain or gzipped."
FILE = "A file in the artifact's manifest, plain or gzipped; completely verified, also if it is known."
PARTS = (
    "201 new, 200 known, with a receipt {sha256, bytes}; 409 if the hash differs, 413 if it is too large, 507 if the "
    "disk is full. A long body can be sent in parts with `Content-Range: bytes first-last/total`, each answered 202 "
    "{received}; `bytes */total` asks how many bytes have arrived. An unknown run is created from the headers "
    "X-Rolloutdeck-Project and X-Rolloutdeck-Run; X-Rolloutdeck-Resume: allow continues the run of that name."
)

SEARCH_ERRORS = {
    "422": "The search reached a limit of the server. The message names it and says how long the search ran.",
    "429": "You have too many searches at once. `Retry-After` says how many seconds to wait.",
}


class ApiSchema(AutoSchema):
    """Parameters and bodies from the view's `takes`, descriptions from the docstrings of its methods."""

    @property
    def taken(self) -> dict[str, str]:
        return dict(getattr(self.view, "takes", {}).get(self.method, {}))

    def get_override_parameters(self) -> list[Any]:
        if self.method != "GET":
            return []
        params = self.taken | (PAGE_PARAMS if getattr(self.view, "paged", False) else {})
        return [OpenApiParameter(name, OpenApiTypes.STR, description=text) for name, text in params.items()]

    def get_request_serializer(self) -> Any:
        if self.method in ("GET", "DELETE"):
            return None
        fields = {name: {"description": text} for name, text in self.taken.items()}
        return {"application/json": {"type": "object", "properties": fields, "additionalProperties": False}}

    def get_response_serializers(self) -> Any:
        return None if self.method == "DELETE" else OpenApiTypes.OBJECT

    def get_operation(self, *args: Any) -> Any:
        operation = super().get_operation(*args)
        if operation and self.method in getattr(self.view, "searches", ()):
            operation["responses"] |= {status: {"description": text} for status, text in SEARCH_ERRORS.items()}
        return operation

    def get_operation_id(self) -> str:
        view = type(self.view)
        resource = getattr(view, "resource", view.__module__.rpartition(".")[2])
        return f"{resource}_{view.__name__}_{self.method}".lower()


def add_upload_operations(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Adds the PUTs of `dashboard/uploads/app.py`."""
    dumps = result["paths"]["/api/v1/runs/{uid}/dumps/{sha256}/"]
    dumps["put"] = build_upload_operation(dumps["get"], "uploads_put", DUMP, UPLOAD_PARAMS)
    files = result["paths"]["/api/v1/runs/{uid}/artifacts/{key}/files/{sha256}/"]
    files["put"] = build_upload_operation(files["get"], "uploads_file", FILE, {})
    return result


def add_rate_limit(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Adds the answer of every operation to a token with too many requests."""
    retry = {"description": "Seconds until the next request is accepted.", "schema": {"type": "integer"}}
    answer = {
        "description": "The token sent too many requests (ROLLOUTDECK_MAX_TOKEN_REQUESTS), or searches still run.",
        "headers": {"Retry-After": retry},
    }
    for path in result["paths"].values():
        for operation in path.values():
            if isinstance(operation, dict) and "responses" in operation:
                operation["responses"].setdefault("429", answer)
    return result


def build_upload_operation(get: dict[str, Any], name: str, body: str, params: dict[str, str]) -> dict[str, Any]:
    query = [
        {"in": "query", "name": param, "schema": {"type": "string"}, "description": text}
        for param, text in params.items()
    ]
    responses = {"201": "Stored.", "200": "Known.", "202": "Part."}
    return {
        "operationId": name,
        "description": f"{body} {PARTS}",
        "tags": ["runs"],
        "parameters": [*get.get("parameters", []), *query],
        "requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}},
        "security": get.get("security", []),
        "responses": {status: {"description": text} for status, text in responses.items()},
    }
