"""Tables and episodes from a folder to the steps of a run."""

from __future__ import annotations

import gzip
import json
import shutil
from contextlib import suppress
from pathlib import Path

import polars
import pytest
from django.contrib.auth.models import User
from django.test import Client

from rolloutdeck.cli import entry
from rolloutdeck.cli.folders import import_
from rollouts.errors import UnreadableDumpError
from rollouts.indexing.indexer import index_dump
from rollouts.models import Dump, Run, Step
from tests.rolloutdeck.support.step_files import check_artifacts, run_import

pytestmark = pytest.mark.django_db(transaction=True)
DUMPS = Path(__file__).parents[2] / "data"


def index_steps() -> dict[tuple[str, str, int], int]:
    for dump in Dump.objects.filter(state=Dump.State.RECEIVED):
        with suppress(UnreadableDumpError):
            index_dump(dump.pk)
    rows = Step.objects.filter(samples__gt=0)
    return {(row.split, row.step_kind, row.step): row.samples for row in rows}


def test_a_table_with_mapped_columns_is_imported_with_the_steps_in_its_rows(node: Path) -> None:
    (node / "log.csv").write_text("frage,antwort,punkte,schritt\n1+1?,2,1,4\n1+1?,3,0,4\n2+2?,4,1,5\n")
    assert run_import(node, "--map", "prompt=frage,response=antwort,score=punkte", "--map", "step=schritt") == 0
    assert index_steps() == {("train", "global_step", 4): 2, ("train", "global_step", 5): 1}
    assert Run.objects.get().framework == "tables"


def test_rows_of_log_samples_and_tables_of_tokens_are_imported_by_their_format_names(node: Path) -> None:
    (node / "rows.jsonl").write_text(json.dumps({"prompt": "q", "response": "2", "colour": "red", "step": 3}) + "\n")
    assert run_import(node, "--format", "native") == 0
    assert index_steps() == {("train", "global_step", 3): 1} and {dump.format for dump in Dump.objects.all()} == {
        "native"
    }
    (node / "rows.jsonl").write_text(json.dumps({"prompt_ids": [1], "response_ids": [2], "step": 4}) + "\n")
    assert run_import(node, "--format", "token-table") == 0
    assert index_steps().keys() >= {("train", "global_step", 4)}
    assert set(Dump.objects.values_list("format", flat=True)) == {"native", "token-table"}


def test_all_steps_of_a_real_run_of_cure_are_imported(node: Path) -> None:
    """Each step has 4 tasks with 4 programs and 4 tests, in three files and a copy from before the tests were run."""
    shutil.copytree(DUMPS / "cure", node / "cure")
    assert run_import(node) == 0
    assert index_steps() == {("train", "iteration", 0): 32, ("train", "iteration", 1): 32}
    assert Run.objects.get().framework == "cure"


def test_files_of_trainers_are_imported_with_their_steps_and_splits(node: Path) -> None:
    for name in ("nemo_rl", "verifiers", "rllm"):
        shutil.copytree(DUMPS / name, node / name)
    shutil.copytree(DUMPS / "table/areal", node / "areal")
    assert run_import(node) == 0
    assert index_steps() == {
        ("train", "global_step", 3): 7, ("eval", "global_step", 2): 2, ("eval", "global_step", 0): 5,
        ("train", "global_step", 5): 3, ("train", "policy_version", 12): 2,
    }  # fmt: skip
    assert not Dump.objects.exclude(state=Dump.State.INDEXED).exists()


def test_equal_rows_in_two_shards_of_a_data_set_are_two_samples(node: Path) -> None:
    """Twelve rows that Hugging Face's datasets saved. Half of one group is in each shard."""
    saved = node / "train"
    shutil.copytree(DUMPS / "others/saved", saved)
    columns = {"features": {"prompt": {"_type": "List"}, "completion": {"_type": "Value"}}}
    for name in ("dataset_info.json", "state.json"):
        (saved / name).write_text(json.dumps(columns))
    assert run_import(node) == 0
    assert index_steps() == {("train", "global_step", 3): 12}
    assert set(Dump.objects.values_list("producer", flat=True)) == {"00000-of-00002", "00001-of-00002"}
    assert not Dump.objects.exclude(state=Dump.State.INDEXED).exists()


ROWS = [{"prompt": f"q{row}", "response": "2", "score": 1.0, "step": 2} for row in range(3)]


@pytest.fixture
def index_without_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """`import` waits until a worker has indexed what was sent. Here it indexes this itself."""
    monkeypatch.setattr(import_, "_wait_until_indexed", lambda *given: (index_steps(), check_artifacts()))


@pytest.mark.parametrize("name", ["generations.jsonl", "0000.jsonl", "0.csv", "0000.parquet", "0.jsonl.gz"])
@pytest.mark.usefixtures("index_without_worker")
def test_the_steps_recorded_in_the_rows_are_printed(node: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    table, lines = polars.DataFrame(ROWS), "".join(json.dumps(row) + "\n" for row in ROWS)
    if name.endswith(".parquet"):
        table.write_parquet(node / name)
    elif name.endswith(".csv"):
        table.write_csv(node / name)
    else:
        (node / name).write_bytes(gzip.compress(lines.encode()) if name.endswith(".gz") else lines.encode())
    assert entry.main(["import", str(node / name)]) == 0
    assert index_steps() == {("train", "global_step", 2): 3}
    printed = capsys.readouterr().out
    assert "Steps recorded in the rows: 2." in printed and "in the rows\n" in printed


def test_the_number_in_the_file_name_is_the_step_of_rows_that_count_turns(
    node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**row, "step": turn} for turn, row in enumerate(ROWS)]
    (node / "12.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run_import(node) == 0
    assert index_steps() == {("train", "global_step", 12): 3}
    assert "12" in capsys.readouterr().out


@pytest.mark.usefixtures("index_without_worker")
def test_a_replayable_batch_without_readable_samples_is_not_reported_as_failed(
    node: Path, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = (DUMPS / "roll/mock/train/step_000001.pkl").read_bytes()
    (node / "train").mkdir()
    (node / "train/step_000001.pkl").write_bytes(saved.replace(b"input_ids", b"input_idz"))
    entry.main(["import", str(node)])
    printed = "".join(capsys.readouterr())
    assert "Replayable: 1 step." in printed and "failed" not in printed
    assert "train/step_000001.pkl is replayable, but its samples can't be shown: The batch holds no rows" in printed
    reader = Client()
    reader.force_login(owner)
    page = reader.get(f"/runs/{Run.objects.get().uid}/").content.decode()
    assert "Samples cannot be shown" in page and "Not readable" not in page
