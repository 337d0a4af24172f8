"""The OpenAPI schema. Parameters and bodies come from `takes` of the views, so the schema shows what is checked."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
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

# Status -> when an operation responds with it. `exceptions.py` builds the bodies.
ERRORS = {
    "400": "A parameter, the body or the Host header is wrong. `field` names the part.",
    "401": "The request has no valid token and no session.",
    "403": "The token lacks the scope, or the user's role is too low.",
    "404": "There is no such object, or you have no access to it.",
    "405": "The URL has no such method.",
    "406": "No accepted media type is available.",
    "409": "The state of the object does not allow this.",
    "429": "The token sent too many requests (ROLLOUTDECK_MAX_TOKEN_REQUESTS), or searches still run.",
    "503": "Data is temporarily unavailable. `Retry-After` says when to try again.",
    "507": "The disk of the server is full, or the quota of the project is used.",
}
BODY_ERRORS = {
    "412": "Another user has changed it since: `If-Match` is outdated.",
    "413": "The body is too large.",
    "415": "The body is not JSON, or has another encoding than the operation accepts.",
    "428": "Send `If-Match` with the revision that the change is based on.",
}
SEARCH_ERRORS = {"422": "The search reached a limit of the server. The message names it and how long the search ran."}
ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "additionalProperties": False,
            "properties": {name: {"type": "string"} for name in ("code", "message", "field")},
        }
    },
}
RETRY_AFTER = {
    "Retry-After": {"description": "Seconds until the next request is accepted.", "schema": {"type": "integer"}}
}


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "dashboard.sign_in.tokens.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}


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
        """A view has its media types in `sends` if they are not JSON."""
        if self.method == "DELETE":
            return None
        types = getattr(self.view, "sends", ())
        return {(200, media_type): OpenApiTypes.BINARY for media_type in types} or OpenApiTypes.OBJECT

    def get_operation(self, *args: Any) -> Any:
        operation = super().get_operation(*args)
        if not operation:
            return operation
        responses = operation["responses"]
        for status in getattr(self.view, "statuses", {}).get(self.method, ()):
            responses[status] = responses["200"]
        if self.method in getattr(self.view, "searches", ()):
            responses |= {status: refer_to_error(status) for status in SEARCH_ERRORS}
        return operation

    def get_operation_id(self) -> str:
        """Returns RESOURCE_CLASS_METHOD. Generated clients use it: a renamed module or class of a view breaks them,
        unless `resource` keeps the name."""
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


def refer_to_error(status: str) -> dict[str, str]:
    return {"$ref": f"#/components/responses/Error{status}"}


def add_errors(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Adds the errors of every operation, which have one shape."""
    result["components"].setdefault("schemas", {})["Error"] = ERROR_SCHEMA
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    result["components"]["responses"] = {
        f"Error{status}": {
            "description": text,
            "content": content,
            **({"headers": RETRY_AFTER} if status in ("429", "503", "507") else {}),
        }
        for status, text in (ERRORS | BODY_ERRORS | SEARCH_ERRORS).items()
    }
    for methods in result["paths"].values():
        for operation in methods.values():
            statuses = ERRORS | (BODY_ERRORS if "requestBody" in operation else {})
            operation["responses"] |= {status: refer_to_error(status) for status in statuses}
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
        "responses": {
            status: {"description": text, "content": {"application/json": {"schema": {"type": "object"}}}}
            for status, text in responses.items()
        },
    }
