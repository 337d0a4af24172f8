"""Tables of full samples have the same values as full samples read one by one."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import orjson
import pyarrow as pa
import pytest
from django.contrib.auth.models import User
from pytest_django import DjangoAssertNumQueries

from rollouts.labels import Answer, store_labels
from rollouts.maintenance import compaction
from rollouts.models import DuplicateSource, Run, Sample, Segment, Step
from rollouts.samples import (
    EXPORT_SCHEMA,
    KnownRows,
    bodies,
    dump_json,
    export_jsonl,
    iterate_full_samples,
    iterate_sample_tables,
    sample_tables,
    to_arrow,
)
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
    rows = [row for batch in iterate_full_samples(sort_samples_by_text(run)) for row in batch]
    texts = [{**row, **{name: dump_json(row[name]) for name in JSON_COLUMNS}} for row in rows]
    return list(pa.Table.from_pylist(texts, schema=EXPORT_SCHEMA).to_pylist())


def read_tables(run: Run) -> list[dict[str, Any]]:
    return [
        row
        for table, _labels in iterate_sample_tables(sort_samples_by_text(run))
        for row in to_arrow(table, EXPORT_SCHEMA).to_pylist()
    ]


def sort_samples_by_text(run: Run) -> Any:
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


def test_samples_between_others_and_batches_of_long_texts_have_their_own_values(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(run, [{"prompt": "p", "response": f"r{n}", "score": n % 3, "group": str(n), "n": n} for n in range(300)])
    samples = Sample.objects.filter(step__run=run, score__gt=0).order_by("step", "dump", "ordinal")
    monkeypatch.setattr(sample_tables, "BATCH_CHARS", 100)
    tables = [table for table, _labels in iterate_sample_tables(samples)]
    assert len(tables) > 5 and all(table["chars"].sum() < 110 for table in tables)
    rows = [row for table in tables for row in table.iter_rows(named=True)]
    assert [json.loads(row["extras"])["n"] for row in rows] == [n for n in range(300) if n % 3]
    assert all(row["response"] == f"r{json.loads(row['extras'])['n']}" for row in rows)


def test_json_lines_have_the_values_of_full_samples_with_lists_and_objects(run: Run, mate: User) -> None:
    push(run, ROWS)
    sample = Sample.objects.filter(step__run=run).first()
    assert sample is not None
    store_labels(run, mate, [Answer(sample.pk, "flag", "bad", rationale="why")])
    lines = [json.loads(line) for line in b"".join(export_jsonl(sort_samples_by_text(run))).splitlines()]
    full = [row for batch in iterate_full_samples(sort_samples_by_text(run)) for row in batch]
    assert lines == json.loads(orjson.dumps(full)) and any(isinstance(line["messages"], list) for line in lines)


def test_a_file_with_many_dumps_is_opened_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(1, 5):
        push(run, ROWS[:3], step=step)
    compaction.compact_body_files(run.pk, "train")
    assert Segment.objects.filter(run=run).count() == 1
    opened = []
    open_body_file = bodies.open_body_file
    monkeypatch.setattr(
        bodies, "open_body_file", lambda dump, **options: opened.append(dump.pk) or open_body_file(dump, **options)
    )
    assert len(read_tables(run)) == 12
    assert len(opened) == 1


def test_samples_without_labels_cost_no_query_for_each_batch(
    run: Run, monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    push(run, [{"prompt": "p", "response": f"r{n}", "score": 1.0} for n in range(200)])
    monkeypatch.setattr(sample_tables, "BATCH_ROWS", 10)
    with django_assert_max_num_queries(6):
        assert len(read_tables(run)) == 200


def test_a_step_that_is_deleted_during_an_export_has_no_rows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        push(run, ROWS[:2], step=step)
    deleted, load = Step.objects.get(run=run, step=2).pk, KnownRows.load

    def load_after_deletion(steps: Collection[int], dumps: Collection[int]) -> KnownRows:
        known = load(steps, dumps)
        del known.places[deleted]
        return known

    monkeypatch.setattr(KnownRows, "load", load_after_deletion)
    assert [row["step"] for row in read_tables(run)] == [1, 1]


def test_a_sample_whose_row_has_moved_is_left_out(run: Run) -> None:
    """Retention moves rows while an export reads the texts at the positions that it read before."""
    push(run, [{"prompt": "p", "response": f"r{n}", "score": 1.0} for n in range(4)])
    rows = list(Sample.objects.filter(step__run=run).order_by("ordinal"))
    rows[1].ordinal, rows[2].ordinal = 2, 1
    Sample.objects.bulk_update(rows, ["ordinal"])
    assert [row["response"] for row in read_tables(run)] == ["r0", "r3"]


def test_numbers_beyond_64_bits_and_columns_with_gaps_are_exported_as_recorded(run: Run) -> None:
    """orjson refuses integers of more than 64 bits."""
    numbers = [1e20, 2, 2.5, -(2.0**53), 0.0, None]
    texts = ['a "quoted" \\ text\n\x01', "é漢\u2028", "", "x", None, "1"]
    rows: list[dict[str, Any]] = [
        {
            "prompt": "numbers",
            "response": f"r{at}",
            "rewards": {"acc": 1.0 if at else None, "fmt": at / 3},
            "ppl": number,
            "note": text,
            "tokens": at,
            "tags": ["a", at] if at % 2 else None,
        }
        for at, (number, text) in enumerate(zip(numbers, texts, strict=True))
    ]
    push(run, rows, step=9)
    samples = Sample.objects.filter(step__step=9).order_by("ordinal")
    exported = [orjson.loads(line) for line in b"".join(export_jsonl(samples)).splitlines()]
    recorded = bodies.load_bodies(list(samples))
    assert [row["extras"].get("ppl") for row in exported] == numbers
    assert [row["extras"].get("note") for row in exported] == texts
    for row in exported:
        body = recorded[row["id"]]
        assert row["extras"] == body.extras
        assert row["rewards"] == {key: value for key, value in body.rewards.items() if value is not None}
