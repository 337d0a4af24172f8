"""Full samples as tables have the same values as full samples one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from django.contrib.auth.models import User
from pytest_django import DjangoAssertNumQueries

from rollouts.labels import Answer, store_labels
from rollouts.models import DuplicateSource, Run, Sample
from rollouts.samples import EXPORT_SCHEMA, dump_json, iterate_full_samples, iterate_sample_tables
from rollouts.samples.export import JSON_COLUMNS
from tests.rollouts.support.query_rows import push

pytestmark = pytest.mark.django_db
ROWS: list[dict[str, Any]] = [
    {"prompt": "p1", "response": "a", "score": 1.0, "group": "g", "index": 1, "rewards": {"fmt": 0.5, "acc": None}},
    {
        "prompt": "p1",
        "response": "b",
        "score": 0.0,
        "group": "g",
        "index": 0,
        "tokens": 3.0,
        "note": "x",
        "tags": ["y"],
    },
    {"prompt": "p2", "response": "", "response_ids": [1, 2], "logprobs": [-0.5, -0.25], "prompt_ids": [3]},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}], "response": "ho"},
    {"prompt": "费马", "response": "x\u2028y\x00z", "score": None, "ground_truth": "1", "data_source": "gsm8k"},
]


def read_one_by_one(run: Run) -> list[dict[str, Any]]:
    rows = [row for batch in iterate_full_samples(ordered(run)) for row in batch]
    texts = [{**row, **{name: dump_json(row[name]) for name in JSON_COLUMNS}} for row in rows]
    return list(pa.Table.from_pylist(texts, schema=EXPORT_SCHEMA).to_pylist())


def read_tables(run: Run) -> list[dict[str, Any]]:
    return [row for table, _labels in iterate_sample_tables(ordered(run)) for row in table.to_pylist()]


def ordered(run: Run) -> Any:
    return Sample.objects.filter(step__run=run).order_by("step__step", "tail", "pk")  # not the order of the files


def test_every_column_has_the_value_of_the_full_sample(run: Run, mate: User) -> None:
    push(run, ROWS)
    push(run, [{**row, "turn": 1, "policy_version": 7} for row in ROWS[:3]], step=2)
    sample = Sample.objects.filter(step__run=run).first()
    assert sample is not None
    store_labels(run, mate, [Answer(sample.pk, "flag", "bad", rationale="why")])
    expected = read_one_by_one(run)
    assert len(expected) == 8 and sum("why" in str(row["labels"]) for row in expected) == 1
    assert any(row["messages"] for row in expected) and any(row["logprobs"] for row in expected)
    assert read_tables(run) == expected


def test_values_of_samples_in_two_dumps_are_merged(
    run: Run, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    rows = [{"prompt": "p", "response": f"r{n}", "score": 1.0, "group": "g", "index": n} for n in range(20)]
    push(run, rows)
    push(run, [{**row, "data_source": "math"} for row in rows], source="other.jsonl")
    assert DuplicateSource.objects.exists()
    expected = read_one_by_one(run)
    assert {row["data_source"] for row in expected} == {"math"}
    with django_assert_max_num_queries(12):  # not several for each sample
        assert read_tables(run) == expected
