"""A scan of folders: which dump files it finds, with their split and step, and what it skips."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.errors import UsageError
from rolloutdeck.trainer_api.types import FileHead
from rolloutdeck.watch import scan
from rolloutdeck.watch.types import ScanOptions

DUMPS = Path(__file__).parents[2] / "data" / "verl_jsonl"


def write_rows(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def sample_row(step: int, **more: object) -> dict[str, object]:
    return {"input": "1+1", "output": "2", "gts": "2", "score": 1.0, "step": step, **more}


def scan_path(path: Path, options: ScanOptions | None = None) -> list[tuple[str, str, int | None, str]]:
    files = scan.scan_folders([path], options or ScanOptions()).files
    return [(file.source, file.split, file.step, file.kind.format) for file in files]


def test_a_real_run_is_found_with_split_step_and_format_in_the_order_of_steps() -> None:
    files = scan_path(DUMPS / "v0")
    assert files[0] == ("metrics.jsonl", "train", None, "verl-metrics")
    assert [(split, step) for _, split, step, _ in files[1:]] == [
        ("eval", 0), ("train", 1), ("eval", 2), ("train", 2), ("train", 3), ("eval", 4), ("train", 4), ("eval", 5),
        ("train", 5),
    ]  # fmt: skip


def test_links_to_folders_are_named_and_not_followed(tmp_path: Path) -> None:
    write_rows(tmp_path / "other/2.jsonl", sample_row(2))
    write_rows(tmp_path / "run/1.jsonl", sample_row(1))
    (tmp_path / "run/linked").symlink_to(tmp_path / "other")
    (tmp_path / "run/.hidden").symlink_to(tmp_path / "other")
    result = scan.scan_folders([tmp_path / "run", tmp_path / "run/1.jsonl"], ScanOptions())
    assert result.skipped == {scan.LINKED_FOLDERS: ["linked"]} and len(result.files) == 1
    assert scan_path(tmp_path / "run/linked") == [("2.jsonl", "train", 2, "verl-jsonl")]


def test_an_unreadable_folder_is_named_once_and_a_missing_one_or_a_pipe_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions do not stop root, who may run the tests."""
    run, scandir = tmp_path / "run", os.scandir
    codes = {run / "closed": errno.EACCES, run / "gone": errno.ENOENT}

    def fail_for_some(path: Any = ".") -> Any:
        if isinstance(path, (str, Path)) and (code := codes.get(Path(path))):
            raise OSError(code, os.strerror(code), str(path))
        return scandir(path)

    for folder in codes:
        folder.mkdir(parents=True)
    write_rows(run / "1.jsonl", sample_row(1))
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(os, "scandir", fail_for_some)
    errors: list[OSError] = []
    result = scan.scan_folders([run, run / "closed", tmp_path / "pipe"], ScanOptions(), errors.append)
    assert result.skipped == {scan.UNREADABLE_FOLDERS: ["run/closed"]} and len(result.files) == 1
    assert {error.errno for error in errors} == {errno.EACCES}


def test_a_metrics_file_is_recognized_by_its_rows_even_if_its_name_is_a_number(tmp_path: Path) -> None:
    write_rows(tmp_path / "7.jsonl", {"step": 1, "data": {"loss": 0.5}})
    assert scan_path(tmp_path) == [("7.jsonl", "train", None, "verl-metrics")]


def test_a_file_whose_first_line_is_truncated_is_still_recognized(tmp_path: Path) -> None:
    write_rows(tmp_path / "3.jsonl", sample_row(3)).write_bytes(
        b'{"input": "1+\n' + json.dumps(sample_row(3)).encode() + b"\n"
    )
    assert [step for _, _, step, _ in scan_path(tmp_path)] == [3]


def test_a_first_line_of_many_megabytes_is_recognized_by_its_first_key(tmp_path: Path) -> None:
    write_rows(tmp_path / "1.jsonl", sample_row(1) | {"output": "x" * (5 << 20)})
    assert [step for _, _, step, _ in scan_path(tmp_path)] == [1]


@pytest.mark.parametrize(
    ("folder", "split"),
    [
        ("val", "eval"), ("validation_data", "eval"), ("run7/eval", "eval"), ("test/gsm8k", "eval"),
        ("val_rollouts", "eval"), ("rollout", "train"), ("rollouts-v2", "train"), ("Train", "train"),
        ("test/rollout", "train"),
    ],
)  # fmt: skip
def test_the_innermost_folder_that_names_a_split_decides_it(tmp_path: Path, folder: str, split: str) -> None:
    write_rows(tmp_path / folder / "4.jsonl", sample_row(4))
    assert [item[1] for item in scan_path(tmp_path)] == [split]


def test_the_given_folder_counts_only_when_its_name_is_nothing_but_a_split(tmp_path: Path) -> None:
    write_rows(tmp_path / "test-lr3" / "4.jsonl", sample_row(4))
    write_rows(tmp_path / "val_data" / "4.jsonl", sample_row(4))
    assert [item[1] for item in scan_path(tmp_path / "test-lr3")] == ["train"]
    assert [item[1] for item in scan_path(tmp_path / "val_data")] == ["eval"]


