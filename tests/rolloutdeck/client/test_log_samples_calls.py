"""Calls of `log_samples` with wrong arguments or rows: what is lost, and what is logged about them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars
import pytest

from rolloutdeck.client import rows as row_reading
from rolloutdeck.client import start
from tests.rolloutdeck.support.logged_rows import GOOD, NATIVE, end_run, load_steps

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (None, "the rows must be a list of dicts"),
        ("text", "the rows must be a list of dicts"),
        (17, "the rows must be a list of dicts"),
        ({"prompt": ["a", "b"], "completion": ["c"]}, "different lengths: `prompt` 2, `completion` 1"),
    ],
)
def test_rows_of_no_known_shape_are_refused_in_plain_words(
    logged_run: Any, caplog: pytest.LogCaptureFixture, rows: Any, reason: str
) -> None:
    logged_run.log_samples(rows, step=1)
    assert reason in caplog.text and "object" not in caplog.text.replace("objects", "")
    assert sum(logged_run._threads.spool.dropped.values()) == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "wrong arguments. It takes (rows, step"),
        ({"step": "three"}, "a step must be a whole number, not 'three'"),
        ({"step": None}, "a step must be a whole number, not 'None'"),
        ({"step": -1}, "a step must be 0 or more"),
        ({"step": 1, "split": "test"}, "split must be one of train, eval"),
        ({"step": 1, "columns": "answer"}, "columns: `answer` is not a column mapping"),
        ({"step": 1, "colour": "red"}, "wrong arguments"),
    ],
)
def test_a_wrong_argument_is_named(
    logged_run: Any, caplog: pytest.LogCaptureFixture, arguments: dict[str, Any], reason: str
) -> None:
    logged_run.log_samples([NATIVE], **arguments)
    assert reason in caplog.text and "Error" not in caplog.text


def test_the_last_log_line_counts_the_rows_sent_indexed_and_rejected(
    logged_run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        logged_run.log_samples([GOOD] * 1200, step=1)
        logged_run.log_samples([GOOD, {"prompt": "q"}, {"other": 1}], step=2)
        assert str(end_run(logged_run)) == "1,203 rows sent, 1,201 indexed, 2 rejected"
        logged_run.finish()
    assert "Run logged: 1,203 rows sent, 1,201 indexed, 2 rejected." in caplog.text
    reports = [record.getMessage() for record in caplog.records if "of log_samples(step=2)" in record.getMessage()]
    assert len(reports) == 2 and all("1 of 3 rows" in report for report in reports)


def yield_rows_then_fail(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {**GOOD, "completion": str(number)}
    raise RuntimeError("the engine stopped")


def test_lost_calls_are_counted_and_the_rows_before_an_error_are_kept(
    logged_run: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_reading, "MAX_STREAMED_ROWS", 3)
    logged_run.log_samples(yield_rows_then_fail(2), step=1)
    logged_run.log_samples(yield_rows_then_fail(0), step=2)
    logged_run.log_samples(yield_rows_then_fail(5), step=3)
    logged_run.log_samples(polars.LazyFrame({"prompt": list("abcde"), "completion": list("12345")}), step=4)
    logged_run.log_samples(polars.LazyFrame({"prompt": ["a"]}).select("b"), step=5)
    logged_run.log({"loss": 1.0}, step="three")
    logged_run.log(17, step=3)
    logged_run.log_file("missing.jsonl", step=3)
    logged_run.log_artifact(3, step=4)
    status = end_run(logged_run)
    assert (status.sent, status.indexed, status.rejected, status.failed_calls) == (8, 8, 0, 8)
    assert str(status) == (
        "8 rows sent, 8 indexed, 0 rejected, 0 files sent, 8 calls failed, "
        "1 file: can't be read (No such file or directory)"
    )
    assert [len(samples) for samples in load_steps("logged").values()] == [2, 3, 3]
    logged_run.finish()
    last = caplog.records[-1].getMessage()
    for reason in (
        "log_samples(): the rows raised RuntimeError: the engine stopped",
        "log_samples(): a stream has at most",
        "log(): a step must be a whole number, not 'three'",
        "log(): the values must be a dict of numbers by name, not an int",
        "log_artifact(): it cannot use these arguments: path is an int, step is an int.",
    ):
        assert reason in last
    assert "cut short after 2 rows" in caplog.text and "(TypeError)" not in caplog.text


def test_a_process_that_lost_all_its_calls_says_so(logged_run: Any, caplog: pytest.LogCaptureFixture) -> None:
    logged_run.log_samples(None, step=1)
    logged_run.finish()
    assert "Run logged: 0 rows sent, 0 indexed, 0 rejected, 1 call failed." in caplog.text


def test_files_that_the_server_rejects_are_counted_with_each_reason_once(
    logged_run: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, partial, broken = (tmp_path / name for name in ("good.jsonl", "partial.jsonl", "broken.parquet"))
    good.write_text(json.dumps(NATIVE) + "\n")
    partial.write_text("".join(json.dumps(row) + "\n" for row in (NATIVE, {"prompt": "q"}, {"prompt": "r"})))
    broken.write_bytes(b"PAR1 this is no table PAR1")
    logged_run.log_file(good, step=1, format="native")
    logged_run.log_file(partial, step=2, format="native")
    logged_run.log_file(broken, step=3, format="table")
    logged_run.log_file(broken, step=4, format="table", source="again.parquet")
    status = end_run(logged_run)
    assert (status.files, status.files_sent, status.files_failed, status.file_rows_rejected) == (4, 4, 2, 2)
    assert str(status) == "4 files sent, 2 files failed, 2 rows of the files rejected"
    assert len(status.problems) == 2
    assert f"{partial}, line 2: has no response; its keys are `prompt`" in status.problems
    logged_run.finish()
    last = caplog.records[-1].getMessage()
    assert "4 files sent, 2 files failed" in last and f"- {partial}, line 2: has no response" in last
    monkeypatch.setenv("ROLLOUTDECK_ATTEMPT", "second")
    resumed_run = start.init(name="logged", resume="allow")
    resumed_run.log_file(good, step=1, format="native")
    resumed_run.log_samples([NATIVE], step=2)
    assert str(end_run(resumed_run)) == "1 row sent, 1 indexed, 0 rejected, 1 file sent"
    resumed_run.finish()
