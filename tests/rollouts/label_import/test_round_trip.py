"""Exported labels are imported on another server with the same dumps: its export has the same bytes."""

from __future__ import annotations

import io
import json
import random
import zipfile
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts.exports import Export, parse_options, stream_archive
from rollouts.flags import bulk
from rollouts.label_import import ImportOptions, ImportResult, import_rows
from rollouts.labels import Answer, save_rubric, store_labels
from rollouts.models import Label, LabelChange, Project, Run, Sample
from tests.rollouts.support.query_rows import push
from tests.support import builders

pytestmark = pytest.mark.django_db
QUESTIONS = [
    {"key": "correct", "title": "Right?", "kind": "yes-no", "range": True},
    {"key": "note", "title": "Note", "kind": "text"},
]
ROWS: list[dict[str, Any]] = [
    {"prompt": "p1", "response": "best", "score": 1.0, "group": "a", "index": 0},
    {"prompt": "p1", "response": "worst, 最差", "score": 0.0, "group": "a", "index": 1},
    {"prompt": "p1", "response": "twin", "score": 0.0, "group": "a", "index": 2},
    {"prompt": "p1", "response": "twin", "score": 0.5, "group": "a", "index": 3},
    {"prompt": "p2", "response": "no place", "score": 1.0},
    {"prompt": "p2", "response": "no place", "score": 0.0},
    {"prompt": "p3", "response_ids": [1, 2], "response": None, "trajectory": "t", "turn": 1},
    {"prompt": "p3", "response_ids": [1, 3], "response": None, "trajectory": "t", "turn": 2},
]
EVALUATION_ROWS = [{"prompt": "p1", "response": "best", "score": 1.0, "group": "a", "index": 0}]


def read_data(project: Project, **options: str) -> bytes:
    runs = sorted(project.runs.all(), key=lambda run: run.name)
    samples = [Sample.objects.current_and_visible().filter(step__run=run) for run in runs]
    export = Export(project, parse_options(project, {"layout": "labels", **options}), samples, {}, "labels")
    return zipfile.ZipFile(io.BytesIO(b"".join(stream_archive(export)))).read(export.data_path)


def read_rows(project: Project, **options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read_data(project, **options).splitlines()]


def push_dumps(project: Project, *names: str) -> Run:
    """Pushes the same dumps to a run of each name. Returns the last run."""
    for name in names:
        run = builders.run(project, name)
        for step in (2, 1) if len(names) > 1 else (1, 2):
            push(run, ROWS, step=step)
        push(run, EVALUATION_ROWS, split="eval")
    return run


def find_sample_id(run: Run, tail: str, step: int = 1, **which: Any) -> str:
    return str(Sample.objects.get(step__run=run, step__step=step, step__split="train", tail=tail, **which).pk)


