"""Bad input of any kind: the response is a 4xx with one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolloutdeck.protocol import wire
from rollouts.models import Project, Run
from tests.dashboard.support.api_client import ApiClient, create_filled_run, get_first_sample
from tests.support.patching import patch_everywhere

pytestmark = pytest.mark.django_db

HUGE = 10**30
POINT = {"step": 1, "values": {"x": 1}}
BAD: list[tuple[str, str, Any]] = [
    ("POST", "runs/", []),
    ("POST", "runs/", "text"),
    ("POST", "runs/", b"{"),
    ("POST", "runs/", b"\xff\xfe"),
    ("POST", "runs/", b"[" * 100_000),
    ("POST", "runs/", b'{"project": ' + b"9" * 5000 + b"}"),
    ("POST", "runs/", {"project": 3}),
    ("POST", "runs/", {"project": "math", "uid": "a/b"}),
    ("POST", "runs/", {"project": "math", "uid": "a\x00"}),
    ("POST", "runs/", {"project": "math", "name": "x" * 500}),
    ("POST", "runs/", {"project": "math", "name": "\ud800"}),
    ("POST", "runs/", {"project": "math", "config": [1]}),
    ("POST", "runs/", {"project": "math", "tags": "one"}),
    ("POST", "runs/", {"project": "math", "tags": [["a"]]}),
    ("POST", "runs/", {"project": "math", "resume": "must"}),
    ("POST", "runs/", {"project": "math", "colour": "red"}),
    ("POST", "runs/", {"project": "ma\x00th"}),
    ("PUT", "runs/", {}),
    ("DELETE", "runs/", None),
    ("GET", "runs/?page=0", None),
    ("GET", "runs/?page=x", None),
    ("GET", "runs/?page=99", None),
    ("GET", f"runs/?page={HUGE}", None),
    ("GET", "runs/?page_size=-1", None),
    ("GET", "runs/?status=asleep", None),
    ("GET", "runs/?project=%00", None),
    ("GET", "runs/?name=%00", None),
    ("GET", "runs/?colour=red", None),
    ("GET", "runs/?deleted=perhaps", None),
    ("GET", "runs/%00/", None),
    ("GET", "runs/nowhere/", None),
    ("GET", "runs/%ff/", None),
    ("PATCH", "runs/{run}/", {"name": ""}),
    ("PATCH", "runs/{run}/", {"name": 3}),
    ("PATCH", "runs/{run}/", {"config": 3}),
    ("PATCH", "runs/{run}/", {"deleted": True}),
    ("PATCH", "runs/{run}/", {"deleted": 7}),
    ("PATCH", "runs/{run}/", {"uid": "other"}),
    ("POST", "runs/{run}/", {}),
    ("POST", "runs/{run}/heartbeat/", {"attempt": 3}),
    ("POST", "runs/{run}/context/", {"attempt": "a", "command": "python x"}),
    ("POST", "runs/{run}/context/", {"attempt": "a", "packages": []}),
    ("POST", "runs/{run}/heartbeat/", {"attempt": "a", "step": -1}),
    ("POST", "runs/{run}/heartbeat/", {"attempt": "a", "step": HUGE}),
    ("POST", "runs/{run}/heartbeat/", {"attempt": "a", "phase": []}),
    ("POST", "runs/{run}/heartbeat/", {"attempt": "a", "dropped": "many"}),
    ("POST", "runs/{run}/heartbeat/", {"attempt": "a", "dropped": {"s": 3}}),
    ("POST", "runs/{run}/heartbeat/", {"attempt": "x" * 121}),
    ("GET", "runs/{run}/heartbeat/", None),
    ("POST", "runs/{run}/finish/", {"outcome": "won"}),
    ("POST", "runs/{run}/finish/", {"outcome": {}}),
    ("POST", "runs/{run}/finish/", {"outcome": ["failed"]}),
    ("POST", "runs/{run}/metrics/", {}),
    ("POST", "runs/{run}/metrics/", {"points": [3]}),
    ("POST", "runs/{run}/metrics/", {"points": [{"values": {}}]}),
    ("POST", "runs/{run}/metrics/", {"points": [{**POINT, "step": True}]}),
    ("POST", "runs/{run}/metrics/", {"points": [{**POINT, "step": HUGE}]}),
    ("POST", "runs/{run}/metrics/", {"points": [{**POINT, "step": 1.5}]}),
    ("POST", "runs/{run}/metrics/", {"points": [{**POINT, "step_kind": "epoch"}]}),
    ("POST", "runs/{run}/metrics/", {"points": [{**POINT, "step_kind": {}}]}),
    ("POST", "runs/{run}/metrics/", {"points": [{**POINT, "time": "now"}]}),
    ("POST", "runs/{run}/metrics/", {"points": [{**POINT, "values": {"x": "high"}}]}),
    ("POST", "runs/{run}/metrics/", {"points": [{**POINT, "values": [1]}]}),
    ("POST", "runs/{run}/metrics/", {"points": [POINT] * 10_001}),
    ("GET", "runs/{run}/metrics/?name=%00", None),
    ("GET", "runs/{run}/metrics/?max_points=-1", None),
    ("GET", "runs/{run}/metrics/?" + "&".join(["name=x"] * 300), None),
    ("GET", "runs/{run}/steps/?split=test", None),
    ("GET", "runs/{run}/steps/?step=x", None),
    ("GET", f"runs/{{run}}/steps/?step={HUGE}", None),
    ("GET", "runs/{run}/steps/?attempt=%00", None),
    ("GET", "runs/{run}/dumps/?state=lost", None),
    ("GET", "runs/{run}/dumps/abc/", None),
    ("GET", f"runs/{{run}}/dumps/{'0' * 64}/", None),
    ("GET", "samples/", None),
    ("GET", "samples/?run=nowhere", None),
    ("GET", "samples/?run=%00", None),
    ("GET", "samples/?run={run}&step=1.5", None),
    ("GET", f"samples/?run={{run}}&step={HUGE}", None),
    ("GET", "samples/?run={run}&ordering=beauty", None),
    ("GET", "samples/?run={run}&q=score>>", None),
    ("GET", "samples/?run={run}&q=%28", None),
    ("GET", "samples/?run={run}&q=/[/", None),
    ("GET", "samples/?run={run}&q=%00", None),
    ("GET", "samples/?run={run}&q=" + "x" * 9000, None),
    ("GET", "samples/?run={run}&split=test", None),
    ("GET", "samples/nowhere/", None),
    ("GET", "samples/%00/", None),
    ("GET", "samples/nowhere/history/", None),
    ("GET", "samples/{sample}/tokens/?start=-1", None),
    ("GET", "samples/{sample}/tokens/?count=0", None),
    ("GET", f"samples/{{sample}}/tokens/?count={HUGE}", None),
    ("GET", "samples/{sample}/history/?split=test", None),
    ("GET", "samples/{sample}/history/?attempt=%00", None),
    ("DELETE", "samples/{sample}/", None),
    ("GET", "exports/samples/", None),
    ("GET", "completions/", None),
    ("GET", "completions/?run={run}&at=x", None),
    ("GET", "completions/?run={run}&ordering=score", None),
    ("GET", "exports/samples/?run={run}&format=xml", None),
    ("GET", "exports/samples/?run={run}&q=score>>", None),
    ("GET", "findings/?removed=perhaps", None),
    ("GET", "findings/?project=nowhere", None),
    ("GET", "findings/?name=%00", None),
    ("GET", f"findings/{HUGE}/", None),
    ("POST", "findings/", {"project": "math"}),
    ("POST", "findings/", {"project": "math", "title": "\ud800"}),
    ("POST", "findings/", {"project": "math", "title": "x", "note": 3}),
    ("PATCH", f"findings/{HUGE}/", {"title": "x"}),
    ("GET", "flags/?step=x", None),
    ("GET", "flags/?label=worst", None),
    ("GET", "flags/?user=%00", None),
    ("POST", "flags/", {}),
    ("POST", "flags/", {"sample": 3}),
    ("POST", "flags/", {"sample": "nowhere"}),
    ("POST", "flags/", {"sample": "{sample}", "label": "worst"}),
    ("POST", "flags/", {"sample": "{sample}", "label": []}),
    ("POST", "flags/", {"sample": "{sample}", "reason": "unheard-of"}),
    ("POST", "flags/", {"sample": "{sample}", "text": "\x00"}),
    ("POST", "flags/", {"sample": "{sample}", "text": 3}),
    ("POST", "flags/", {"sample": "{sample}", "text": None, "label": None}),
    ("PATCH", f"flags/{HUGE}/", {"text": "x"}),
    ("PATCH", "flags/x/", {"text": "x"}),
    ("POST", "projects/", {"slug": "Not A Slug"}),
    ("POST", "projects/", {"slug": ""}),
    ("POST", "projects/", {"slug": []}),
    ("GET", "projects/%00/", None),
    ("PATCH", "projects/math/", {"reasons": []}),
    ("PATCH", "projects/math/", {"reasons": [{"key": "A B"}]}),
    ("PATCH", "projects/math/", {"reasons": [{"key": "a"}, {"key": "a"}]}),
    ("PATCH", "projects/math/", {"correct": "score>>"}),
    ("POST", "projects/math/members/", {"user": "nobody", "role": "viewer"}),
    ("POST", "projects/math/members/", {"user": "olga", "role": "king"}),
    ("POST", "tokens/", {}),
    ("POST", "tokens/", {"name": "x", "project": "math"}),
    ("POST", "tokens/", {"name": "x", "project": "math", "scopes": ["fly"]}),
    ("POST", "tokens/", {"name": "x", "project": "math", "scopes": [3]}),
    ("POST", "tokens/", {"name": "x", "project": "Not A Slug", "scopes": "read"}),
    ("POST", "tokens/", {"name": "x", "project": "math", "scopes": "read", "days": 0}),
    ("DELETE", "tokens/999/", None),
    ("DELETE", f"tokens/{HUGE}/", None),
    ("GET", "nowhere/", None),
    ("GET", "/api/", None),
    ("GET", "/api/v2/runs/", None),
]


@pytest.fixture
def run(project: Project) -> Run:
    return create_filled_run(project)


@pytest.fixture
def api(owner: User) -> ApiClient:
    return ApiClient.with_token(owner, "ingest", "read", "annotate", "admin")


def insert_ids(value: Any, run: Run) -> Any:
    if isinstance(value, dict):
        return {key: insert_ids(inner, run) for key, inner in value.items()}
    return (
        value.replace("{run}", run.uid).replace("{sample}", get_first_sample(run).pk)
        if isinstance(value, str)
        else value
    )


def test_bad_input_is_refused_in_one_sentence(api: ApiClient, run: Run) -> None:
    wrong = []
    for method, path, body in BAD:
        response = api(method, insert_ids(path, run), insert_ids(body, run))
        if not 400 <= response.status_code < 500 or not has_error_message(response):
            wrong.append((method, path[:80], str(body)[:80], response.status_code, response.content[:200]))
    assert wrong == []


def has_error_message(answer: Any) -> bool:
    error = answer.json()["error"]
    return set(error) in ({"code", "message"}, {"code", "message", "field"}) and bool(error["message"].strip())


def test_a_body_that_is_too_large_is_413(api: ApiClient, run: Run, monkeypatch: Any) -> None:
    patch_everywhere(monkeypatch, wire, "MAX_JSON_BYTES", 100)
    response = api("POST", f"runs/{run.uid}/metrics/", {"points": [POINT] * 50})
    assert (response.status_code, response.json()["error"]["code"]) == (413, "too_large")


def test_a_body_that_is_not_json_by_its_type_is_415(api: ApiClient, run: Run) -> None:
    assert api("POST", "runs/", b"project=math", content_type="application/x-www-form-urlencoded").status_code == 415


WORDS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers(), max_size=2))
POSTS = [
    "runs/",
    "runs/{run}/heartbeat/",
    "runs/{run}/finish/",
    "runs/{run}/metrics/",
    "findings/",
    "flags/",
    "projects/",
    "tokens/",
]
FIELDS = st.sampled_from(
    ["uid", "project", "name", "config", "attempt", "resume", "tags", "step", "phase", "dropped", "outcome", "points"]
    + ["sample", "label", "reason", "text", "slug", "scopes", "days", "title", "note"]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(POSTS), body=st.dictionaries(FIELDS, WORDS, max_size=4))
def test_no_body_makes_the_server_fail(api: ApiClient, run: Run, path: str, body: dict[str, Any]) -> None:
    known = {"project": "math"} if path == "runs/" else {}
    response = api("POST", insert_ids(path, run), {**known, **body})
    assert response.status_code < 500


GETS = [
    "runs/",
    "runs/{run}/steps/",
    "runs/{run}/metrics/",
    "samples/",
    "findings/",
    "flags/",
    "samples/{sample}/tokens/",
    "exports/samples/",
    "completions/",
]
NAMES = [
    "at",
    "page",
    "page_size",
    "status",
    "name",
    "project",
    "removed",
    "split",
    "step",
    "attempt",
    "q",
    "ordering",
    "format",
    "start",
    "count",
    "user",
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(GETS), query=st.dictionaries(st.sampled_from(NAMES), st.text(max_size=12), max_size=2))
def test_no_query_makes_the_server_fail(api: ApiClient, run: Run, path: str, query: dict[str, str]) -> None:
    from urllib.parse import urlencode

    query = {key: value.encode("utf-8", "replace").decode() for key, value in query.items()}
    known = {"run": run.uid} if path in ("samples/", "exports/samples/", "completions/") else {}
    assert api("GET", f"{insert_ids(path, run)}?{urlencode({**known, **query})}").status_code < 500
