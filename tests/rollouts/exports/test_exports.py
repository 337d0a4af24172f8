"""Exports as a user downloads them: what is in the ZIP file, what is left out, and that the bytes are the same."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.contrib.auth.models import User

from rollouts import queues
from rollouts.exports import Export, parse_options, stream_archive
from rollouts.exports.tables import iterate_samples
from rollouts.labels import Answer, save_rubric, store_labels
from rollouts.models import ItemDecision, Label, Project, Run, Sample
from rollouts.query import find_samples
from tests.dashboard.support.api_client import ApiClient
from tests.rollouts.support.exports import QUESTIONS, download, export
from tests.rollouts.support.query_rows import push
from tests.support import builders

pytestmark = pytest.mark.django_db


def test_sft_uses_corrections_and_leaves_out_near_duplicates_and_more_than_n_of_a_prompt(
    run: Run, mate: User, sample_ids: dict[str, str]
) -> None:
    store_labels(run, mate, [Answer(sample_ids["worst"], "correction", "mended")])
    rows, card = export(mate, f"run={run.uid}", layout="sft", drop_near_duplicates="true", max_per_prompt="2")
    assert [(row["completion"][:5], row["corrected"]) for row in rows] == [
        ("best", False), ("middl", False), ("same", False), ("word0", False)
    ]  # fmt: skip
    assert "- near-duplicates: `2`" in card and "- more rows of a prompt than allowed: `1`" in card
    rows, _ = export(mate, f"run={run.uid}", layout="sft", q="score<0.1")
    assert [(row["prompt"], row["completion"]) for row in rows] == [("p1", "mended"), ("p2", "same")]
    pairs, _ = export(mate, f"run={run.uid}", layout="preferences", q="score<0.1")
    assert [(row["chosen"], row["rejected"], row["corrected"]) for row in pairs] == [("mended", "worst", True)]


@pytest.mark.parametrize("layout", ["sft", "preferences", "kto"])
def test_the_first_sample_with_text_decides_the_columns_however_late_it_is(
    project: Project, mate: User, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollouts.exports.texts.BATCH_ROWS", 2)
    run = builders.run(project, "late")
    push(run, [{"prompt": "held out", "response": "z"}], split="eval")
    push(run, [{"prompt": "held out", "response": f"x{n}", "score": n, "group": "e"} for n in range(5)])
    question, answers = {"role": "user", "content": "1+1?"}, [{"role": "assistant", "content": text} for text in "23"]
    push(
        run,
        [
            {"prompt": "1+1?", "messages": [question, answer], "response": answer["content"], "group": "g", "score": n,
             "tools": [{"name": "add"}]}
            for n, answer in enumerate(answers)
        ],
        step=2,
    )  # fmt: skip
    rows, card = export(mate, f"run={run.uid}", layout=layout)
    texts = [row[name] for row in rows for name in ("messages", "completion", "chosen") if name in row]
    assert [text[-1] for text in texts] == (answers[1:] if layout == "preferences" else answers)
    assert all(json.loads(row["tools"]) == [{"name": "add"}] for row in rows)
    assert "- samples whose prompt is of an evaluation: `6`" in card


def test_training_data_merges_what_two_dumps_recorded(project: Project, mate: User) -> None:
    run = builders.run(project, "twice")
    messages = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    row = {"prompt": "1+1?", "response": "2", "messages": messages, "score": 1.0, "group": "g"}
    push(run, [row])
    push(run, [{**row, "tools": [{"name": "add"}]}], source="other.jsonl")
    (sft,), _ = export(mate, f"run={run.uid}", layout="sft")
    assert json.loads(sft["tools"]) == [{"name": "add"}]


def test_texts_for_sft_are_in_the_order_of_groups_and_once(project: Project, mate: User) -> None:
    run = builders.run(project, "texts")
    rows: list[dict[str, Any]] = [
        {"prompt": "q", "response": 'löst\n"1"', "score": 0.25, "group": "b"},
        {"prompt": "p", "response": "", "score": None, "group": "a"},
    ]
    push(run, rows, step=2)
    push(run, [*rows, {"prompt": "p", "response": "old", "score": 1, "group": "a"}], step=1)
    push(run, rows, step=1, source="other.jsonl")  # the same samples in a second dump
    found, card = export(mate, f"run={run.uid}", layout="sft")
    assert [(row["step"], row["prompt"], row["completion"], row["score"]) for row in found] == [
        (1, "p", "", None), (1, "p", "old", 1.0), (1, "q", "löst\n\"1\"", 0.25),
        (2, "p", "", None), (2, "q", "löst\n\"1\"", 0.25),
    ]  # fmt: skip
    assert list(found[0]) == ["prompt", "completion", "id", "run", "step", "score", "corrected"]
    assert "- samples read: `5`" in card
    assert export(mate, f"run={run.uid}", layout="sft", format="parquet")[0] == found


def test_an_export_of_a_project_leaves_out_runs_without_a_key_of_the_query(run: Run, mate: User) -> None:
    logged = builders.run(run.project, "logged")
    push(logged, [{"prompt": "p", "response": "good", "score": 1.0, "acc": 1}])
    builders.run(run.project, "empty")
    rows, card = export(mate, f"project={run.project.slug}", layout="sft", q="acc=1")
    assert [row["completion"] for row in rows] == ["good"]
    assert "- run without a key of the query: `grpo`\n" in card and "Nothing." not in card
    refused = ApiClient.with_token(mate, "read")("GET", f"exports/datasets/?project={run.project.slug}&q=acd=1")
    assert refused.status_code == 400 and "acd" in refused.json()["error"]["message"]


@pytest.mark.parametrize("layout", ["sft", "kto"])
def test_a_text_that_has_moved_is_not_that_of_another_sample(
    run: Run, mate: User, sample_ids: dict[str, str], layout: str
) -> None:
    """Retention moves rows while an export, which has read the places before, reads the texts."""
    best, worst = Sample.objects.get(pk=sample_ids["best"]), Sample.objects.get(pk=sample_ids["worst"])
    best.ordinal, worst.ordinal = worst.ordinal, best.ordinal
    Sample.objects.bulk_update([best, worst], ["ordinal"])
    rows, card = export(mate, f"run={run.uid}", layout=layout)
    assert [row["completion"] for row in rows][:3] == ["middle", "same", "same"]
    assert "- samples without text: `2`" in card


def test_other_data_have_another_header_of_the_dataset_card(run: Run, mate: User, sample_ids: dict[str, str]) -> None:
    """`datasets` would take them for those that it has cached."""
    heads = []
    for is_correct in (True, False):
        store_labels(run, mate, [Answer(sample_ids["best"], "correct", is_correct)])
        _rows, card = export(mate, f"run={run.uid}", layout="samples")
        heads.append(card.partition("# ")[0])
    assert "description: data " in heads[0] and heads[0] != heads[1]


def test_files_in_the_archive_are_not_compressed(run: Run, mate: User) -> None:
    archive = zipfile.ZipFile(io.BytesIO(download(mate, f"run={run.uid}", layout="sft")))
    assert archive.testzip() is None
    assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}


@pytest.mark.parametrize("file_format", ["jsonl", "parquet", "csv"])
def test_tables_have_all_labels_wide_and_long_and_the_same_bytes_again(
    run: Run, mate: User, owner: User, sample_ids: dict[str, str], file_format: str
) -> None:
    store_labels(
        run, mate, [Answer(sample_ids["best"], "correct", True), Answer(sample_ids["best"], "wrong", ["step", "hack"])]
    )
    store_labels(run, owner, [Answer(sample_ids["best"], "correct", True, rationale="checked")])
    first = download(mate, f"project={run.project.slug}", layout="samples", format=file_format)
    assert b"- run: `all that are not archived`" in zipfile.ZipFile(io.BytesIO(first)).read("README.md")
    assert first == download(mate, f"project={run.project.slug}", layout="samples", format=file_format)
    if file_format == "csv":
        text = zipfile.ZipFile(io.BytesIO(first)).read("data/samples.csv").decode()
        assert text.startswith("id,run,") and "label.correct,people.correct" in text and text.count("\r\n") == 11
        return
    rows, card = export(mate, f"run={run.uid}", layout="samples", format=file_format)
    wide = next(row for row in rows if row["response"] == "best")
    assert (wide["label.correct"], wide["people.correct"], wide["label.wrong"]) == (True, 2, ["hack", "step"])
    assert len(rows) == 10 and "- correct: `Right? (yes-no)`" in card
    queue = queues.create_queue(run.project, mate, {"name": "check", "runs": [run], "q": "score>0.9"})
    item = queue.items.get(sample=sample_ids["best"])
    ItemDecision.objects.create(item=item, name="correct", value=False, user=mate)
    rows, _ = export(mate, f"run={run.uid}", layout="samples", format=file_format)
    assert next(row for row in rows if row["response"] == "best")["label.correct"] is False  # a lead's decision
    labels, _ = export(mate, f"run={run.uid}", layout="labels", ids="true", format=file_format)
    assert [(row["name"], json.loads(row["json_value"]), row["author"], row["rationale"]) for row in labels] == [
        ("correct", True, mate.username, ""), ("wrong", ["hack", "step"], mate.username, ""),
        ("correct", True, owner.username, "checked"),
    ]  # fmt: skip
    assert {row["sample"] for row in labels} == {sample_ids["best"]}


@pytest.mark.parametrize("layout", ["samples", "labels"])
def test_a_stored_integer_of_more_than_64_bits_is_exported(
    run: Run, mate: User, sample_ids: dict[str, str], layout: str
) -> None:
    save_rubric(run.project, mate, [{"key": "cost", "title": "Cost", "kind": "number"}])
    store_labels(run, mate, [Answer(sample_ids["best"], "cost", 1e20)])
    Label.objects.filter(name="cost").update(value=10**20)  # as earlier versions stored it
    rows, _ = export(mate, f"run={run.uid}", layout=layout)
    row = next(row for row in rows if layout == "labels" or row["response"] == "best")
    if layout == "labels":
        assert row["json_value"] == str(10**20)
    else:
        (label,) = json.loads(row["labels"]) if isinstance(row["labels"], str) else row["labels"]
        assert label["value"] == row["label.cost"] == 1e20 and "T" in label["updated_at"]


def test_labels_of_others_on_samples_of_a_blind_queue_are_not_exported(
    run: Run, mate: User, owner: User, sample_ids: dict[str, str]
) -> None:
    store_labels(
        run, owner, [Answer(sample_ids["best"], "correct", True), Answer(sample_ids["middle"], "correct", True)]
    )
    queues.create_queue(run.project, owner, {"name": "blind", "runs": [run], "q": "score>0.9", "is_blind": True})
    rows, card = export(mate, f"run={run.uid}", layout="labels", ids="true")
    assert [row["sample"] for row in rows] == [sample_ids["middle"]] and "- samples read: `1`" in card


def test_a_rubric_that_is_saved_during_an_export_does_not_change_its_columns(
    run: Run, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = builders.run(run.project, "second")
    push(second, [{"prompt": "p", "response": "r"}])

    def iterate_and_save(*arguments: Any) -> Any:
        yield from iterate_samples(*arguments)
        save_rubric(run.project, mate, QUESTIONS[1:])

    monkeypatch.setattr("rollouts.exports.archive.iterate_samples", iterate_and_save)
    samples = [Sample.objects.current_and_visible().filter(step__run=row) for row in (run, second)]
    options = parse_options(run.project, {"layout": "samples", "format": "parquet"})
    stream = stream_archive(Export(run.project, options, samples, {}, "samples"))
    archive = zipfile.ZipFile(io.BytesIO(b"".join(stream)))
    table = pq.read_table(io.BytesIO(archive.read("data/samples.parquet")))
    assert table.num_rows == 11 and "label.correct" in table.column_names
    assert "## Rubric, version 1\n" in archive.read("README.md").decode() and run.project.rubrics.count() == 2


def test_errors_for_bad_options_name_the_valid_ones(run: Run, mate: User) -> None:
    api = ApiClient.with_token(mate, "read")
    for query, message in (
        ("", "Send `run` or `project`."),
        (f"run={run.uid}&layout=dpo", "`layout` must be one of"),
        (f"run={run.uid}&layout=kto&signal=rank", "A rank says which response is better"),
        (f"run={run.uid}&layout=kto&signal=label&question=x", "has no question `x`. Questions with one choice"),
        (f"run={run.uid}&layout=kto&signal=label&question=wrong", "`wrong` cannot say what is good"),
        (f"run={run.uid}&q=score>>", "score"),
    ):
        response = api("GET", f"exports/datasets/?{query}")
        assert response.status_code == 400 and message in response.json()["error"]["message"], query


def open_as_dataset(run: Run, folder: Path, **settings: str) -> Any:
    import datasets

    parsed = parse_options(run.project, settings)
    body = b"".join(stream_archive(Export(run.project, parsed, [find_samples(run, ordering="order").samples], {})))
    zipfile.ZipFile(io.BytesIO(body)).extractall(folder / "data")
    return datasets.load_dataset(str(folder / "data"), cache_dir=str(folder / "cache"), split="train")


@pytest.mark.parametrize("file_format", ["jsonl", "csv"])
def test_a_column_whose_first_value_comes_late_opens_as_a_dataset(
    project: Project, mate: User, tmp_path: Path, file_format: str
) -> None:
    """`datasets` infers types from about 10 MB."""
    save_rubric(project, mate, QUESTIONS)
    run = builders.run(project, "long")
    for step in (1, 2, 3):
        push(run, [{"prompt": "1+1?", "response": f"{step} {n} " + "x" * 5000} for n in range(1000)], step=step)
    last = Sample.objects.get(step__step=3, ordinal=999).pk
    store_labels(run, mate, [Answer(last, "correct", True)])
    rows = open_as_dataset(run, tmp_path, format=file_format)
    assert [row["id"] for row in rows.filter(lambda row: row["label.correct"])] == [last]
    assert rows.features["label.correct"].dtype == "bool" and rows.features["facets"] is not None


def test_messages_of_a_dataset_have_the_fields_that_some_message_has(
    project: Project, mate: User, tmp_path: Path
) -> None:
    """Chat templates ask whether a message has `tool_calls`."""
    run = builders.run(project, "chats")
    question = {"role": "user", "content": "1+1?"}
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    push(run, [{"messages": [question, {"role": "assistant", "content": "2"}], "response": "2"}])
    plain = open_as_dataset(run, tmp_path / "plain", layout="sft")
    assert plain[0]["messages"] == [question, {"role": "assistant", "content": "2"}]
    push(
        run,
        [{"messages": [question, {"role": "assistant", "content": "", "tool_calls": [call]}], "response": "x"}],
        step=2,
    )
    with_calls = open_as_dataset(run, tmp_path / "calls", layout="sft")
    assert {row["messages"][1]["tool_calls"] and row["messages"][1]["tool_calls"][0]["id"] for row in with_calls} == {
        None,
        "1",
    }
