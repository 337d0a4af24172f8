from __future__ import annotations

import json
import re
from typing import Any

import pytest
import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.utils import timezone

from dashboard.api.renderers import OrjsonRenderer
from dashboard.api.views import health, server_metrics
from dashboard.api.views.runs import RUN_STATUSES
from rollouts.ingest.dumps import DumpHeader
from rollouts.metrics import MIN_ROWS_TO_COMPACT
from rollouts.models import AuditEntry, Dump, Label, Project, Run, RunDiskUsage, Sample, Step, Token
from rollouts.storage import load_location
from tests.dashboard.support.api_client import ApiClient, build_row, create_filled_run, get_first_sample, push_rows
from tests.support import builders

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(owner: User) -> ApiClient:
    return ApiClient.with_token(owner, "ingest", "read", "annotate", "admin")


@pytest.fixture
def run(project: Project) -> Run:
    return create_filled_run(project)


def test_runs_are_found_and_completed_by_a_query(project: Project, owner: User, stranger: User) -> None:
    for n in range(3):
        builders.run(project, f"run-{n}", config={"lr": n})
    api = ApiClient.with_token(owner, "read")
    assert [run["name"] for run in api("GET", "runs/?q=lr>0 run").json()["results"]] == ["run-2", "run-1"]
    assert "Did you mean" in api("GET", "runs/?q=lrr>0").content.decode()
    choices = api("GET", "completions/?kind=runs&project=math&q=lr=").json()["choices"]
    assert [(choice["text"], choice["count"]) for choice in choices] == [("lr=0", 1), ("lr=1", 1), ("lr=2", 1)]
    assert ApiClient.with_token(stranger, "read")("GET", "completions/?kind=runs&q=lr=").json()["choices"] == []


def test_opening_a_run_answers_its_id_name_and_link(api: ApiClient, project: Project) -> None:
    values = {"project": "math", "name": "grpo", "framework": "x", "config": {"lr": 1}, "attempt": "a", "host": "n1"}
    response = api("POST", "runs/", values)
    run = Run.objects.get()
    assert response.status_code == 201
    assert response.json() == {
        "id": run.uid,
        "name": "grpo",
        "url": f"http://127.0.0.1:8460/runs/{run.uid}/",
        "attempt": "a",
        "running": [],
        "server": load_location().server,
    }
    again = api("POST", "runs/", {**values, "uid": run.uid})
    assert (again.status_code, again.json()["id"]) == (200, run.uid)


def test_a_run_is_listed_and_found_by_project_name_status_and_tag(api: ApiClient, project: Project) -> None:
    builders.attempt(builders.run(project, "grpo-small", tags=["small"]))
    builders.run(project, "grpo-large", outcome="finished")
    builders.run(project, "grpo-next")

    def list_names(query: str) -> list[str]:
        return sorted(result["name"] for result in api("GET", f"runs/?{query}").json()["results"])

    assert list_names("project=math") == ["grpo-large", "grpo-next", "grpo-small"]
    assert list_names("name=LARGE") == ["grpo-large"]
    assert list_names("status=running") == ["grpo-small"]
    assert list_names("status=planned") == ["grpo-next"]
    assert list_names("status=finished") == ["grpo-large"]
    assert list_names("tag=small") == ["grpo-small"]


def test_lists_come_in_pages_that_link_to_each_other(api: ApiClient, project: Project) -> None:
    for n in range(5):
        builders.run(project, f"run-{n}")
    first = api("GET", "runs/?page_size=2").json()
    assert (first["count"], first["previous"], len(first["results"])) == (5, None, 2)
    second = api("GET", first["next"].partition("testserver")[2]).json()
    assert {row["id"] for row in first["results"]}.isdisjoint(row["id"] for row in second["results"])


def test_a_run_shows_its_dumps_by_state_and_the_message_of_a_failed_one(api: ApiClient, run: Run) -> None:
    dump = push_rows(run, 9, [build_row(9, 0, 1.0)])
    Dump.objects.filter(pk=dump.pk).update(state="failed", message="Nothing in it can be read.")
    data = api("GET", f"runs/{run.uid}/").json()
    assert data["dumps"] == {"failed": 1, "indexed": 2}
    assert [item["message"] for item in data["failed"]] == ["Nothing in it can be read."]
    listed = api("GET", f"runs/{run.uid}/dumps/?state=failed&step=9").json()
    assert [item["source"] for item in listed["results"]] == ["train/9.jsonl"]
    assert api("GET", f"runs/{run.uid}/dumps/{dump.sha256}/").json()["results"][0]["state"] == "failed"


