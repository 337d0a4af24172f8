"""A token with too many requests gets 429 with Retry-After; other tokens are not affected."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Project
from tests.support import builders

pytestmark = pytest.mark.django_db


def list_runs(secret: str) -> Any:
    return Client().get("/api/v1/runs/", HTTP_AUTHORIZATION=f"Bearer {secret}")


def test_a_token_is_limited_until_the_next_minute(
    owner: User, project: Project, settings: Any, time_machine: Any
) -> None:
    settings.MAX_TOKEN_REQUESTS = 3
    busy, other = (builders.token(owner, "read", on=project) for _ in range(2))
    time_machine.move_to("2026-11-23 12:00:20+00:00", tick=False)
    assert [list_runs(busy).status_code for _ in range(5)] == [200, 200, 200, 429, 429]
    refused = list_runs(busy)
    assert refused.headers["Retry-After"] == "40"
    assert "more than 3 requests" in refused.json()["error"]["message"]
    assert list_runs(other).status_code == 200
    time_machine.move_to("2026-11-23 12:01:01+00:00", tick=False)
    assert list_runs(busy).status_code == 200


def test_0_is_no_limit(owner: User, project: Project, settings: Any) -> None:
    secret = builders.token(owner, "read", on=project)
    settings.MAX_TOKEN_REQUESTS = 0
    assert {list_runs(secret).status_code for _ in range(5)} == {200}


def test_the_schema_describes_the_429_response(owner: User) -> None:
    client = Client()
    client.force_login(owner)
    schema = json.loads(client.get("/api/schema/").content)
    paths = schema["paths"]
    answer = paths["/api/v1/runs/"]["get"]["responses"]["429"]["$ref"].removeprefix("#/components/responses/")
    assert "Retry-After" in schema["components"]["responses"][answer]["headers"]
    assert "429" in paths["/api/v1/runs/{uid}/dumps/{sha256}/"]["put"]["responses"]
