"""Steps are replayed without the prompts that have a flagged row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from rolloutdeck.replay.folder import PULL_MANIFEST
from rolloutdeck.safe_pickle.batches.batch import open_batch
from rollouts.indexing import indexer
from rollouts.models import Label, Run, Sample
from tests.rolloutdeck.replay.pull.plans import (
    TREE,
    RunCommand,
    build_expected_hashes,
    create_pin,
    hash_files,
    save_plan,
)
from tests.rollouts.support.push import generation, index_file, line, list_samples
from tests.rollouts.support.verl_batches import COLOCATED, V0, V1
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)


def flag_rows(run: Run, by: User, *records: int) -> None:
    """Indexes the files of a run and flags the samples of these rows."""
    for dump in run.dumps.filter(state="received"):
        indexer.index_dump(dump.pk)
    for sample in Sample.objects.filter(step__run=run, ordinal__in=records):
        builders.flag_row(sample, by)


def read_response_ids(folder: Path) -> list[list[int]]:
    """The token ids of the responses in the only batch below a folder."""
    (path,) = (file for file in folder.rglob("*") if file.suffix in (".dp", ".pt") and ".rolloutdeck" not in str(file))
    with open_batch(path) as batch:
        return [batch.tokens(row).response_ids for row in range(batch.rows)]


def test_a_pin_is_skipped_if_its_flagged_rows_are_in_no_file(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    index_file(old_run, line(generation(step=1)))
    save_plan(owner, (create_pin(old_run, 1, owner), 3), on_selected="exclude")
    assert pull() == 0
    sample = list_samples(old_run)[0]
    builders.flag_row(sample, owner)
    assert pull() == 2
    message = "is skipped: 1 of its 1 flagged samples can't be found in its files, so they can't be excluded."
    assert message in capsys.readouterr().err


def test_v1_replays_a_step_without_the_prompts_that_hold_a_flagged_row(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner, V1, "rollout_tq"), 3), on_selected="exclude")
    flag_rows(old_run, owner, 0, 9)
    assert pull("--set", "trainer.use_v1=true") == 0
    message = capsys.readouterr().err
    assert "without 2 of its 8 prompts (8 of 32 rows): these prompts have 2 flagged samples. All answers" in message
    assert "V1 repeats prompts until its batch is full." in message
    assert "prompts: 6 pinned, 8 requested" in message
    with open_batch(V1 / "0/tq_batch.pt") as batch:
        excluded = {batch.keys[row].split("_")[0] for row in (0, 9)}
        keep = [row for row in range(batch.rows) if batch.keys[row].split("_")[0] not in excluded]
        assert read_response_ids(tmp_path / "into") == [batch.tokens(row).response_ids for row in keep]
    (result,) = json.loads((tmp_path / "into" / PULL_MANIFEST).read_text())["repaired"]
    assert "Rolloutdeck wrote this file" in result


def test_v0_replays_a_shorter_batch_only_if_the_run_asks_for_as_few_rows(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner), 1), on_selected="exclude")
    flag_rows(old_run, owner, 5, 6)
    assert pull() == 2
    message = capsys.readouterr().err
    assert "rows: 28 pinned, 32 requested" in message
    assert "without its flagged rows (V0 needs exactly as many rows as its batch has)" in message
    assert pull("--set", "data.train_batch_size=7") == 0
    message = capsys.readouterr().err
    assert "without 1 of its 8 prompts (4 of 32 rows): these prompts have 2 flagged samples" in message
    assert "ground truth, data source and uid from the live batch" in message  # its rows are at other positions now
    assert len(read_response_ids(tmp_path / "into")) == 28


def test_v0_gets_no_shorter_batch_if_its_number_of_prompts_is_unknown(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (create_pin(old_run, 3, owner, COLOCATED, prompts=None), 1), on_selected="exclude")
    flag_rows(old_run, owner, 1)
    assert pull() == 2
    assert "has 2 rows without its flagged prompts, and V0 needs 32" in capsys.readouterr().err
    save_plan(
        owner,
        (create_pin(old_run, 3, owner, COLOCATED, prompts=None), 1),
        (create_pin(old_run, 2, owner), 2),
        on_selected="exclude",
    )
    assert pull() == 0
    message = capsys.readouterr().err
    assert "Target step 1 (step 3 of grpo-1) is skipped: gen_batch.dp has 2 rows" in message
    assert "Step 2: step 2 of grpo-1, unknown: depends on " in message
    save_plan(owner, (create_pin(old_run, 3, owner, COLOCATED, prompts=None), 1), on_selected="exclude")
    assert pull() == 2
    assert f"replayed. {tmp_path}/into still has the steps of the earlier pull.\n" in capsys.readouterr().err


def test_a_plan_that_says_stop_writes_nothing_if_a_step_cannot_be_shortened(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = (create_pin(old_run, 3, owner, COLOCATED, prompts=None), 1), (create_pin(old_run, 2, owner), 2)
    save_plan(owner, *entries, on_selected="exclude", on_mismatch="stop")
    flag_rows(old_run, owner, 1)
    assert pull("--skip-conflicts") == 2
    assert "The plan default@1 stops at a mismatch." in capsys.readouterr().err
    assert not (tmp_path / "into" / TREE / "2").exists()
    assert not (tmp_path / "into" / TREE / "1").exists()


def test_a_plan_that_replays_flagged_rows_writes_the_unchanged_files(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner), 1))
    flag_rows(old_run, owner, 5, 6)
    assert pull() == 0
    assert hash_files(tmp_path / "into") == build_expected_hashes(V0, f"{TREE}/1")


def test_a_step_whose_prompts_are_all_flagged_is_generated(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner), 1), on_selected="exclude")
    flag_rows(old_run, owner, *range(0, 32, 4))
    assert pull() == 2
    assert "is skipped: all its prompts are flagged" in capsys.readouterr().err


def test_a_second_pull_follows_the_flags(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner, V1, "rollout_tq"), 3), on_selected="exclude")
    flag_rows(old_run, owner, 0)
    assert pull("--set", "trainer.use_v1=true") == 0
    assert len(read_response_ids(tmp_path / "into")) == 28
    Label.objects.all().delete()
    assert pull("--set", "trainer.use_v1=true") == 0
    assert len(read_response_ids(tmp_path / "into")) == 32
