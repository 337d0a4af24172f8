"""Steps and samples in the API: lists, one sample, tokens, flags, exports."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.contrib.auth.models import User

from rollouts.ingest.dumps import DumpHeader
from rollouts.models import Project, Run, Step
from tests.dashboard.support.api_client import ApiClient, build_row, create_filled_run, get_first_sample, push_rows
from tests.support import builders

pytestmark = pytest.mark.django_db


STEP_KEYS = {
    "step", "step_kind", "split", "attempt", "samples", "groups", "score_mean", "score_min", "score_max", "score_std",
    "truncated", "zero_variance_groups", "facets", "flags", "replay", "dumps",
}  # fmt: skip


@pytest.fixture
def api(owner: User) -> ApiClient:
    return ApiClient.with_token(owner, "ingest", "read", "annotate", "admin")


@pytest.fixture
def run(project: Project) -> Run:
    return create_filled_run(project)


def test_steps_have_the_keys_of_the_contract_and_their_dumps(api: ApiClient, run: Run) -> None:
    result = api("GET", f"runs/{run.uid}/steps/?split=train").json()["results"]
    assert [(row["step"], row["samples"], row["score_max"]) for row in result] == [(1, 4, 0.75), (2, 4, 0.75)]
    assert set(result[0]) >= STEP_KEYS
    assert set(result[0]["dumps"][0]) == {"id", "source", "state", "message", "rows", "left_out", "problems"}
    assert result[0]["dumps"][0]["rows"] == 4


def test_superseded_steps_are_listed_only_when_asked_for(api: ApiClient, run: Run) -> None:
    push_rows(run, 2, [build_row(2, 9, 1.0)], attempt="b")

    def list_steps(attempt: str) -> list[tuple[int, str]]:
        rows = api("GET", f"runs/{run.uid}/steps/?attempt={attempt}").json()["results"]
        return [(row["step"], row["attempt"]) for row in rows]

    assert list_steps("current") == [(1, "a"), (2, "b")]
    assert list_steps("all") == [(1, "a"), (2, "a"), (2, "b")]
    assert list_steps("a") == [(1, "a"), (2, "a")]


def test_the_number_of_queries_does_not_depend_on_the_number_of_steps(
    api: ApiClient, project: Project, django_assert_max_num_queries: Any
) -> None:
    run = create_filled_run(project, "many")
    for step in range(3, 9):
        push_rows(run, step, [build_row(step, 0, 1.0)])
    with django_assert_max_num_queries(8):
        assert len(api("GET", f"runs/{run.uid}/steps/").json()["results"]) == 8


def test_samples_are_previewed_in_order_and_filtered_by_the_query(api: ApiClient, run: Run) -> None:
    data = api("GET", f"samples/?run={run.uid}&split=train&step=2&ordering=-score&q=score>0.3").json()
    assert (data["count"], [row["score"] for row in data["results"]]) == (2, [0.75, 0.5])
    assert {"prompt", "response"}.isdisjoint(data["results"][0])
    assert api("GET", f"samples/?run={run.uid}&step=latest").json()["count"] == 4
    assert api("GET", f"samples/?run={run.uid}").json()["count"] == 8
    assert api("GET", f"samples/?run={run.uid}&q=%22step%201%22").json()["count"] == 4


def test_a_sample_has_its_full_text_dumps_and_flags(api: ApiClient, run: Run) -> None:
    sample = get_first_sample(run)
    api("POST", "flags/", {"sample": sample.pk, "label": "bad", "reason": "repetition", "text": "again"})
    data = api("GET", f"samples/{sample.pk}/").json()
    assert (data["prompt"], data["response"], data["score"]) == ("What is 0+1?", "It is 0 at step 1.", 0.0)
    assert data["ground_truth"] == "0"
    assert [dump["source"] for dump in data["seen_in"]] == ["train/1.jsonl"]
    assert [(flag["reason"], flag["user"]) for flag in data["flags"]] == [("repetition", "olga")]


def test_the_history_of_a_prompt_has_its_samples_of_all_steps(api: ApiClient, run: Run) -> None:
    result = api("GET", f"samples/{get_first_sample(run).pk}/history/").json()["results"]
    assert [(row["step"], row["score"]) for row in result] == [(1, 0.0), (1, 0.25), (2, 0.0), (2, 0.25)]


def test_tokens_are_returned_in_slices(api: ApiClient, project: Project) -> None:
    run = builders.run(project)
    row = {
        "prompt": "p",
        "response": "r",
        "prompt_ids": [1, 2],
        "response_ids": [5, 6, 7],
        "logprobs": [-0.5, None, -2.0],
    }
    index_native_rows(run, [row])
    data = api("GET", f"samples/{get_first_sample(run).pk}/tokens/?start=1&count=1").json()
    assert (data["start"], data["count"], data["total"]) == (1, 1, 3)
    assert (data["prompt_ids"], data["response_ids"], data["logprobs"]) == ([1, 2], [6], [None])
    assert data["advantages"] is None


def index_native_rows(run: Run, rows: list[dict[str, Any]]) -> None:
    import hashlib

    from rollouts.indexing import indexer
    from rollouts.ingest import dumps
    from rollouts.storage import files

    body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    plain = files.create_incoming_path()
    plain.write_bytes(body)
    header = DumpHeader("a", "train", 1, source="x", format="native")
    dump, _ = dumps.accept_dump(run, header, hashlib.sha256(body).hexdigest(), plain, len(body))
    indexer.index_dump(dump.pk)


def test_a_flag_is_raised_replaced_listed_and_withdrawn(api: ApiClient, run: Run) -> None:
    sample = get_first_sample(run)
    values = {"sample": sample.pk, "label": "bad", "reason": "repetition"}
    first = api("POST", "flags/", values)
    again = api("POST", "flags/", {**values, "label": "unsure"})
    assert (first.status_code, again.status_code, again.json()["label"]) == (201, 200, "unsure")
    address = f"flags/{first.json()['id']}/"
    assert api("PATCH", address, {"text": "hm"}).json()["text"] == "hm"
    assert Step.objects.get(pk=sample.step_id).flags == 1
    assert api("PATCH", address, {"withdrawn": True}).json()["withdrawn_at"]
    assert Step.objects.get(pk=sample.step_id).flags == 0
    assert api("GET", f"flags/?run={run.uid}").json()["count"] == 0
    assert api("GET", f"flags/?run={run.uid}&withdrawn=true&reason=repetition&user=olga").json()["count"] == 1


def test_only_maintainers_withdraw_flags_of_others_and_nobody_edits_them(
    api: ApiClient, run: Run, owner: User, mate: User
) -> None:
    mate_api = ApiClient.with_token(mate, "annotate", "read")
    flag_of_owner = api("POST", "flags/", {"sample": get_first_sample(run).pk}).json()["id"]
    flag_of_mate = mate_api("POST", "flags/", {"sample": get_first_sample(run).pk}).json()["id"]
    assert mate_api("PATCH", f"flags/{flag_of_owner}/", {"withdrawn": True}).status_code == 403
    assert api("PATCH", f"flags/{flag_of_mate}/", {"text": "not mine"}).status_code == 403
    assert api("PATCH", f"flags/{flag_of_mate}/", {"withdrawn": True}).status_code == 200


def test_samples_are_exported_as_lines_and_as_parquet(api: ApiClient, run: Run) -> None:
    lines = read_export(api("GET", f"exports/samples/?run={run.uid}&q=score>0.3&ordering=-score")).splitlines()
    assert [json.loads(item)["score"] for item in lines] == [0.75, 0.75, 0.5, 0.5]
    assert json.loads(lines[0])["response"].startswith("It is 3 at step")
    by_score = read_export(api("GET", f"exports/samples/?run={run.uid}&ordering=")).splitlines()
    assert [json.loads(item)["score"] for item in by_score] == [0.0, 0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75]
    table = pq.read_table(io.BytesIO(read_export(api("GET", f"exports/samples/?run={run.uid}&format=parquet"))))
    assert (table.num_rows, sorted(table["step"].to_pylist())) == (8, [1] * 4 + [2] * 4)


def read_export(response: Any) -> bytes:
    assert response.status_code == 200
    return b"".join(response)


def test_an_empty_export_is_still_a_parquet_file(api: ApiClient, run: Run) -> None:
    body = read_export(api("GET", f"exports/samples/?run={run.uid}&format=parquet&q=score>100"))
    assert pq.read_table(io.BytesIO(body)).num_rows == 0
