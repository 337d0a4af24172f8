"""Artifacts, pins, plans and replays by the API, as a trainer and a person use them one after the other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from rollouts import queues, replay
from rollouts.models import Artifact, AuditEntry, Project, Run, Sample
from rollouts.pins import artifact_check
from tests.dashboard.support.api_client import ApiClient, build_row, push_rows
from tests.rollouts.support.artifacts import compute_key, describe_files, encode_meta, register_artifact, upload_files
from tests.support import builders

pytestmark = pytest.mark.django_db

FILES = {"meta.json": encode_meta(3)}
ORIGIN = {"host": "node-1", "path": "/dumps/3", "command": "rolloutdeck import /dumps"}
FACTS = {"rows": 32, "prompts": 8}


@pytest.fixture
def run(project: Project) -> Run:
    return builders.run(project, "source", uid="u1")


@pytest.fixture
def api(owner: User) -> ApiClient:
    return ApiClient.with_token(owner, "read", "ingest", "admin")


def build_manifest(step: int = 3, files: dict[str, bytes] | None = None, **more: Any) -> dict[str, Any]:
    result = describe_files(files or {"meta.json": encode_meta(step)})
    return {"attempt": "a", "step": step, "role": "rollout", "files": result, "origin": ORIGIN, **more}


def create_ready_artifact(run: Run, step: int = 3, **more: Any) -> Artifact:
    files = {"meta.json": encode_meta(step)}
    artifact = upload_files(register_artifact(run, step, files, facts=FACTS, **more), files)
    artifact_check.check_artifact(artifact.pk)
    return artifact


def test_a_node_registers_an_artifact_and_gets_the_list_of_missing_files(api: ApiClient, run: Run) -> None:
    first = api("PUT", "runs/u1/artifacts/", build_manifest(facts=FACTS))
    sha256 = describe_files(FILES)["meta.json"]["sha256"]
    assert first.status_code == 201
    assert first.json() == {"id": compute_key(FILES), "state": "waiting", "step": 3, "missing": [sha256]}
    again = api("PUT", "runs/u1/artifacts/", build_manifest(facts=FACTS))
    assert (again.status_code, again.json()) == (200, first.json())


def test_the_first_artifact_of_an_unknown_run_creates_the_run(api: ApiClient, project: Project) -> None:
    headers = {"X-Rolloutdeck-Project": "math", "X-Rolloutdeck-Run": "offline"}
    assert api("PUT", "runs/fresh/artifacts/", build_manifest(), headers=headers).status_code == 201
    assert Run.objects.get(uid="fresh").name == "offline"


def test_artifacts_are_listed_by_step_role_and_state(api: ApiClient, run: Run) -> None:
    create_ready_artifact(run, 3)
    register_artifact(run, 4, attempt="b", origin=ORIGIN)
    register_artifact(run, 0, {"tokenizer.json": b"{}"}, role="tokenizer")
    rows = api("GET", "runs/u1/artifacts/").json()["results"]
    assert [(row["step"], row["role"], row["state"]) for row in rows] == [
        (0, "tokenizer", "waiting"),
        (3, "rollout", "ready"),
        (4, "rollout", "waiting"),
    ]
    assert rows[2]["origin"] == ORIGIN and rows[1]["received"] == rows[1]["bytes"] == len(encode_meta(3))
    for query, steps in {"step=4": [4], "role=tokenizer": [0], "state=ready": [3], "split=eval": []}.items():
        assert [row["step"] for row in api("GET", f"runs/u1/artifacts/?{query}").json()["results"]] == steps


def test_a_pin_requests_the_files_from_the_node_that_has_them(api: ApiClient, run: Run) -> None:
    api("PUT", "runs/u1/artifacts/", build_manifest())
    assert api("GET", "runs/u1/wanted/?host=node-1").json() == {"files": []}
    pin = api("POST", "pins/", {"run": "u1", "step": 3, "note": "good"})
    assert (pin.status_code, pin.json()["state"], pin.json()["note"]) == (201, "waiting", "good")
    [expected] = api("GET", "runs/u1/wanted/?host=node-1").json()["files"]
    file = describe_files(FILES)["meta.json"]
    assert expected == {"artifact": compute_key(FILES), "path": "meta.json", **file, "received": 0}
    assert api("GET", "runs/u1/wanted/?host=node-2").json() == {"files": []}
    [sender] = api("GET", f"pins/{pin.json()['id']}/").json()["senders"]
    assert (sender["host"], sender["command"], sender["quiet"]) == ("node-1", ORIGIN["command"], False)


def test_a_pin_is_listed_noted_and_removed(api: ApiClient, run: Run) -> None:
    create_ready_artifact(run)
    pin = api("POST", "pins/", {"run": "u1", "step": 3}).json()
    assert api("POST", "pins/", {"run": "u1", "step": 3, "note": "why"}).status_code == 200
    for query in ("", "?run=u1", "?project=math", "?step=3"):
        [row] = api("GET", f"pins/{query}").json()["results"]
        assert (row["id"], row["state"], row["note"], row["run"]) == (pin["id"], "ready", "why", "u1")
    assert api("GET", "pins/?step=4").json()["count"] == 0
    assert api("PATCH", f"pins/{pin['id']}/", {"note": "because"}).json()["note"] == "because"
    assert api("DELETE", f"pins/{pin['id']}/").status_code == 204
    assert api("GET", "pins/").json()["count"] == 0
    assert api("GET", "pins/?removed=true").json()["count"] == 1
    assert set(AuditEntry.objects.values_list("verb", flat=True)) == {"pin.create", "pin.note", "pin.remove"}


def test_a_pin_in_a_plan_is_not_removed_and_the_answer_says_what_to_do(api: ApiClient, run: Run) -> None:
    create_ready_artifact(run)
    pin = api("POST", "pins/", {"run": "u1", "step": 3, "target_step": 1, "plan": "nightly"}).json()
    refused = api("DELETE", f"pins/{pin['id']}/")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert "Remove it from the plan first" in refused.json()["error"]["message"]


def put_plan(api: ApiClient, match: str | None, **body: Any) -> Any:
    headers = {} if match is None else {"If-Match": match}
    return api("PUT", "projects/math/replay-plan/?plan=default", body, headers=headers)


def test_a_plan_is_saved_only_if_the_current_revision_was_read(api: ApiClient, run: Run) -> None:
    create_ready_artifact(run)
    pin = api("POST", "pins/", {"run": "u1", "step": 3}).json()["id"]
    empty = api("GET", "projects/math/replay-plan/")
    assert (empty.json()["revision"], empty["ETag"], empty.json()["entries"]) == (0, '"0"', [])
    assert put_plan(api, None, entries=[]).status_code == 428
    first = put_plan(api, empty["ETag"], action="repeat", entries=[{"pin": pin, "target_step": 2}])
    assert (first.status_code, first["ETag"], first.json()["action"]) == (200, '"1"', "repeat")
    assert first.json()["strip"] == [[1, None], [2, 2]]
    outdated = put_plan(api, '"0"', action="cache", entries=[])
    assert (outdated.status_code, outdated.json()["error"]["code"]) == (412, "outdated")
    assert put_plan(api, first["ETag"], action="cache", entries=[]).json()["revision"] == 2
    old = api("GET", "projects/math/replay-plan/?revision=1").json()
    assert [entry["target_step"] for entry in old["entries"]] == [2]
    assert api("GET", "projects/math/replay-plan/?revision=9").status_code == 404


@pytest.mark.parametrize(
    "entries", [{}, [3], [{"pin": 1}], [{"pin": 99, "target_step": 1}], [{"pin": "x", "target_step": 1}]]
)
def test_invalid_plan_entries_are_refused(api: ApiClient, project: Project, entries: Any) -> None:
    assert put_plan(api, '"0"', entries=entries).status_code in (400, 404)


def test_a_bound_run_gets_what_to_load_from_where_and_what_differs(api: ApiClient, run: Run) -> None:
    artifact = create_ready_artifact(run)
    pin = api("POST", "pins/", {"run": "u1", "step": 3, "target_step": 1}).json()["id"]
    builders.run(run.project, "next", uid="u2")
    facts = {**FACTS, "role": "rollout", "rows": 64}
    data = api("POST", "runs/u2/replay-plan/", {"plan": "default", "facts": facts, "bind": True}).json()
    assert (data["plan"], data["revision"], data["bound"]["revision"]) == ("default", 1, "default@1")
    [entry] = data["entries"]
    assert (entry["target_step"], entry["pin"], entry["role"]) == (1, pin, "rollout")
    position = {"run": "u1", "name": "source", "step": 3, "step_kind": "global_step"}
    assert entry["source"] == {**position, "flagged": 0, "unplaced": 0}
    [load] = entry["artifacts"]
    assert (load["id"], load["state"], load["files"]) == (artifact.key, "ready", describe_files(FILES))
    assert load["url"] == f"/api/v1/runs/u1/artifacts/{artifact.key}/files/"
    strict = [
        (item["fact"], item["pinned"], item["asking"]) for item in entry["differences"] if item["verdict"] == "refuse"
    ]
    assert strict == [("rows", 32, 64)]
    assert api("GET", "runs/u2/replay-plan/").json() == data


def test_a_plan_says_what_happens_to_selected_samples_and_a_report_what_did(api: ApiClient, run: Run) -> None:
    create_ready_artifact(run)
    pin = api("POST", "pins/", {"run": "u1", "step": 3}).json()["id"]
    entries = [{"pin": pin, "target_step": 1}]
    old = put_plan(api, '"0"', entries=entries, exclude_flagged=True).json()
    assert (old["on_selected"], old["selected_by"], old["exclude_flagged"]) == ("exclude", "flags", True)
    new = put_plan(api, '"1"', entries=entries, on_selected="mask", selected_by="rules", exclude_flagged=False).json()
    assert (new["on_selected"], new["selected_by"], new["exclude_flagged"]) == ("mask", "rules", True)
    [entry] = new["entries"]
    selected = {"action": "mask", "samples": 0, "prompts": 0, "guidance_version": 0, "complete": True}
    assert (entry["selected"], entry["effect"]) == (selected, None)
    assert put_plan(api, '"2"', entries=entries, on_selected="zero").json()["error"]["field"] == "on_selected"
    report = {"attempt": "a", "step": 1, "outcome": "hit", "selected_action": "mask", "selected": 2}
    event = api("POST", "runs/u1/replays/", {**report, "guidance_version": 4}).json()
    assert (event["selected_action"], event["selected"], event["guidance_version"]) == ("mask", 2, 4)


def test_reading_a_plan_without_bind_does_not_bind_the_run(api: ApiClient, run: Run) -> None:
    create_ready_artifact(run)
    api("POST", "pins/", {"run": "u1", "step": 3, "target_step": 1})
    data = api("POST", "runs/u1/replay-plan/", {"bind": False}).json()
    assert (data["revision"], data["bound"], len(data["entries"])) == (1, None, 1)
    assert api("GET", "runs/u1/replay-plan/").json()["revision"] == 0


def test_a_running_run_keeps_its_revision_when_the_plan_is_saved_again(api: ApiClient, run: Run) -> None:
    create_ready_artifact(run)
    pin = api("POST", "pins/", {"run": "u1", "step": 3, "target_step": 1}).json()["id"]
    next_run = builders.run(run.project, "next", uid="u2")
    api("POST", "runs/u2/replay-plan/", {})
    push_rows(next_run, 1, [build_row(1, n, 1.0) for n in range(2)])
    put_plan(api, '"1"', entries=[{"pin": pin, "target_step": 7}])
    data = api("POST", "runs/u2/replay-plan/", {"plan": "default"}).json()
    assert (data["revision"], [entry["target_step"] for entry in data["entries"]]) == (1, [1])


def test_the_plan_of_a_project_is_checked_against_a_run(api: ApiClient, run: Run) -> None:
    create_ready_artifact(run)
    api("POST", "pins/", {"run": "u1", "step": 3, "target_step": 2})
    data = api("GET", "projects/math/replay-plan/?run=u1&steps=4").json()
    assert data["strip"] == [[1, None], [2, 2], [3, None], [4, None]]
    assert (data["run"], data["bound"], data["facts"]) == ("u1", None, {**FACTS, "role": "rollout"})
    assert {item["verdict"] for item in data["entries"][0]["differences"]} == {"warn"}
    builders.run(builders.project("code"), "theirs", uid="u9")
    assert api("GET", "projects/math/replay-plan/?run=u9").status_code == 404


def test_flagged_samples_of_a_pinned_step_are_counted(api: ApiClient, run: Run, owner: User) -> None:
    push_rows(run, 3, [build_row(3, n, 1.0) for n in range(3)])
    create_ready_artifact(run)
    api("POST", "pins/", {"run": "u1", "step": 3, "target_step": 2})
    for sample, label in zip(Sample.objects.all(), ("bad", "good"), strict=False):
        builders.flag(sample.pk, owner, label=label)
    [entry] = api("GET", "projects/math/replay-plan/").json()["entries"]
    assert entry["source"]["flagged"] == 1


@pytest.mark.parametrize("on_selected", ["keep", "mask"])
def test_a_plan_hides_the_flags_of_others_from_a_blind_reviewer(
    api: ApiClient, run: Run, owner: User, mate: User, on_selected: str
) -> None:
    push_rows(run, 3, [build_row(3, n, 1.0) for n in range(3)])
    create_ready_artifact(run)
    pin = api("POST", "pins/", {"run": "u1", "step": 3}).json()["id"]
    builders.flag(Sample.objects.order_by("ordinal")[0].pk, owner, label="bad")
    queue = queues.create_queue(run.project, owner, {"name": "blind", "runs": [run], "is_blind": True})
    put_plan(api, '"0"', entries=[{"pin": pin, "target_step": 2}], on_selected=on_selected)
    api("POST", "runs/u1/replay-plan/", {})
    reader = ApiClient.with_token(mate, "read")
    shown = f"/pins/?project=math&base=0&action=cache&pin={pin}&target=2&on_selected=mask&selected_by=flags"
    for blind in (True, False):
        for path in ("projects/math/replay-plan/", "runs/u1/replay-plan/"):
            (entry,) = reader("GET", path).json()["entries"]
            assert entry["source"]["flagged"] == (0 if blind else 1), path
        page = ApiClient.signed_in(mate)("GET", shown).content.decode()
        assert ("flagged bad 1" in page) != blind
        (loaded,) = replay.check_plan_compatibility(replay.resolve_run_revision(run, ""), {}, mate)
        assert loaded.excluded.selected_count == 1, "what a trainer loads does not depend on who starts it"
        queues.close_queue(queue, owner)


def test_a_replay_is_reported_listed_and_shown_at_its_step(api: ApiClient, run: Run) -> None:
    create_ready_artifact(run)
    pin = api("POST", "pins/", {"run": "u1", "step": 3}).json()["id"]
    next_run = builders.run(run.project, "next", uid="u2")
    push_rows(next_run, 1, [build_row(1, n, 1.0) for n in range(2)])
    body = {"attempt": "a", "step": 1, "outcome": "hit", "pin": pin, "rows": 32, "seconds": 0.5}
    assert [api("POST", "runs/u2/replays/", body).status_code for _ in range(2)] == [201, 200]
    [row] = api("GET", "runs/u2/replays/").json()["results"]
    assert (row["outcome"], row["source"]["run"], row["source"]["step"], row["rows"]) == ("hit", "u1", 3, 32)
    [step] = api("GET", "runs/u2/steps/").json()["results"]
    assert step["replay"] == row
    strip = api("GET", "runs/u2/replays/?strip=true").json()
    assert [(cell["step"], cell["state"]) for cell in strip["cells"]] == [(1, "replayed")]
    assert strip["totals"]["rows"] == 32
    assert api("GET", "runs/u2/replays/?outcome=miss").json()["count"] == 0


def test_a_run_with_pins_is_deleted_only_with_force(api: ApiClient, run: Run) -> None:
    create_ready_artifact(run)
    api("POST", "pins/", {"run": "u1", "step": 3})
    assert api("DELETE", "runs/u1/").status_code == 409
    assert api("DELETE", "runs/u1/?force=true").status_code == 204
    assert api("GET", "pins/").json()["count"] == 0


def test_a_project_loosens_a_refusal_only_with_a_note(api: ApiClient, project: Project) -> None:
    response = api("PATCH", "projects/math/", {"loosened": {"rows": "half a batch will do"}})
    assert response.json()["loosened"]["rows"]["note"] == "half a batch will do"
    assert api("PATCH", "projects/math/", {"loosened": {"rows": ""}}).status_code == 400
    assert api("PATCH", "projects/math/", {"loosened": {"model": "why"}}).status_code == 400
    assert api("PATCH", "projects/math/", {"loosened": {"rows": None}}).json()["loosened"] == {}


def test_the_schema_describes_the_replay_endpoints(api: ApiClient) -> None:
    paths = json.loads(api("GET", "/api/schema/").content)["paths"]
    methods = {
        "runs/{uid}/artifacts/": {"get", "put"},
        "runs/{uid}/artifacts/{key}/files/{sha256}/": {"get", "put"},
        "runs/{uid}/wanted/": {"get"},
        "runs/{uid}/replay-plan/": {"get", "post"},
        "runs/{uid}/replays/": {"get", "post"},
        "pins/": {"get", "post"},
        "pins/{id}/": {"get", "patch", "delete"},
        "projects/{slug}/replay-plan/": {"get", "put"},
    }
    assert {path: set(paths[f"/api/v1/{path}"]) for path in methods} == methods


def test_a_plan_that_replays_a_pin_at_a_thousand_steps_takes_few_queries(api: ApiClient, run: Run) -> None:
    create_ready_artifact(run)
    pin = api("POST", "pins/", {"run": "u1", "step": 3}).json()["id"]
    entries = [{"pin": pin, "target_step": step} for step in range(1, 1001)]
    with CaptureQueriesContext(connection) as requested:
        assert put_plan(api, '"0"', entries=entries).status_code == 200
    assert len(requested) < 60


def test_a_number_with_two_signs_is_refused(api: ApiClient, run: Run, owner: User) -> None:
    assert api("GET", "pins/?step=--5").status_code == 400
    assert api("PUT", "runs/u1/artifacts/", {**build_manifest(), "step": "--5"}).status_code == 400
    for word in ("--5", "%C2%B2"):
        assert ApiClient.signed_in(owner)("GET", f"/runs/u1/steps/{word}/").status_code == 404


def test_files_of_a_run_in_the_trash_are_served_until_the_runs_that_replay_them_end(
    api: ApiClient, run: Run, owner: User, stranger: User
) -> None:
    artifact = create_ready_artifact(run)
    api("POST", "pins/", {"run": "u1", "step": 3, "target_step": 1})
    bound = builders.run(run.project, "next", uid="u2")
    [entry] = api("POST", "runs/u2/replay-plan/", {}).json()["entries"]
    address = entry["artifacts"][0]["url"] + artifact.files["meta.json"]["sha256"] + "/"
    assert api("DELETE", "runs/u1/?force=true").status_code == 204
    assert api("GET", address).status_code == 200
    assert api("GET", "runs/u1/").status_code == 404
    assert ApiClient.with_token(stranger, "read")("GET", address).status_code == 404
    Run.objects.filter(pk=bound.pk).update(outcome="finished")
    assert api("GET", address).status_code == 404
