from __future__ import annotations

import io
import json
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.utils import timezone

from dashboard.api.renderers import OrjsonRenderer
from dashboard.api.views import health
from dashboard.api.views.runs import RUN_STATUSES
from rollouts.ingest.dumps import DumpHeader
from rollouts.models import AuditEntry, Dump, Flag, Project, Run, Step, Token
from tests.dashboard.support.api_client import Ask, dumped, filled, line, one_sample
from tests.support import builders

pytestmark = pytest.mark.django_db

STEP_KEYS = {
    "step", "step_kind", "split", "attempt", "samples", "groups", "score_mean", "score_min", "score_max", "score_std",
    "truncated", "zero_variance_groups", "facets", "flags", "replay", "dumps",
}  # fmt: skip


@pytest.fixture
def ask(owner: User) -> Ask:
    return Ask.with_token(owner, "ingest", "read", "annotate", "admin")


@pytest.fixture
def run(project: Project) -> Run:
    return filled(project)


def test_runs_are_found_and_completed_by_a_query(project: Project, owner: User, stranger: User) -> None:
    for n in range(3):
        builders.run(project, f"run-{n}", config={"lr": n})
    ask = Ask.with_token(owner, "read")
    assert [run["name"] for run in ask("GET", "runs/?q=lr>0 run").json()["results"]] == ["run-2", "run-1"]
    assert "Did you mean" in ask("GET", "runs/?q=lrr>0").content.decode()
    choices = ask("GET", "completions/?kind=runs&project=math&q=lr=").json()["choices"]
    assert [(choice["text"], choice["count"]) for choice in choices] == [("lr=0", 1), ("lr=1", 1), ("lr=2", 1)]
    assert Ask.with_token(stranger, "read")("GET", "completions/?kind=runs&q=lr=").json()["choices"] == []


def test_opening_a_run_answers_its_id_name_and_link(ask: Ask, project: Project) -> None:
    values = {"project": "math", "name": "grpo", "framework": "x", "config": {"lr": 1}, "attempt": "a", "host": "n1"}
    response = ask("POST", "runs/", values)
    run = Run.objects.get()
    assert response.status_code == 201
    assert response.json() == {
        "id": run.uid,
        "name": "grpo",
        "url": f"http://127.0.0.1:8460/runs/{run.uid}/",
        "attempt": "a",
    }
    again = ask("POST", "runs/", {**values, "uid": run.uid})
    assert (again.status_code, again.json()["id"]) == (200, run.uid)


def test_a_run_is_listed_and_found_by_project_name_status_and_tag(ask: Ask, project: Project) -> None:
    builders.attempt(builders.run(project, "grpo-small", tags=["small"]))
    builders.run(project, "grpo-large", outcome="finished")
    builders.run(project, "grpo-next")

    def names(query: str) -> list[str]:
        return sorted(result["name"] for result in ask("GET", f"runs/?{query}").json()["results"])

    assert names("project=math") == ["grpo-large", "grpo-next", "grpo-small"]
    assert names("name=LARGE") == ["grpo-large"]
    assert names("status=running") == ["grpo-small"]
    assert names("status=planned") == ["grpo-next"]
    assert names("status=finished") == ["grpo-large"]
    assert names("tag=small") == ["grpo-small"]


def test_lists_come_in_pages_that_link_to_each_other(ask: Ask, project: Project) -> None:
    for n in range(5):
        builders.run(project, f"run-{n}")
    first = ask("GET", "runs/?page_size=2").json()
    assert (first["count"], first["previous"], len(first["results"])) == (5, None, 2)
    second = ask("GET", first["next"].partition("testserver")[2]).json()
    assert {row["id"] for row in first["results"]}.isdisjoint(row["id"] for row in second["results"])


