"""Random requests for each operation of the OpenAPI schema, with every role, in this process.

Each response must be one that the schema describes, and none an error of the server. CI sends a few requests with a
fixed seed. More of them:

    SCHEMA_EXAMPLES=500 SCHEMA_SEED=7 python -m pytest -n0 -o timeout=0 tests/dashboard/api/test_schema_fuzz.py
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
import schemathesis
from django.db import transaction
from django.test.client import ClientHandler
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from dashboard.api.docs import generate_schema
from dashboard.counters import counters
from tests.dashboard.support.access_world import CALLS, build_world, insert_ids
from tests.dashboard.support.asker import PERSONS, TOKENS, RoleClient

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]

EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "8"))  # of each operation
SEED = int(os.environ.get("SCHEMA_SEED", "15"))
# A role that may do everything comes first, as hypothesis begins with it, and half of the time: the others are refused
# before most of the code runs.
ROLES = (*("owner",) * len((*PERSONS, *TOKENS)), *PERSONS, *TOKENS)
# (method, path below /api/v1/ as the schema has it) -> role and body.
VALID = {
    (method, re.sub(r"<\w+:(\w+)>", r"{\1}", route).replace("{pk}", "{id}")): entry
    for (method, route), entry in CALLS.items()
}
LIMITS = settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]
# Names of parameters and fields -> the object whose id they take.
IDS = {"uid": "run", "run": "run", "key": "artifact", "project": "slug", "exhibit_pk": "exhibit"}
IDS |= {name: name for name in ("slug", "sample", "finding", "pin", "step", "group")}
ID_BY_PATH = {
    "samples": "sample",
    "findings": "finding",
    "flags": "flag",
    "labels": "flag",
    "pins": "pin",
    "rescores": "rescore",
    "queues": "queue",
    "tokens": "token",
    "views": "view",
}
SHA256_BY_PATH = {"dumps": "dump", "files": "file", "images": "image"}


HANDLER = ClientHandler(enforce_csrf_checks=False)


def build_application(headers: dict[str, str]) -> Callable[..., list[bytes]]:
    """A WSGI application: Django, with each request of this role rolled back.

    Exports and searches are streamed asynchronously, which only an async server can read: their body is empty here, and
    the header `X-Not-Read` says so. tests/dashboard/api/test_samples.py reads them.
    """

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        environ |= {f"HTTP_{name.upper()}": value for name, value in headers.items()}
        with transaction.atomic():
            response = HANDLER(environ)
            is_read = not (response.streaming and response.is_async)
            chunks = response.streaming_content if response.streaming else [response.content]
            body = b"".join(chunks) if is_read else b""
            transaction.set_rollback(True)
        counters.prefix = f"{uuid4()}:"  # requests and sign-ins do not count together
        more = [] if is_read else [("X-Not-Read", "1")]
        start_response(f"{response.status_code} {response.reason_phrase}", [*response.items(), *more])
        return [body]

    return answer


def use_real_ids(case: Any, ids: dict[str, str]) -> None:
    """Random ids would end in 404 before anything else is checked."""
    for values in (case.path_parameters, case.query, case.body):
        if isinstance(values, dict):
            values |= {name: ids[IDS[name]] for name in values if name in IDS}
    parts = case.operation.path.strip("/").split("/")
    for before, part in zip(parts, parts[1:], strict=False):
        for name, kinds in (("id", ID_BY_PATH), ("sha256", SHA256_BY_PATH)):
            if part == f"{{{name}}}":
                case.path_parameters[name] = ids[kinds[before]]


def use_valid_body(case: Any, ids: dict[str, str]) -> None:
    """A body that is accepted, with one random value, so that requests also get past the checks."""
    path = case.operation.path.removeprefix("/api/v1/")
    _role, valid = VALID.get((case.method, path), ("", None))
    if isinstance(valid, dict):
        own = case.body if isinstance(case.body, dict) else {}
        case.body = insert_ids(valid, ids) | dict(list(own.items())[:1])


def find_operations() -> Iterator[Any]:
    """Without uploads, which are in front of Django, and without the security schemes, since the role signs in."""
    raw = generate_schema()
    for methods in raw["paths"].values():
        for method in [method for method, call in methods.items() if call["operationId"].startswith("uploads_")]:
            del methods[method]
        for call in methods.values():
            call.pop("security", None)
    for found in schemathesis.openapi.from_dict(raw).get_all_operations():
        yield found.ok()


def test_every_operation_answers_as_its_schema_says() -> None:
    world = build_world()
    role_client = RoleClient(world)
    statuses: Counter[int] = Counter()
    for operation in find_operations():
        strategy = st.one_of(*(operation.as_strategy(mode) for mode in GenerationMode))

        @seed(SEED)
        @LIMITS
        @given(case=strategy, role=st.sampled_from(ROLES), depth=st.sampled_from((0, 1, 2, 2)))
        def request(case: Any, role: str, depth: int) -> None:
            if depth > 1:
                use_valid_body(case, world["own"])
            if depth:
                use_real_ids(case, world["own"])
            application = build_application(role_client.build_headers(role))
            response = case.call(app=application, base_url="http://127.0.0.1")
            statuses[response.status_code] += 1
            is_read = "x-not-read" not in response.headers
            case.validate_response(response, checks=[*CHECKS, response_schema_conformance] if is_read else CHECKS)

        request()
    assert {200, 201, 204, 400, 401, 403, 404} <= statuses.keys(), statuses
    assert statuses[401] < statuses.total() / 5, statuses