def test_a_run_is_renamed_and_tagged_but_not_to_a_taken_name(api: ApiClient, run: Run, project: Project) -> None:
    builders.run(project, "taken")
    response = api("PATCH", f"runs/{run.uid}/", {"name": "better", "tags": ["a", "b"], "config": {"api_key": "s"}})
    assert (response.json()["name"], response.json()["tags"]) == ("better", ["a", "b"])
    assert response.json()["config"] == {"api_key": "***"}
    refused = api("PATCH", f"runs/{run.uid}/", {"name": "taken"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "name")


def test_a_deleted_run_is_in_the_trash_and_can_be_restored_with_its_samples(api: ApiClient, run: Run) -> None:
    assert api("DELETE", f"runs/{run.uid}/").status_code == 204
    assert api("GET", f"runs/{run.uid}/").status_code == 404
    assert api("GET", f"samples/{get_first_sample(run).pk}/").status_code == 404
    assert [row["id"] for row in api("GET", "runs/?deleted=true").json()["results"]] == [run.uid]
    assert api("PATCH", f"runs/{run.uid}/", {"deleted": False}).status_code == 200
    assert api("GET", f"samples/{get_first_sample(run).pk}/").status_code == 200
    assert set(AuditEntry.objects.values_list("verb", flat=True)) >= {"run.delete", "run.restore"}


def test_a_heartbeat_and_a_finish_change_the_status(api: ApiClient, project: Project) -> None:
    run = builders.run(project)
    beat = api("POST", f"runs/{run.uid}/heartbeat/", {"attempt": "a", "step": 3, "phase": "generate", "now": 1.5})
    assert beat.json() == {"id": run.uid, "status": "running"}
    ended = api("POST", f"runs/{run.uid}/finish/", {"attempt": "a", "outcome": "failed"})
    assert ended.json()["status"] == "failed"


def test_a_heartbeat_of_an_unknown_run_creates_it_from_the_headers(api: ApiClient, project: Project) -> None:
    headers = {"X-Rolloutdeck-Project": "math", "X-Rolloutdeck-Run": "gr%20po"}
    assert api("POST", "runs/u9/heartbeat/", {"attempt": "a"}, headers=headers).status_code == 200
    assert Run.objects.get(uid="u9").name == "gr po"


def test_metrics_come_back_as_curves_with_null_where_nan_was_logged(api: ApiClient, project: Project) -> None:
    run = builders.run(project)
    points = b'{"step":1,"time":1.0,"values":{"loss":NaN,"kl":-Infinity}},{"step":2,"values":{"loss":0.5}}'
    body = b'{"attempt":"a","points":[' + points + b"]}"
    assert api("POST", f"runs/{run.uid}/metrics/", body).json() == {"points": 2}
    result = api("GET", f"runs/{run.uid}/metrics/?name=loss&name=kl").json()["series"]
    assert [(curve["steps"], curve["values"]) for curve in result["loss"]] == [([1, 2], [None, 0.5])]
    assert result["kl"][0]["values"] == [None]
    assert api("GET", f"runs/{run.uid}/metrics/").json() == {"names": ["kl", "loss"]}


def test_a_request_with_many_points_queues_their_compaction(api: ApiClient, project: Project) -> None:
    def send_points(run: Run, count: int) -> None:
        points = [{"step": step, "values": {"loss": 0.5}} for step in range(count)]
        assert api("POST", f"runs/{run.uid}/metrics/", {"attempt": "a", "points": points}).json() == {"points": count}

    few, many = builders.run(project, "few"), builders.run(project, "many")
    send_points(few, MIN_ROWS_TO_COMPACT - 1)
    send_points(many, MIN_ROWS_TO_COMPACT)
    headers = [json.loads(message)["headers"] for message in redis.from_url(settings.REDIS_URL).lrange("celery", 0, -1)]
    sent = [header["argsrepr"] for header in headers if header["task"] == "workers.tasks.compact_series"]
    assert sent == [f"({many.pk},)"]


def test_a_token_is_shown_once_and_works_until_it_is_revoked_or_expires(api: ApiClient, project: Project) -> None:
    created = api("POST", "tokens/", {"name": "cluster", "project": "math", "scopes": ["ingest", "read"], "days": 3})
    secret = created.json()["token"]
    assert created.status_code == 201
    new = ApiClient(api.client, secret)
    assert new("GET", "runs/").status_code == 200
    assert secret not in api("GET", "tokens/").content.decode()
    assert api("DELETE", f"tokens/{created.json()['id']}/").status_code == 204
    assert new("GET", "runs/").status_code == 401
    Token.objects.update(revoked_at=None, expires_at=timezone.now())
    assert new("GET", "runs/").status_code == 401
    without = ApiClient(api.client)("GET", "runs/")
    assert without.status_code == 401 and "Set ROLLOUTDECK_TOKEN" in without.json()["error"]["message"]


def test_creating_a_token_creates_its_project(api: ApiClient, owner: User) -> None:
    body = {"name": "cluster", "project": "fresh", "scopes": "ingest"}
    assert api("POST", "tokens/", body).json()["project_created"] is True
    assert api("POST", "tokens/", body).json()["project_created"] is False
    assert Project.objects.get(slug="fresh").role_of(owner) == "owner"


def test_members_reasons_and_the_correctness_rule_of_a_project_are_changed(
    api: ApiClient, project: Project, stranger: User
) -> None:
    assert api("POST", "projects/", {"slug": "code"}).status_code == 201
    people = api("POST", "projects/code/members/", {"user": "stan", "role": "viewer"}).json()["members"]
    assert people == [{"user": "olga", "role": "owner"}, {"user": "stan", "role": "viewer"}]
    changed = api(
        "PATCH", "projects/code/", {"reasons": [{"key": "odd", "name": "odd one"}], "correct": "acc=1"}
    ).json()
    assert (changed["reasons"], changed["correct"]) == ([{"key": "odd", "name": "odd one"}], "acc=1")
    last = api("POST", "projects/code/members/", {"user": "olga", "role": ""})
    assert (last.status_code, "last owner" in last.json()["error"]["message"]) == (400, True)


def test_every_response_has_our_header_and_every_error_a_code_and_a_message(api: ApiClient, run: Run) -> None:
    anonymous = ApiClient(api.client)
    answers = [
        api("GET", "runs/"),
        api("GET", "nowhere/"),
        anonymous("GET", "runs/"),
        api("PUT", "runs/"),
        api("GET", "/healthz"),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 401, 405, 200]
    assert all("X-Rolloutdeck" in answer for answer in answers)
    assert all(set(answer.json()["error"]) == {"code", "message"} for answer in answers[1:4])


def test_a_database_error_is_logged_and_not_shown_to_the_client(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OperationalError("could not connect to db.internal as rolloutdeck")

    monkeypatch.setattr(health.connection, "cursor", fail)
    answer = ApiClient(api.client)("GET", "/readyz?parts=database")
    assert (answer.status_code, answer.json()["status"]) == (503, "not ready")
    assert ApiClient(api.client)("GET", "/healthz").status_code == 200, "a restart would not help"
    assert "internal" not in answer.content.decode()
    assert "db.internal" in caplog.text


def test_the_schema_and_its_page_list_the_operations(api: ApiClient, owner: User) -> None:
    paths = json.loads(api("GET", "/api/schema/").content)["paths"]
    assert {"/api/v1/runs/", "/api/v1/samples/{id}/history/", "/api/v1/runs/{uid}/dumps/{sha256}/"} <= set(paths)
    taken = {item["name"] for item in paths["/api/v1/runs/{uid}/dumps/{sha256}/"]["put"]["parameters"]}
    assert taken == {"uid", "sha256", *DumpHeader.__dataclass_fields__}
    searching = {
        (path, method)
        for path, methods in paths.items()
        for method, call in methods.items()
        if {"422", "429"} <= call["responses"].keys()
    }
    assert searching == {
        ("/api/v1/samples/", "get"), ("/api/v1/exports/samples/", "get"), ("/api/v1/search/", "get"),
        ("/api/v1/runs/{uid}/query-curve/", "get"), ("/api/v1/findings/{id}/exhibits/", "post"),
        ("/api/v1/queues/", "post"), ("/api/v1/exports/datasets/", "get"),
        ("/api/v1/rescores/{id}/pending/", "get"), ("/api/v1/rescores/{id}/comparison/", "get"),
    }  # fmt: skip
    page = ApiClient.signed_in(owner)("GET", "/api/docs/")
    assert page.status_code == 200
    text = page.content.decode()
    assert "/api/v1/samples/{id}/history/" in text
    assert "/api/v1/runs/?project=math'" in text  # an example to copy


def test_metrics_for_prometheus_count_dumps_and_need_a_token_on_a_public_server(
    api: ApiClient, run: Run, settings: Any
) -> None:
    text = api("GET", "/metrics").content.decode()
    assert 'rolloutdeck_dumps{state="indexed"} 2.0\n' in text
    assert "rolloutdeck_samples 8.0\n" in text
    settings.PUBLIC_URL = "https://deck.example.org"
    assert ApiClient(api.client)("GET", "/metrics").status_code == 401
    assert api("GET", "/metrics").status_code == 200


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no estimate")
def test_metrics_for_prometheus_estimate_the_rows_of_a_large_table(
    api: ApiClient, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE rollouts_sample")
    Sample.objects.earliest("pk").delete()
    assert "rolloutdeck_samples 7.0\n" in api("GET", "/metrics").content.decode()
    monkeypatch.setattr(server_metrics, "MIN_ESTIMATED_ROWS", 8)
    assert "rolloutdeck_samples 8.0\n" in api("GET", "/metrics").content.decode()


def test_metrics_for_prometheus_name_only_what_the_token_may_read(
    api: ApiClient, run: Run, owner: User, settings: Any
) -> None:
    settings.PUBLIC_URL = "https://deck.example.org"
    other = builders.project("other")
    for current_run in (run, builders.run(other, "hidden")):
        RunDiskUsage.objects.create(run=current_run, raw=5)
        Step.objects.create(run=current_run, attempt=builders.attempt(current_run), split="train", step=9, dropped=3)
    Project.objects.update(quota=100)
    outsider = builders.member(other, "otto", "owner")
    admin = User.objects.create_superuser("root")
    member = ApiClient.with_token(outsider, "read", on=other)

    def list_projects(client: ApiClient) -> set[str]:
        text = client("GET", "/metrics").content.decode()
        families = re.findall(r"^rolloutdeck_(\w+)\{.*project=", text, re.MULTILINE)
        assert set(families) == {"disk_bytes", "run_disk_bytes", "quota_bytes", "quota_used_bytes", "dropped_samples"}
        assert "rolloutdeck_runs 2.0\n" in text and ("hidden" in text) == ('project="other"' in text)
        return set(re.findall(r'project="(\w+)"', text))

    assert list_projects(member) == {"other"}
    assert list_projects(ApiClient.with_token(owner, "read", on=run.project)) == list_projects(api) == {"math"}
    assert list_projects(ApiClient.with_token(admin, "read", on=run.project)) == {"math", "other"}
    other.memberships.all().delete()
    assert member("GET", "/metrics").status_code == 401, "its owner is no member any more"


def test_the_status_of_a_run_is_one_that_the_api_filters_by(project: Project) -> None:
    assert builders.run(project).status in RUN_STATUSES
    assert Label.objects.count() == 0


def test_a_config_with_a_huge_number_is_answered(api: ApiClient, project: Project) -> None:
    run = builders.run(project, "odd", uid="odd", config={"seed": 2**70})
    response = api("GET", f"runs/{run.uid}/")
    assert (response.status_code, response.json()["config"]) == (200, {"seed": 2**70})


def test_a_lone_surrogate_in_a_response_is_escaped() -> None:
    assert json.loads(OrjsonRenderer().render({"text": "half \ud800", "step": 1})) == {"text": "half \ud800", "step": 1}
