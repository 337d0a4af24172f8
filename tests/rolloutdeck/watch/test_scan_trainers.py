from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rolloutdeck.watch import scan
from rolloutdeck.watch.file_endings import is_complete_file
from rolloutdeck.watch.types import ScanOptions

DATA = Path(__file__).parents[2] / "data"


def scan_path(path: Path, choice: ScanOptions | None = None) -> list[tuple[str, str, int | None, str]]:
    files = scan.scan_folders([path], choice or ScanOptions()).files
    return [(file.source, file.split, file.step, file.kind.format) for file in files]


def copied(name: str, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(DATA / name, target)
    return target


def test_completions_are_of_the_step_in_their_name_and_the_person_is_told_what_an_eval_does() -> None:
    survey = scan.scan_folders([DATA / "trl" / "plain"], ScanOptions())
    assert scan_path(DATA / "trl" / "plain") == [
        ("completions/completions_00004.parquet", "train", 4, "trl-completions")
    ]
    assert "TRL writes the rows of an eval into the train file of its step" in survey.notes[0]


def test_rollouts_evals_and_train_dumps_are_told_apart_and_count_rollouts() -> None:
    survey = scan.scan_folders([DATA / "slime"], ScanOptions())
    assert {(file.source, file.split, file.step, file.kind.format) for file in survey.files} == {
        ("rollout_data/0.pt", "train", 0, "slime-rollout"), ("rollout_data/1.pt", "train", 1, "slime-rollout"),
        ("rollout_data/2.pt", "train", 2, "slime-rollout"), ("rollout_data/eval_0.pt", "eval", 0, "slime-rollout"),
        ("train_data/0_0.pt", "train", 0, "slime-train"),
    }  # fmt: skip
    assert {file.step_kind for file in survey.files} == {"rollout_id"}
    assert survey.notes == []  # a train dump joins its rollout: nothing is added up


def test_a_name_without_the_step_leaves_it_to_the_file(tmp_path: Path) -> None:
    copied("slime/rollout_data/1.pt", tmp_path / "dump.pt")
    copied("slime/rollout_data/eval_0.pt", tmp_path / "dump-eval_0.pt")
    assert scan_path(tmp_path) == [
        ("dump-eval_0.pt", "eval", None, "slime-rollout"), ("dump.pt", "train", None, "slime-rollout"),
    ]  # fmt: skip


def test_batches_to_load_again_are_of_the_split_of_their_folder(tmp_path: Path) -> None:
    for split in ("train", "val"):
        copied("roll/mock/train/step_000001.pkl", tmp_path / "mock" / split / "step_000001.pkl")
    copied("roll/rlvr_jsonl/rollout_dump_data.step_1.jsonl", tmp_path / "rollout" / "rollout_dump_data.step_1.jsonl")
    assert sorted(scan_path(tmp_path)) == [
        ("mock/train/step_000001.pkl", "train", 1, "roll-mock"), ("mock/val/step_000001.pkl", "eval", 1, "roll-mock"),
        ("rollout/rollout_dump_data.step_1.jsonl", "train", 1, "roll-jsonl"),
    ]  # fmt: skip
    assert scan.scan_folders([tmp_path], ScanOptions()).notes == []


def test_other_files_with_such_names_are_left_out(tmp_path: Path) -> None:
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
def test_a_file_that_is_still_being_written_is_not_whole(name: str, tmp_path: Path) -> None:
    path = copied(name, tmp_path / Path(name).name)
    size = path.stat().st_size
    with path.open("r+b") as file:
        assert is_complete_file(file, size, path.suffix)
        file.truncate(size * 2 // 3)
        assert not is_complete_file(file, size * 2 // 3, path.suffix)
