"""Which files of TRL, slime, ROLL and others a scan finds, with their split and step."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rolloutdeck.trainer_api import list_kinds
from rolloutdeck.watch import scan
from rolloutdeck.watch.file_endings import is_complete_file
from rolloutdeck.watch.types import ScanOptions

DATA = Path(__file__).parents[2] / "data"


def scan_path(path: Path, options: ScanOptions | None = None) -> list[tuple[str, str, int | None, str]]:
    files = scan.scan_folders([path], options or ScanOptions()).files
    return [(file.source, file.split, file.step, file.kind.format) for file in files]


def copy_file(name: str, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(DATA / name, target)
    return target


def test_completions_have_the_step_in_their_name_and_a_note_says_what_an_eval_overwrites() -> None:
    result = scan.scan_folders([DATA / "trl" / "plain"], ScanOptions())
    assert scan_path(DATA / "trl" / "plain") == [
        ("completions/completions_00004.parquet", "train", 4, "trl-completions")
    ]
    assert "TRL writes the rows of an eval into the train file of its step" in result.notes[0]


def test_rollouts_evals_and_train_dumps_of_slime_are_distinguished_and_count_rollouts() -> None:
    result = scan.scan_folders([DATA / "slime"], ScanOptions())
    assert {(file.source, file.split, file.step, file.kind.format) for file in result.files} == {
        ("rollout_data/0.pt", "train", 0, "slime-rollout"), ("rollout_data/1.pt", "train", 1, "slime-rollout"),
        ("rollout_data/2.pt", "train", 2, "slime-rollout"), ("rollout_data/eval_0.pt", "eval", 0, "slime-rollout"),
        ("train_data/0_0.pt", "train", 0, "slime-train"),
    }  # fmt: skip
    assert {file.step_kind for file in result.files} == {"rollout_id"}
    assert result.notes == []  # a train dump adds to the samples of its rollout


def test_a_file_whose_name_has_no_step_is_found_without_a_step(tmp_path: Path) -> None:
    copy_file("slime/rollout_data/1.pt", tmp_path / "dump.pt")
    copy_file("slime/rollout_data/eval_0.pt", tmp_path / "dump-eval_0.pt")
    assert scan_path(tmp_path) == [
        ("dump-eval_0.pt", "eval", None, "slime-rollout"), ("dump.pt", "train", None, "slime-rollout"),
    ]  # fmt: skip


def test_batches_of_roll_have_the_split_of_their_folder(tmp_path: Path) -> None:
    for split in ("train", "val"):
        copy_file("roll/mock/train/step_000001.pkl", tmp_path / "mock" / split / "step_000001.pkl")
    copy_file("roll/rlvr_jsonl/rollout_dump_data.step_1.jsonl", tmp_path / "rollout" / "rollout_dump_data.step_1.jsonl")
    assert sorted(scan_path(tmp_path)) == [
        ("mock/train/step_000001.pkl", "train", 1, "roll-mock"), ("mock/val/step_000001.pkl", "eval", 1, "roll-mock"),
        ("rollout/rollout_dump_data.step_1.jsonl", "train", 1, "roll-jsonl"),
    ]  # fmt: skip
    assert scan.scan_folders([tmp_path], ScanOptions()).notes == []


def test_other_files_with_the_names_of_dumps_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "1.pt").write_bytes(b"PK\x03\x04 weights")
    (tmp_path / "step_000001.pkl").write_bytes(b"\x80\x05.")
    (tmp_path / "completions_00001.parquet").write_bytes(b"no Parquet")
    (tmp_path / "rollout_dump_data.step_1.jsonl").write_text('{"a": "b"}\n')
    assert scan_path(tmp_path) == []


@pytest.mark.parametrize(
    "name",
    ["trl/plain/completions/completions_00004.parquet", "slime/rollout_data/0.pt", "slime/train_data/0_0.pt",
     "roll/mock/train/step_000001.pkl", "roll/rlvr_jsonl/rollout_dump_data.step_1.jsonl",
     "others/saved/data-00000-of-00002.arrow", "others/evaluations/2026-01-01_math_abc.eval"],
)  # fmt: skip
def test_a_file_that_is_still_being_written_is_not_complete(name: str, tmp_path: Path) -> None:
    path = copy_file(name, tmp_path / Path(name).name)
    size = path.stat().st_size
    with path.open("r+b") as file:
        assert is_complete_file(file, size, path.suffix)
        file.truncate(size * 2 // 3)
        assert not is_complete_file(file, size * 2 // 3, path.suffix)


def test_metrics_are_recognized_by_their_name_and_rows(tmp_path: Path) -> None:
    result = scan.scan_folders([DATA / "metrics"], ScanOptions())
    assert {(file.source, file.kind.format, file.kind.grows) for file in result.files} == {
        ("art/history.jsonl", "metrics", True), ("swift/logging.jsonl", "metrics", True),
        ("trl/checkpoint-4/trainer_state.json", "trainer-state", False),
    }  # fmt: skip
    copy_file("metrics/swift/logging.jsonl", tmp_path / "notes.jsonl")
    copy_file("nemo_rl/exp_001/train_data_step3.jsonl", tmp_path / "metrics.jsonl")
    assert scan.scan_folders([tmp_path], ScanOptions()).files == []
    assert scan_path(tmp_path / "notes.jsonl", ScanOptions(format="metrics")) == [
        ("notes.jsonl", "train", None, "metrics")
    ]


def test_rollouts_evaluations_and_metrics_of_tinker_are_found_in_one_folder() -> None:
    result = scan.scan_folders([DATA / "tinker"], ScanOptions())
    assert {(file.source, file.split, file.step, file.kind.format) for file in result.files} == {
        ("metrics.jsonl", "train", None, "metrics"),
        ("evals/checkpoint_000002/sums/trajectories.jsonl", "eval", 2, "tinker-eval"),
        ("iteration_000000/eval_test_logtree.json", "eval", 0, "tinker-logtree"),
        ("iteration_000000/eval_test_rollout_summaries.jsonl", "eval", 0, "tinker-rollouts"),
        ("iteration_000000/train_logtree.json", "train", 0, "tinker-logtree"),
        ("iteration_000000/train_rollout_summaries.jsonl", "train", 0, "tinker-rollouts"),
        ("iteration_000001/train_rollout_summaries.jsonl", "train", 1, "tinker-rollouts"),
    }  # fmt: skip
    assert result.notes == []


def test_batches_evaluations_and_results_of_skyrl_are_found_in_one_export(tmp_path: Path) -> None:
    copy_file("skyrl/dumped_evals/global_step_3_evals/unknown.jsonl", tmp_path / "dumped_evals/eval_only/unknown.jsonl")
    copy_file(
        "skyrl/dumped_data/global_step_3_training_input.pkl", tmp_path / "dumped_data/global_step_3_training_input.pkl"
    )
    assert scan_path(tmp_path) == [
        ("dumped_evals/eval_only/unknown.jsonl", "eval", 0, "skyrl"),
        ("dumped_data/global_step_3_training_input.pkl", "train", 3, "skyrl-batch"),
    ]
    files = {(source, step, form) for source, _, step, form in scan_path(DATA / "skyrl/dumped_evals")}
    assert files == {
        ("global_step_3_evals/aggregated_results.jsonl", 3, "metrics"),
        ("global_step_3_evals/openai_gsm8k.jsonl", 3, "skyrl"), ("global_step_3_evals/unknown.jsonl", 3, "skyrl"),
    }  # fmt: skip


def test_a_format_of_two_programs_has_the_kinds_of_both() -> None:
    assert [kind.pattern for kind in list_kinds("metrics")] == ["*.jsonl", "aggregated_results.jsonl"]


def test_the_hidden_folder_of_art_is_searched_and_no_other(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "data/art/wiki"
    shutil.copytree(source, tmp_path / ".art/wiki")
    shutil.copytree(source, tmp_path / ".cache/wiki")
    val = tmp_path / ".art/wiki/models/agent-1/trajectories/val"
    shutil.copytree(val.with_name("train"), val)
    files = scan.scan_folders([tmp_path], ScanOptions()).files
    assert sorted((file.source, file.split, file.step, file.kind.format) for file in files) == [
        (".art/wiki/models/agent-1/trajectories/train/0004.parquet", "train", 4, "art"),
        (".art/wiki/models/agent-1/trajectories/val/0004.parquet", "eval", 4, "art"),
    ]


def test_collected_rollouts_are_an_evaluation_and_their_sidecars_are_named() -> None:
    result = scan.scan_folders([DATA / "nemo_gym"], ScanOptions())
    assert scan_path(DATA / "nemo_gym") == [("math_trajectory_collection.jsonl", "eval", None, "nemo-gym")]
    assert result.skipped["rollouts that failed"] == ["math_trajectory_collection_failures.jsonl"]
    assert "without a training" in result.notes[0]


def test_training_data_of_miles_joins_its_rollouts_and_is_no_step_to_replay() -> None:
    result = scan.scan_folders([DATA / "miles"], ScanOptions())
    assert {(file.source, file.split, file.step, file.kind.format) for file in result.files} == {
        ("rollout_data/0.pt", "train", 0, "slime-rollout"), ("rollout_data/eval_0.pt", "eval", 0, "slime-rollout"),
        ("train_data/0_0.pt", "train", 0, "slime-train"), ("train_data/0_1.pt", "train", 0, "slime-train"),
    }  # fmt: skip
    assert [(step.path.name, step.step) for step in result.steps] == [("rollout_data", 0)]
    assert not [reason for reason in result.skipped if "slime" in reason]