@pytest.fixture
def source_project(project: Project, mate: User, owner: User) -> Project:
    """Labels of all kinds, by people, a model and a function; a version of the rubric that only this server has."""
    save_rubric(project, mate, QUESTIONS[:1])
    save_rubric(project, mate, [QUESTIONS[1]])
    save_rubric(project, mate, QUESTIONS)
    run = push_dumps(project, "grpo")
    best, worst = find_sample_id(run, "best"), find_sample_id(run, "worst, 最差")
    store_labels(run, mate, [Answer(best, "correct", True, "it is\n对", start=0, end=2), Answer(worst, "note", "hm")])
    store_labels(run, owner, [Answer(best, "correct", False), Answer(best, "correct", True, source="code", author="f")])
    store_labels(run, owner, [Answer(worst, "note", "why", source="model", author="judge")])
    bulk.flag_samples(run, [worst], mate, reason="other", text="flagged")
    twins = list(Sample.objects.filter(step__run=run, step__step=1, tail="twin").order_by("index"))
    store_labels(run, mate, [Answer(twins[1].pk, "better-than", [twins[0].pk]), Answer(best, "rank", 1)])
    same = list(Sample.objects.filter(step__run=run, step__step=2, tail="no place").order_by("ordinal"))
    store_labels(run, mate, [Answer(same[1].pk, "correct", False)])
    textless = Sample.objects.filter(step__run=run, step__step=2, trajectory="t").order_by("ordinal")
    store_labels(run, mate, [Answer(row.pk, "correct", at == 0) for at, row in enumerate(textless)])
    evaluated = Sample.objects.get(step__run=run, step__split="eval")
    store_labels(run, mate, [Answer(evaluated.pk, "review", "ok")])
    Label.objects.filter(name="note").update(created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    return project


@pytest.fixture
def other_project() -> Project:
    """Another server with the same run, imported in another order, next to another run, with a rubric of its own."""
    project = builders.project("other")
    save_rubric(project, builders.member(project, "lea", "owner"), QUESTIONS)
    push_dumps(project, "another", "grpo")
    return project


def import_labels(project: Project, rows: list[Any], **options: Any) -> ImportResult:
    lead = User.objects.get_or_create(username="lea")[0]
    return import_rows(project, lead, rows, ImportOptions(any_author=True, **options))


def test_an_export_imported_elsewhere_is_exported_with_the_same_bytes(
    source_project: Project, other_project: Project
) -> None:
    exported = read_data(source_project)
    rows = read_rows(source_project)
    assert len(rows) == 12 and {row["rubric"] for row in rows} == {0, 3}
    assert source_project.runs.get().uid not in exported.decode() and not any(
        pk in exported.decode()
        for pk in Sample.objects.filter(step__run__project=source_project).values_list("pk", flat=True)
    )
    random.Random(1).shuffle(rows)
    dry_run_result = import_labels(other_project, rows, dry_run=True)
    assert dry_run_result.labels["new"] == 12 and not Label.objects.filter(run__project=other_project).exists()
    result = import_labels(other_project, rows)
    assert (result.problems, result.unused_fields, dict(result.labels)) == ([], set(), {"new": 12})
    assert dict(result.matched) == {"place": 12}
    assert read_data(other_project) == exported
    parquet = read_data(source_project, format="parquet")
    assert parquet == read_data(other_project, format="parquet")

    before = list(Label.objects.order_by("pk").values())
    again = import_labels(other_project, rows)
    assert (dict(again.labels), again.problems) == ({"unchanged": 12}, [])
    assert list(Label.objects.order_by("pk").values()) == before and not LabelChange.objects.exists()
    assert other_project.audit.filter(verb="label.import").count() == 1
    run = other_project.runs.get(name="grpo")
    assert [step.flags for step in run.steps.filter(split="train").order_by("step")] == [1, 0]
    better = Label.objects.get(run=run, name="better-than")
    assert better.value == [find_sample_id(run, "twin", index=2)] and better.sample == find_sample_id(
        run, "twin", index=3
    )
    # authors who are no members keep their name; the label is held by the person who imported it
    assert {(row.author, row.user.username) for row in Label.objects.filter(run=run, source="human")} == {
        ("mina", "lea"), ("olga", "lea")
    }  # fmt: skip


def test_ids_find_the_samples_of_their_own_server(source_project: Project) -> None:
    rows = read_rows(source_project, ids="yes")
    assert rows[0].keys() >= {"sample", "run_id", "attempt"} and rows[0]["run_id"] == source_project.runs.get().uid
    labels = list(Label.objects.order_by("pk").values())
    only = [{name: row[name] for name in ("sample", "name", "json_value", "source", "author", "updated_at", "rubric",
                                          "rationale", "start", "end")} for row in rows]  # fmt: skip
    result = import_labels(source_project, only)
    assert (dict(result.labels), dict(result.matched)) == ({"unchanged": 12}, {"id": 12})
    assert list(Label.objects.order_by("pk").values()) == labels


def test_exports_of_earlier_versions_are_read(source_project: Project, other_project: Project) -> None:
    """They have the id and the run's uid in `run`, times as JSON text, and no keys."""
    old = [
        {**{name: row[name] for name in row if name not in ("run_id", "prompt_key", "content_key", "created_at")},
         "run": row["run_id"], "updated_at": json.dumps(row["updated_at"])}
        for row in read_rows(source_project, ids="yes")
    ]  # fmt: skip
    assert dict(import_labels(source_project, old).labels) == {"unchanged": 12}
    elsewhere = import_labels(other_project, old)
    assert {problem.kind for problem in elsewhere.problems} == {"unmatched"} and len(elsewhere.problems) == 12
    named = import_labels(other_project, old, run=other_project.runs.get(name="grpo"))
    assert named.labels["new"] == 10 and named.matched["place"] == 11
    messages = {problem.kind: problem.message for problem in named.problems}
    assert len(named.problems) == 2 and "2 samples match" in messages["ambiguous"]
    assert "names a sample that is not in the group" in messages["unmatched"]


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "no such sample"])
def test_a_sample_id_that_cannot_be_stored_is_a_problem_of_its_row_only(source_project: Project, name: str) -> None:
    run = source_project.runs.get()
    twin, best = find_sample_id(run, "twin", index=2), find_sample_id(run, "best")
    rows = [
        {"sample": twin, "name": "better-than", "value": [name]},
        {"sample": best, "name": "correct", "value": False},
    ]
    result = import_labels(source_project, rows)
    assert [problem.kind for problem in result.problems] == ["unmatched"] and result.labels["new"] == 1