def test_without_a_split_in_the_names_step_zero_means_eval_and_a_note_says_so(tmp_path: Path) -> None:
    for step in (0, 5):
        write_rows(tmp_path / "a" / f"{step}.jsonl", sample_row(step, reward=1.0))
    result = scan.scan_folders([tmp_path], ScanOptions())
    assert {file.split for file in result.files} == {"eval"}
    assert "step 0" in result.notes[0] and "--split" in result.notes[0]


def test_the_key_reward_alone_does_not_mean_eval(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_rows(tmp_path / "a" / f"{step}.jsonl", sample_row(step, reward=1.0))
    assert {item[1] for item in scan_path(tmp_path)} == {"train"}


def test_the_option_split_wins_over_names(tmp_path: Path) -> None:
    write_rows(tmp_path / "val" / "4.jsonl", sample_row(4))
    assert scan_path(tmp_path, ScanOptions(split="train"))[0][1] == "train"


def test_two_folders_with_the_same_steps_of_one_split_give_a_note_about_the_overlap(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_rows(tmp_path / folder / "1.jsonl", sample_row(1))
    assert any("overlap: " in note for note in scan.scan_folders([tmp_path], ScanOptions()).notes)


def test_a_note_about_many_folders_is_one_sentence(tmp_path: Path) -> None:
    for position, folder in enumerate("abcdefg"):
        for step in (position, position + 1):  # each shares a step with the next
            write_rows(tmp_path / folder / f"{step + 1}.jsonl", sample_row(step + 1))
    write_rows(tmp_path / "z" / "99.jsonl", sample_row(99))
    split_note, overlap_note = scan.scan_folders([tmp_path], ScanOptions()).notes
    assert split_note.startswith(
        f"{tmp_path}/a, {tmp_path}/b, {tmp_path}/c, {tmp_path}/d and 4 more were treated as train: "
    )
    assert overlap_note.startswith(f"{tmp_path}/a, {tmp_path}/b, {tmp_path}/c, {tmp_path}/d and 3 more overlap: ")
    assert "more than one of them has train step 2," in overlap_note


def test_each_split_may_have_its_own_step_kind(tmp_path: Path) -> None:
    write_rows(tmp_path / "val" / "513.jsonl", sample_row(513))
    write_rows(tmp_path / "rollout" / "2.jsonl", sample_row(2))
    files = scan.scan_folders([tmp_path], ScanOptions(step_kinds={"eval": "feed_index"})).files
    assert {file.split: file.step_kind for file in files} == {"train": "global_step", "eval": "feed_index"}


def test_other_files_are_skipped_with_the_reason(tmp_path: Path) -> None:
    write_rows(tmp_path / "1.jsonl", sample_row(1))
    write_rows(tmp_path / "log.jsonl", {"message": "hello"})
    for name in ("2.jsonl", "notes.txt", "gen_batch.dp", "LICENSE", ".hidden"):
        (tmp_path / name).touch()
    skipped = scan.scan_folders([tmp_path], ScanOptions()).skipped
    assert skipped.pop(next(reason for reason in skipped if "rollout-skip" in reason)) == ["gen_batch.dp"]
    assert skipped == {
        scan.UNKNOWN_FORMAT_FILES: ["log.jsonl"],
        "empty files": ["2.jsonl"],
        ".txt files": ["notes.txt"],
        "files without a suffix": ["LICENSE"],
    }


def test_several_folders_have_sources_below_the_folder_they_share(tmp_path: Path) -> None:
    for folder in ("rollout", "val"):
        write_rows(tmp_path / folder / "1.jsonl", sample_row(1))
    files = scan.scan_folders([tmp_path / "rollout", tmp_path / "val"], ScanOptions()).files
    assert sorted(item.source for item in files) == ["rollout/1.jsonl", "val/1.jsonl"]


@pytest.mark.parametrize(
    ("name", "is_folder"),
    [("qwen2.5-7b", True), ("test-qwen2.5", True), ("plain", True), ("metrics.jsonl", False), ("1.jsonl.zst", False)],
)
def test_a_path_has_the_same_base_before_and_after_it_is_created(tmp_path: Path, name: str, is_folder: bool) -> None:
    path = tmp_path / name
    before = scan.find_base_folder([path])
    if is_folder:
        path.mkdir()
    else:
        path.touch()
    assert before == scan.find_base_folder([path]) == (path if is_folder else tmp_path)


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        scan.scan_folders([tmp_path / "nowhere"], ScanOptions())


def test_a_deeply_nested_line_is_no_dump_and_no_crash() -> None:
    assert FileHead.from_bytes(b"[" * 100_000 + b"\n").rows == ()


def test_the_numbered_folder_of_an_incomplete_step_can_be_scanned(tmp_path: Path) -> None:
    write_rows(tmp_path / "step" / "0" / "tq_batch.pt")
    result = scan.scan_folders([tmp_path / "step" / "0"], ScanOptions())
    assert [source for sources in result.skipped.values() for source in sources] == ["meta.json"]
