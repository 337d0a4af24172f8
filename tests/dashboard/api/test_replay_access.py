"""Pins and plans of several projects, and the answers to invalid requests about artifacts, pins and replays.

Roles and scopes: `tests/dashboard/test_access_matrix.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Membership, Project, Run
from rollouts.pins import pins
from tests.dashboard.support.api_client import ApiClient
from tests.rollouts.support.artifacts import describe_files, register_artifact
from tests.support import builders

pytestmark = pytest.mark.django_db

FILES = {"meta.json": b"{}"}
HUGE = 10**30
ARTIFACT: dict[str, Any] = {"attempt": "a", "step": 9, "role": "rollout", "files": describe_files({"a.json": b"1"})}
SCOPES = ("ingest", "read", "annotate", "admin")
MATCH = {"If-Match": '"0"'}


@pytest.fixture
def run(project: Project, owner: User) -> Run:
    run = builders.run(project)
    for step in (3, 4):
        register_artifact(run, step)
    pins.pin_step(run, 3, owner)
    return run


def insert_ids(value: Any, run: Run) -> Any:
    if isinstance(value, dict):
        return {key: insert_ids(inner, run) for key, inner in value.items()}
    if not isinstance(value, str):
        return value
    return value.replace("{run}", run.uid).replace("{pin}", str(run.pins.get(step=3).pk))


def test_the_list_of_pins_is_empty_for_a_stranger(run: Run, mate: User, stranger: User) -> None:
    assert [ApiClient.signed_in(person)("GET", "pins/").json()["count"] for person in (mate, stranger)] == [1, 0]
    assert ApiClient(Client())("GET", "pins/").status_code == 401


def test_a_token_for_one_project_reaches_no_pin_and_no_plan_of_another(run: Run, owner: User) -> None:
    Membership.objects.create(project=builders.project("code"), user=owner, role="owner")
    api = ApiClient.with_token(owner, *SCOPES, on=Project.objects.get(slug="code"))
    assert api("GET", "pins/").json()["count"] == 0
    assert api("GET", f"pins/?run={run.uid}").status_code == 404
    assert api("POST", "pins/", {"run": run.uid, "step": 4}).status_code == 404


def test_a_pin_of_another_project_cannot_be_added_to_a_plan(run: Run, owner: User) -> None:
    Membership.objects.create(project=builders.project("code"), user=owner, role="owner")
    body = {"entries": [{"pin": run.pins.get().pk, "target_step": 1}]}
    api = ApiClient.with_token(owner, *SCOPES)
    assert api("PUT", "projects/code/replay-plan/", body, headers=MATCH).status_code == 404


BAD: list[tuple[str, str, Any]] = [
    ("PUT", "runs/{run}/artifacts/", []),
    ("PUT", "runs/{run}/artifacts/", {}),
    ("PUT", "runs/{run}/artifacts/", {**ARTIFACT, "files": {"../a": {"sha256": "a" * 64, "bytes": 1}}}),
    ("PUT", "runs/{run}/artifacts/", {**ARTIFACT, "files": {"a\x00": {"sha256": "a" * 64, "bytes": 1}}}),
    ("PUT", "runs/{run}/artifacts/", {**ARTIFACT, "files": {"a": {"sha256": "a" * 64, "bytes": HUGE}}}),
    ("PUT", "runs/{run}/artifacts/", {**ARTIFACT, "files": {"a": {"sha256": "a" * 63, "bytes": 1}}}),
    ("PUT", "runs/{run}/artifacts/", {**ARTIFACT, "files": [1]}),
    ("PUT", "runs/{run}/artifacts/", {**ARTIFACT, "step": HUGE}),
    ("PUT", "runs/{run}/artifacts/", {**ARTIFACT, "step": None}),
    ("PUT", "runs/{run}/artifacts/", {**ARTIFACT, "role": ["rollout"]}),
    ("PUT", "runs/{run}/artifacts/", {**ARTIFACT, "attempt": 3}),
    ("PUT", "runs/{run}/artifacts/", {**ARTIFACT, "facts": "many"}),
    ("PUT", "runs/{run}/artifacts/", {**ARTIFACT, "origin": {"path": "\ud800"}}),
    ("PUT", "runs/{run}/artifacts/", {**ARTIFACT, "origin": {"path": 7}}),
    ("PUT", "runs/{run}/artifacts/", {**ARTIFACT, "send_now": 7}),
    ("PUT", "runs/{run}/artifacts/", {**ARTIFACT, "gone": 7}),
    ("PUT", "runs/{run}/artifacts/", {**ARTIFACT, "colour": "red"}),
    ("GET", "runs/{run}/artifacts/?role=weights", None),
    ("GET", "runs/{run}/artifacts/?step=x", None),
    ("GET", "runs/{run}/artifacts/?state=lost", None),
    ("DELETE", "runs/{run}/artifacts/", None),
    ("GET", "runs/{run}/artifacts/x/files/y/", None),
    ("GET", "runs/{run}/artifacts/" + "a" * 64 + "/files/" + "b" * 64 + "/", None),
    ("GET", "runs/{run}/wanted/?host=" + "x" * 200, None),
    ("GET", "runs/{run}/wanted/?host=%00", None),
    ("POST", "runs/{run}/wanted/", {}),
    ("POST", "pins/", {}),
    ("POST", "pins/", {"run": "{run}"}),
    ("POST", "pins/", {"run": "{run}", "step": -1}),
    ("POST", "pins/", {"run": "{run}", "step": HUGE}),
    ("POST", "pins/", {"run": "{run}", "step": 99}),
    ("POST", "pins/", {"run": "{run}", "step": 3, "split": "test"}),
    ("POST", "pins/", {"run": "{run}", "step": 3, "step_kind": []}),
    ("POST", "pins/", {"run": "{run}", "step": 3, "attempt": "nobody"}),
    ("POST", "pins/", {"run": "{run}", "step": 3, "note": 7}),
    ("POST", "pins/", {"run": "{run}", "step": 3, "note": "\x00"}),
    ("POST", "pins/", {"run": "{run}", "step": 3, "target_step": 0}),
    ("POST", "pins/", {"run": "{run}", "step": 3, "target_step": 1, "plan": "a/b"}),
    ("POST", "pins/", {"run": "nowhere", "step": 3}),
    ("GET", "pins/?step=x", None),
    ("GET", "pins/?run=nowhere", None),
    ("GET", "pins/?removed=perhaps", None),
    ("GET", f"pins/{HUGE}/", None),
    ("PATCH", "pins/{pin}/", {"note": []}),
    ("PATCH", "pins/{pin}/", {"step": 4}),
    ("DELETE", "pins/99/", None),
    ("GET", "projects/math/replay-plan/?plan=%00", None),
    ("GET", "projects/math/replay-plan/?plan=a%2Fb", None),
    ("GET", "projects/math/replay-plan/?revision=x", None),
    ("GET", "projects/math/replay-plan/?revision=7", None),
    ("GET", "projects/math/replay-plan/?run=nowhere", None),
    ("GET", f"projects/math/replay-plan/?steps={HUGE}", None),
    ("PUT", "projects/math/replay-plan/", {"action": "nearest"}),
    ("PUT", "projects/math/replay-plan/", {"action": ["cache"]}),
    ("PUT", "projects/math/replay-plan/", {"on_mismatch": "crash"}),
    ("PUT", "projects/math/replay-plan/", {"exclude_flagged": "perhaps"}),
    ("PUT", "projects/math/replay-plan/", {"entries": "all"}),
    ("PUT", "projects/math/replay-plan/", {"entries": [{"pin": HUGE, "target_step": 1}]}),
    ("PUT", "projects/math/replay-plan/", {"entries": [{"pin": None, "target_step": 1}]}),
    ("PUT", "projects/math/replay-plan/", {"entries": [{"pin": [], "target_step": 1}]}),
    ("POST", "runs/{run}/replay-plan/", {"plan": "nightly"}),
    ("POST", "runs/{run}/replay-plan/", {"plan": "default@x"}),
    ("POST", "runs/{run}/replay-plan/", {"plan": "@@"}),
    ("POST", "runs/{run}/replay-plan/", {"plan": 7}),
    ("POST", "runs/{run}/replay-plan/", {"facts": [1]}),
    ("POST", "runs/{run}/replay-plan/", {"facts": {"x": "y" * 40_000}}),
    ("POST", "runs/{run}/replay-plan/", {"bind": "perhaps"}),
    ("POST", "runs/{run}/replays/", {}),
    ("POST", "runs/{run}/replays/", {"attempt": "a", "step": 1, "outcome": "maybe"}),
    ("POST", "runs/{run}/replays/", {"attempt": "a", "step": 1, "outcome": ["hit"]}),
    ("POST", "runs/{run}/replays/", {"attempt": "a", "step": 1, "outcome": "hit", "pin": 99}),
    ("POST", "runs/{run}/replays/", {"attempt": "a", "step": 1, "outcome": "hit", "pin": HUGE}),
    ("POST", "runs/{run}/replays/", {"attempt": "a", "step": 1, "outcome": "hit", "rows": HUGE}),
    ("POST", "runs/{run}/replays/", {"attempt": "a", "step": 1, "outcome": "hit", "seconds": "long"}),
    ("POST", "runs/{run}/replays/", b'{"attempt": "a", "step": 1, "outcome": "hit", "seconds": NaN}'),
    ("POST", "runs/{run}/replays/", {"attempt": "a", "step": 1, "outcome": "hit", "reason": {}}),
    ("GET", "runs/{run}/replays/?outcome=maybe", None),
    ("PATCH", "projects/math/", {"loosened": ["rows"]}),
    ("PATCH", "projects/math/", {"loosened": {"colour": "why"}}),
    ("PATCH", "projects/math/", {"loosened": {"rows": 7}}),
]


@pytest.mark.one_database
@pytest.mark.parametrize(("method", "path", "body"), BAD)
def test_an_invalid_request_is_refused_in_one_sentence(
    method: str, path: str, body: Any, run: Run, owner: User
) -> None:
    api = ApiClient.with_token(owner, *SCOPES)
    response = api(method, insert_ids(path, run), insert_ids(body, run), headers=MATCH)
    assert 400 <= response.status_code < 500
    result = response.json()["error"]
    assert set(result) <= {"code", "message", "field"} and result["message"]


@pytest.mark.parametrize("match", ["", "*", "abc", '"1', "-1"])
def test_a_save_without_a_revision_to_match_is_refused(match: str, run: Run, owner: User) -> None:
    api = ApiClient.with_token(owner, *SCOPES)
    response = api("PUT", "projects/math/replay-plan/", {"entries": []}, headers={"If-Match": match})
    assert (response.status_code, response.json()["error"]["code"]) in [(428, "match_required"), (412, "outdated")]