def test_a_run_shows_its_dumps_by_state_and_the_message_of_a_failed_one(ask: Ask, run: Run) -> None:
    dump = dumped(run, 9, [line(9, 0, 1.0)])
    Dump.objects.filter(pk=dump.pk).update(state="failed", message="Nothing in it can be read.")
    data = ask("GET", f"runs/{run.uid}/").json()
    assert data["dumps"] == {"failed": 1, "indexed": 2}
    assert [item["message"] for item in data["failed"]] == ["Nothing in it can be read."]
    listed = ask("GET", f"runs/{run.uid}/dumps/?state=failed&step=9").json()
    assert [item["source"] for item in listed["results"]] == ["train/9.jsonl"]
    assert ask("GET", f"runs/{run.uid}/dumps/{dump.sha256}/").json()["results"][0]["state"] == "failed"


def test_a_run_is_renamed_and_tagged_but_not_to_a_taken_name(ask: Ask, run: Run, project: Project) -> None:
    builders.run(project, "taken")
    response = ask("PATCH", f"runs/{run.uid}/", {"name": "better", "tags": ["a", "b"], "config": {"api_key": "s"}})
    assert (response.json()["name"], response.json()["tags"]) == ("better", ["a", "b"])
    assert response.json()["config"] == {"api_key": "***"}
    refused = ask("PATCH", f"runs/{run.uid}/", {"name": "taken"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "name")


def test_a_deleted_run_is_in_the_bin_and_comes_back_whole(ask: Ask, run: Run) -> None:
    assert ask("DELETE", f"runs/{run.uid}/").status_code == 204
    assert ask("GET", f"runs/{run.uid}/").status_code == 404
    assert ask("GET", f"samples/{one_sample(run).pk}/").status_code == 404
    assert [row["id"] for row in ask("GET", "runs/?deleted=true").json()["results"]] == [run.uid]
    assert ask("PATCH", f"runs/{run.uid}/", {"deleted": False}).status_code == 200
    assert ask("GET", f"samples/{one_sample(run).pk}/").status_code == 200
    assert set(AuditEntry.objects.values_list("verb", flat=True)) >= {"run.delete", "run.restore"}


def test_a_heartbeat_and_a_finish_change_the_status(ask: Ask, project: Project) -> None:
    run = builders.run(project)
    beat = ask("POST", f"runs/{run.uid}/heartbeat/", {"attempt": "a", "step": 3, "phase": "generate", "now": 1.5})
    assert beat.json() == {"id": run.uid, "status": "running"}
    ended = ask("POST", f"runs/{run.uid}/finish/", {"attempt": "a", "outcome": "failed"})
    assert ended.json()["status"] == "failed"


def test_a_heartbeat_of_an_unknown_run_makes_it_from_the_headers(ask: Ask, project: Project) -> None:
    headers = {"X-Rolloutdeck-Project": "math", "X-Rolloutdeck-Run": "gr%20po"}
    assert ask("POST", "runs/u9/heartbeat/", {"attempt": "a"}, headers=headers).status_code == 200
    assert Run.objects.get(uid="u9").name == "gr po"


def test_metrics_come_back_as_curves_with_null_where_nan_was_logged(ask: Ask, project: Project) -> None:
    run = builders.run(project)
    points = b'{"step":1,"time":1.0,"values":{"loss":NaN,"kl":-Infinity}},{"step":2,"values":{"loss":0.5}}'
    body = b'{"attempt":"a","points":[' + points + b"]}"
    assert ask("POST", f"runs/{run.uid}/metrics/", body).json() == {"points": 2}
    result = ask("GET", f"runs/{run.uid}/metrics/?name=loss&name=kl").json()["series"]
    assert [(curve["steps"], curve["values"]) for curve in result["loss"]] == [([1, 2], [None, 0.5])]
    assert result["kl"][0]["values"] == [None]
    assert ask("GET", f"runs/{run.uid}/metrics/").json() == {"names": ["kl", "loss"]}


def test_steps_have_the_keys_of_the_contract_and_their_dumps(ask: Ask, run: Run) -> None:
    result = ask("GET", f"runs/{run.uid}/steps/?split=train").json()["results"]
    assert [(row["step"], row["samples"], row["score_max"]) for row in result] == [(1, 4, 0.75), (2, 4, 0.75)]
    assert set(result[0]) >= STEP_KEYS
    assert set(result[0]["dumps"][0]) == {"id", "source", "state", "message", "rows", "left_out", "problems"}
    assert result[0]["dumps"][0]["rows"] == 4


def test_superseded_steps_are_listed_only_when_asked_for(ask: Ask, run: Run) -> None:
    dumped(run, 2, [line(2, 9, 1.0)], attempt="b")

    def listed(attempt: str) -> list[tuple[int, str]]:
        rows = ask("GET", f"runs/{run.uid}/steps/?attempt={attempt}").json()["results"]
        return [(row["step"], row["attempt"]) for row in rows]

    assert listed("current") == [(1, "a"), (2, "b")]
    assert listed("all") == [(1, "a"), (2, "a"), (2, "b")]
    assert listed("a") == [(1, "a"), (2, "a")]


def test_steps_cost_the_same_number_of_queries_however_many_there_are(
    ask: Ask, project: Project, django_assert_max_num_queries: Any
) -> None:
    run = filled(project, "many")
    for step in range(3, 9):
        dumped(run, step, [line(step, 0, 1.0)])
    with django_assert_max_num_queries(8):
        assert len(ask("GET", f"runs/{run.uid}/steps/").json()["results"]) == 8


def test_samples_are_previewed_in_order_and_filtered_by_the_query(ask: Ask, run: Run) -> None:
    data = ask("GET", f"samples/?run={run.uid}&split=train&step=2&ordering=-score&q=score>0.3").json()
    assert (data["count"], [row["score"] for row in data["results"]]) == (2, [0.75, 0.5])
    assert {"prompt", "response"}.isdisjoint(data["results"][0])
    assert ask("GET", f"samples/?run={run.uid}&step=latest").json()["count"] == 4
    assert ask("GET", f"samples/?run={run.uid}").json()["count"] == 8
    assert ask("GET", f"samples/?run={run.uid}&q=%22step%201%22").json()["count"] == 4


def test_a_sample_is_whole_with_its_dumps_and_flags(ask: Ask, run: Run) -> None:
    sample = one_sample(run)
    ask("POST", "flags/", {"sample": sample.pk, "label": "bad", "reason": "repetition", "text": "again"})
    data = ask("GET", f"samples/{sample.pk}/").json()
    assert (data["prompt"], data["response"], data["score"]) == ("What is 0+1?", "It is 0 at step 1.", 0.0)
    assert data["ground_truth"] == "0"
    assert [dump["source"] for dump in data["seen_in"]] == ["train/1.jsonl"]
    assert [(flag["reason"], flag["user"]) for flag in data["flags"]] == [("repetition", "olga")]


def test_a_prompts_history_goes_over_the_steps(ask: Ask, run: Run) -> None:
    result = ask("GET", f"samples/{one_sample(run).pk}/history/").json()["results"]
    assert [(row["step"], row["score"]) for row in result] == [(1, 0.0), (1, 0.25), (2, 0.0), (2, 0.25)]


def test_tokens_come_in_slices_of_what_was_recorded(ask: Ask, project: Project) -> None:
    run = builders.run(project)
    row = {
        "prompt": "p",
        "response": "r",
        "prompt_ids": [1, 2],
        "response_ids": [5, 6, 7],
        "logprobs": [-0.5, None, -2.0],
    }
    make_native(run, [row])
    data = ask("GET", f"samples/{one_sample(run).pk}/tokens/?start=1&count=1").json()
    assert (data["start"], data["count"], data["total"]) == (1, 1, 3)
    assert (data["prompt_ids"], data["response_ids"], data["logprobs"]) == ([1, 2], [6], [None])
    assert data["advantages"] is None


def make_native(run: Run, rows: list[dict[str, Any]]) -> None:
    import hashlib

    from rollouts.indexing import indexer
    from rollouts.ingest import dumps
    from rollouts.ingest.dumps import DumpHeader
    from rollouts.storage import files

    body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    plain = files.create_incoming_path()
    plain.write_bytes(body)
    header = DumpHeader("a", "train", 1, source="x", format="native")
    dump, _ = dumps.accept_dump(run, header, hashlib.sha256(body).hexdigest(), plain, len(body))
    indexer.index_dump(dump.pk)


def test_a_flag_is_raised_replaced_listed_and_withdrawn(ask: Ask, run: Run) -> None:
    sample = one_sample(run)
    values = {"sample": sample.pk, "label": "bad", "reason": "repetition"}
    first = ask("POST", "flags/", values)
    again = ask("POST", "flags/", {**values, "label": "unsure"})
    assert (first.status_code, again.status_code, again.json()["label"]) == (201, 200, "unsure")
    address = f"flags/{first.json()['id']}/"
    assert ask("PATCH", address, {"text": "hm"}).json()["text"] == "hm"
    assert Step.objects.get(pk=sample.step_id).flags == 1
    assert ask("PATCH", address, {"withdrawn": True}).json()["withdrawn_at"]
    assert Step.objects.get(pk=sample.step_id).flags == 0
    assert ask("GET", f"flags/?run={run.uid}").json()["count"] == 0
    assert ask("GET", f"flags/?run={run.uid}&withdrawn=true&reason=repetition&user=olga").json()["count"] == 1


def test_only_maintainers_withdraw_somebody_elses_flag_and_nobody_rewrites_it(
    ask: Ask, run: Run, owner: User, mate: User
) -> None:
    mates = Ask.with_token(mate, "annotate", "read")
    hers = ask("POST", "flags/", {"sample": one_sample(run).pk}).json()["id"]
    his = mates("POST", "flags/", {"sample": one_sample(run).pk}).json()["id"]
    assert mates("PATCH", f"flags/{hers}/", {"withdrawn": True}).status_code == 403
    assert ask("PATCH", f"flags/{his}/", {"text": "not mine"}).status_code == 403
    assert ask("PATCH", f"flags/{his}/", {"withdrawn": True}).status_code == 200


def test_samples_are_exported_as_lines_and_as_parquet(ask: Ask, run: Run) -> None:
    lines = exported(ask("GET", f"exports/samples/?run={run.uid}&q=score>0.3&ordering=-score")).splitlines()
    assert [json.loads(item)["score"] for item in lines] == [0.75, 0.75, 0.5, 0.5]
    assert json.loads(lines[0])["response"].startswith("It is 3 at step")
    by_score = exported(ask("GET", f"exports/samples/?run={run.uid}&ordering=")).splitlines()
    assert [json.loads(item)["score"] for item in by_score] == [0.0, 0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75]
    table = pq.read_table(io.BytesIO(exported(ask("GET", f"exports/samples/?run={run.uid}&format=parquet"))))
    assert (table.num_rows, sorted(table["step"].to_pylist())) == (8, [1] * 4 + [2] * 4)


def exported(response: Any) -> bytes:
    assert response.status_code == 200
    return b"".join(response)


def test_an_empty_export_is_still_a_parquet_file(ask: Ask, run: Run) -> None:
    body = exported(ask("GET", f"exports/samples/?run={run.uid}&format=parquet&q=score>100"))
    assert pq.read_table(io.BytesIO(body)).num_rows == 0


def test_a_token_is_shown_once_works_and_ends_when_revoked(ask: Ask, project: Project) -> None:
    created = ask("POST", "tokens/", {"name": "cluster", "project": "math", "scopes": ["ingest", "read"], "days": 3})
    secret = created.json()["token"]
    assert created.status_code == 201
    new = Ask(ask.client, secret)
    assert new("GET", "runs/").status_code == 200
    assert secret not in ask("GET", "tokens/").content.decode()
    assert ask("DELETE", f"tokens/{created.json()['id']}/").status_code == 204
    assert new("GET", "runs/").status_code == 401
    Token.objects.update(revoked_at=None, expires_at=timezone.now())
    assert new("GET", "runs/").status_code == 401


def test_making_a_token_makes_the_project(ask: Ask, owner: User) -> None:
    body = {"name": "cluster", "project": "fresh", "scopes": "ingest"}
    assert ask("POST", "tokens/", body).json()["project_created"] is True
    assert ask("POST", "tokens/", body).json()["project_created"] is False
    assert Project.objects.get(slug="fresh").role_of(owner) == "owner"


def test_a_project_gets_people_reasons_and_a_rule(ask: Ask, project: Project, stranger: User) -> None:
    assert ask("POST", "projects/", {"slug": "code"}).status_code == 201
    people = ask("POST", "projects/code/members/", {"user": "stan", "role": "viewer"}).json()["members"]
    assert people == [{"user": "olga", "role": "owner"}, {"user": "stan", "role": "viewer"}]
    changed = ask(
        "PATCH", "projects/code/", {"reasons": [{"key": "odd", "name": "odd one"}], "correct": "acc=1"}
    ).json()
    assert (changed["reasons"], changed["correct"]) == ([{"key": "odd", "name": "odd one"}], "acc=1")
    last = ask("POST", "projects/code/members/", {"user": "olga", "role": ""})
    assert (last.status_code, "last owner" in last.json()["error"]["message"]) == (400, True)


def test_every_answer_says_that_it_is_ours(ask: Ask, run: Run) -> None:
    nobody = Ask(ask.client)
    answers = [
        ask("GET", "runs/"),
        ask("GET", "nowhere/"),
        nobody("GET", "runs/"),
        ask("PUT", "runs/"),
        ask("GET", "/healthz"),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 401, 405, 200]
    assert all("X-Rolloutdeck" in answer for answer in answers)
    assert all(set(answer.json()["error"]) == {"code", "message"} for answer in answers[1:4])


def test_a_database_that_is_away_is_told_to_the_log_not_to_everybody(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away() -> None:
        raise OperationalError("could not connect to db.internal as rolloutdeck")

    monkeypatch.setattr(health.connection, "cursor", away)
    answer = Ask(ask.client)("GET", "/healthz")
    assert (answer.status_code, answer.json()["status"]) == (503, "down")
    assert "internal" not in answer.content.decode()
    assert "db.internal" in caplog.text


def test_the_api_describes_itself(ask: Ask, owner: User) -> None:
    paths = json.loads(ask("GET", "/api/schema/").content)["paths"]
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
    }  # fmt: skip
    page = Ask.signed_in(owner)("GET", "/api/docs/")
    assert page.status_code == 200
    assert "/api/v1/samples/{id}/history/" in page.content.decode()


def test_metrics_for_prometheus_count_what_waits(ask: Ask, run: Run, settings: Any) -> None:
    text = ask("GET", "/metrics").content.decode()
    assert 'rolloutdeck_dumps{state="indexed"} 2\n' in text
    assert "rolloutdeck_samples 8\n" in text
    settings.PUBLIC_URL = "https://deck.example.org"
    assert Ask(ask.client)("GET", "/metrics").status_code == 401
    assert ask("GET", "/metrics").status_code == 200


def test_the_statuses_that_can_be_asked_for_are_those_that_runs_have(project: Project) -> None:
    assert builders.run(project).status in RUN_STATUSES
    assert Flag.objects.count() == 0


def test_a_config_with_a_huge_number_is_answered(ask: Ask, project: Project) -> None:
    run = builders.run(project, "odd", uid="odd", config={"seed": 2**70})
    response = ask("GET", f"runs/{run.uid}/")
    assert (response.status_code, response.json()["config"]) == (200, {"seed": 2**70})


def test_half_a_character_in_an_answer_is_escaped() -> None:
    assert json.loads(OrjsonRenderer().render({"text": "half \ud800", "step": 1})) == {"text": "half \ud800", "step": 1}
