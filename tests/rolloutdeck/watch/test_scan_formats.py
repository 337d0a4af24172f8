"""Which files of which trainers `import` and `watch` take, with their split and step."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path, PurePath

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rolloutdeck.cli import entry
from rolloutdeck.cli.common.options import resolve_table_format
from rolloutdeck.protocol import columns
from rolloutdeck.watch import scan
from rolloutdeck.watch.types import ScanOptions, ScanResult

DUMPS = Path(__file__).parents[2] / "data"
CURE = "outputs-rl-{}-CodeContests.json"


def scan_folder(path: Path, options: ScanOptions | None = None) -> ScanResult:
    return scan.scan_folders([path], options or ScanOptions())


def scan_path(path: Path, options: ScanOptions | None = None) -> list[tuple[str, str, int | None, str, str]]:
    files = scan_folder(path, options).files
    return [
        (file.source, file.split, file.step, file.step_kind, file.kind.format)
        for file in files
        if "expected" not in file.source
    ]


def test_copies_of_the_steps_of_cure_are_recognized_by_their_folders() -> None:
    files = [item for item in scan_path(DUMPS / "cure") if item[4] != "cure-results"]
    assert {(step, form) for _, _, step, _, form in files} == {
        (0, "cure-outputs"), (0, "cure-data"), (1, "cure-outputs"), (1, "cure-data"),
    }  # fmt: skip
    assert {(split, kind) for _, split, _, kind, _ in files} == {("train", "iteration")}
    assert not [note for note in scan_folder(DUMPS / "cure").notes if "results" in note]  # results need no note


def test_the_steps_of_cure_are_counted_by_its_results(tmp_path: Path) -> None:
    """The files that CURE leaves after two steps: no name contains a step."""
    shutil.copytree(DUMPS / "cure/step1", tmp_path / "optimization")
    shutil.copy(
        DUMPS / "cure/step0/temp_data" / CURE.format("Qwen.Qwen2.5-7B-Instruct"), tmp_path / "optimization/temp_data"
    )
    names = sorted((tmp_path / "optimization/results").glob("*.txt"), key=lambda path: "ckpt" in path.name)
    for position, path in enumerate(names):
        os.utime(path, (1000 + position, 1000 + position))
    steps = {Path(source).name: step for source, _, step, _, _ in scan_path(tmp_path)}
    assert steps[CURE.format("Qwen.Qwen2.5-7B-Instruct")] == steps[names[0].name] == 0
    assert steps[CURE.format("ckpt.optimized")] == steps["rl_code_data.json"] == steps[names[1].name] == 1


def test_data_of_a_step_of_cure_keeps_its_step_while_the_next_is_sampled(tmp_path: Path) -> None:
    shutil.copytree(DUMPS / "cure/step1", tmp_path / "optimization")
    for path in (tmp_path / "optimization/temp_data").iterdir():
        os.utime(path, (1000, 1000))
    steps = {Path(source).name: step for source, _, step, _, _ in scan_path(tmp_path)}
    assert steps["rl_code_data.json"] == 0


def test_steps_and_splits_of_nemo_rl_are_in_its_file_names() -> None:
    files = [(split, step, form) for _, split, step, _, form in scan_path(DUMPS / "nemo_rl")]
    assert files == [("eval", 2, "nemo-rl"), ("train", 3, "nemo-rl")]


def test_the_step_of_episodes_is_in_the_name_of_their_folder_or_in_the_rows() -> None:
    assert scan_path(DUMPS / "verifiers") == [
        ("eval/traces.jsonl", "eval", None, "global_step", "verifiers"),
        ("prime/rollouts/step_3/train/all/traces.jsonl", "train", 3, "global_step", "verifiers"),
        ("prime/rollouts/step_3/train/effective/traces.jsonl", "train", 3, "global_step", "verifiers"),
    ]
    assert scan_folder(DUMPS / "verifiers").notes == []


def test_the_chunks_of_a_stream_of_prime_rl_are_episodes_of_a_training(tmp_path: Path) -> None:
    """Also if the first ones are evaluations, which are between those of the training."""
    (tmp_path / "traces").mkdir()
    episode = '{"id": "e", "run": {"work": {"type": "eval", "step": 0}}, "traces": []}\n'
    (tmp_path / "traces/00001.jsonl").write_text(episode)
    (tmp_path / "traces/00000.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    (tmp_path / "traces/rows.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    (tmp_path / "traces/index.jsonl").write_text('{"id": "e", "kind": "eval", "reward": 1.0, "line": 1}\n')
    assert scan_path(tmp_path) == [
        (f"traces/{name}", "train", None, "global_step", "verifiers") for name in ("00000.jsonl.zst", "00001.jsonl")
    ]
    assert [file.kind.grows for file in scan_folder(tmp_path).files] == [False, True]
    assert {file.split for file in scan_folder(tmp_path, ScanOptions(split="eval")).files} == {"eval"}
    assert scan_folder(tmp_path).skipped[scan.UNREAD_ZSTD_FILES] == ["traces/rows.jsonl.zst"]


def test_an_evaluation_is_recognized_by_its_episodes(tmp_path: Path) -> None:
    shutil.copytree(DUMPS / "verifiers/eval", tmp_path / "gsm8k--policy")
    assert [split for _, split, _, _, _ in scan_path(tmp_path)] == ["eval"]


def test_the_step_of_rllm_episodes_is_in_the_name_of_their_folder(tmp_path: Path) -> None:
    """Episodes of `rllm eval` have no step."""
    assert {(split, step, form) for _, split, step, _, form in scan_path(DUMPS / "rllm")} == {
        ("train", 5, "rllm-episode"), ("eval", None, "rllm-episode"),
    }  # fmt: skip
    shutil.copytree(DUMPS / "rllm/episodes/train_step_5_epoch_0", tmp_path / "episodes/val_step_10_epoch_1")
    assert {(split, step) for _, split, step, _, _ in scan_path(tmp_path)} == {("eval", 10)}


def test_tables_are_recognized_by_their_columns() -> None:
    files = [item for part in (DUMPS / "table").iterdir() for item in scan_path(part)]
    assert {(Path(source).name, step, kind, form) for source, _, step, kind, form in files} == {
        ("generations.csv", None, "global_step", "table"),
        ("generated_samples.table.json", None, "global_step", "table"),
        ("step_4.parquet", 4, "global_step", "table"),
        ("7.jsonl", 12, "policy_version", "areal"),
        ("tulu_rollouts_000000.jsonl", None, "global_step", "open-instruct"),
    }


@pytest.mark.parametrize(
    "body", ["question,answer\n1+1?,2\n", '{"question": "1+1?", "answer": "2"}\n', '{"text": "a page"}\n', "\n", "{\n"]
)
def test_a_data_set_is_no_table_of_generations(tmp_path: Path, body: str) -> None:
    (tmp_path / "data.csv").write_text(body)
    (tmp_path / "data.jsonl").write_text(body)
    assert scan_path(tmp_path) == []


def test_a_table_next_to_the_files_of_a_trainer_is_skipped_unless_its_format_is_given(tmp_path: Path) -> None:
    """The log of a reward function has the same samples again, and counts steps in another way."""
    shutil.copytree(DUMPS / "trl/plain", tmp_path / "run", ignore=shutil.ignore_patterns("*.json"))
    (tmp_path / "tap.jsonl").write_text('{"step": 7, "prompt": "2+2?", "completion": "4", "reward": 1}\n')
    result = scan_folder(tmp_path)
    assert {file.kind.format for file in result.files} == {"trl-completions"}
    assert result.skipped[scan.EXTRA_TABLES] == ["tap.jsonl"]
    assert "tap.jsonl" in {file.source for file in scan_folder(tmp_path, ScanOptions(format="table")).files}


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet"])
def test_columns_are_recognized_in_different_spellings(tmp_path: Path, name: str) -> None:
    names = ["Prompt", "Model Output", "Is-Correct", "Global Step"]
    if name.endswith(".parquet"):
        pq.write_table(pa.table({item: ["1"] for item in names}), tmp_path / name)
    else:
        (tmp_path / name).write_text("\t,"[name == "a.csv"].join(names) + "\n")
    assert [file.kind.format for file in scan_folder(tmp_path / name).files] == ["table"]
    result = columns.guess_columns(names, {})
    assert result == {"prompt": "Prompt", "response": "Model Output", "score": "Is-Correct", "step": "Global Step"}


ODD_TABLES = [
    b"frage,antwort\r1+1?,2\r",  # old line ends
    "frage,antwort\r\n1+1?,2\r\n".encode("utf-16"),
    b'"' + b"long " * 40_000 + b'",antwort\n',
]


@pytest.mark.parametrize("body", ODD_TABLES, ids=["line-ends", "utf-16", "long-name"])
def test_an_unusual_table_does_not_stop_the_scan_of_the_others(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "odd.csv").write_bytes(body)
    (tmp_path / "step_4.csv").write_text("prompt,response\n1+1?,2\n")
    result = scan_folder(tmp_path)
    assert [file.source for file in result.files] == ["step_4.csv"]
    assert "odd.csv" in {name for names in result.skipped.values() for name in names}


def test_a_table_with_old_line_ends_is_recognized_by_its_columns(tmp_path: Path) -> None:
    (tmp_path / "step_4.csv").write_bytes(b"prompt,response\r1+1?,2\r")
    assert [file.step for file in scan_folder(tmp_path).files] == [4]


def test_mapped_columns_make_any_table_one_of_generations(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("frage,antwort\n1+1?,2\n")
    form, columns = resolve_table_format("prompt=frage,response=antwort", "")
    (only,) = scan_folder(tmp_path, ScanOptions(format=form, columns=columns)).files
    assert (only.kind.format, only.columns) == ("table", "prompt=frage,response=antwort")


@pytest.mark.parametrize(
    ("mapped", "expected"),
    [
        ("areal", ("areal", "")), ("open-instruct", ("open-instruct", "")), ("openrlhf", ("table", "openrlhf")),
        ("", ("", "")), ("response=a", ("table", "response=a")),
    ],
)  # fmt: skip
def test_the_name_of_a_trainer_can_be_given_as_its_column_mapping(mapped: str, expected: tuple[str, str]) -> None:
    assert resolve_table_format(mapped, "") == expected


def test_a_mapping_of_an_unknown_part_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("frage,antwort\n1+1?,2\n")
    server = ["--url", "http://127.0.0.1:1", "--token", "rd_none"]
    assert entry.main(["import", str(tmp_path), "--project", "p", "--run", "a", "--map", "promt=frage", *server]) == 2
    message = capsys.readouterr().err
    assert "`promt=frage` is not a column mapping" in message and message.count("\n") == 1


def test_files_of_other_tools_are_found_with_the_step_and_split_in_their_names(tmp_path: Path) -> None:
    """Evaluations of checkpoints, completions of ms-swift, and tables in JSON files among those of settings."""
    others = DUMPS / "others"
    for name, into in (
        ("evaluations/samples_gsm8k_cot_2026-01-01T00-00-00.jsonl", "evals/checkpoint-400/model"),
        ("evaluations/details_aime24_2026-01-01T00.parquet", "evals/global_step_40/model"),
        ("evaluations/2026-01-01_math_abc.eval", "logs"),
        ("evaluations/2026-01-01_math_abc.json", "logs"),
        ("folded/completions.jsonl", "swift"),
        ("batch/batch_68a1_output.jsonl", "judged/step_12"),
    ):
        (tmp_path / "run" / into).mkdir(parents=True, exist_ok=True)
        shutil.copy(others / name, tmp_path / "run" / into)
    (tmp_path / "run/swift/args.json").write_text('{"model": "m", "prompt": "", "template": {"text": ""}}')
    assert {(PurePath(item[0]).name, *item[1:3], item[4]) for item in scan_path(tmp_path / "run")} == {
        ("samples_gsm8k_cot_2026-01-01T00-00-00.jsonl", "eval", 400, "lm-eval"),
        ("details_aime24_2026-01-01T00.parquet", "eval", 40, "lighteval"),
        ("2026-01-01_math_abc.eval", "eval", None, "inspect"),
        ("2026-01-01_math_abc.json", "eval", None, "inspect"),
        ("completions.jsonl", "train", None, "swift"),
        ("batch_68a1_output.jsonl", "train", 12, "openai-batch"),
    }
    assert scan_folder(tmp_path / "run").skipped[".json files"] == ["swift/args.json"]
    shutil.copytree(
        others / "folded", tmp_path / "tables", ignore=shutil.ignore_patterns("completions*", "*.expected.*")
    )
    shutil.copy(others / "val_step20.json", tmp_path / "tables")
    assert {(PurePath(item[0]).name, *item[1:3], item[4]) for item in scan_path(tmp_path / "tables")} == {
        ("by_row_name.json", "train", None, "table"), ("groups.jsonl", "train", None, "table"),
        ("main_generation.parquet", "train", None, "table"), ("report.json", "train", None, "table"),
        ("results.json", "train", None, "table"), ("val_generations.table.json", "eval", None, "table"),
        ("val_step20.json", "eval", 20, "table"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("rows.jsonl", {"question": "q", "responses": ["x" * (5 << 20)], "score": [1]}),
        ("completions.jsonl", {"step": ["1"], "prompt": ["x" * (5 << 20)], "completion": ["a"]}),
        ("completions.jsonl", {"gen_step": 7, "prompt": "q", "completion": "a", "reward": 1.0}),
    ],
)
def test_a_first_line_of_many_megabytes_is_recognized_by_its_first_keys(
    tmp_path: Path, name: str, row: dict[str, object]
) -> None:
    (tmp_path / name).write_text(json.dumps(row) + "\n")
    assert [item[4] for item in scan_path(tmp_path)] == ["swift" if name.startswith("completions") else "table"]


def test_rows_after_a_row_of_settings_are_found_and_other_tables_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"config": {}}\n{"question": "q", "response": "a", "score": 1}\n')
    (tmp_path / "20260101.jsonl").write_text('{"question": "q", "response": "a", "score": 1}\n')
    (tmp_path / "losses.table.json").write_text('{"columns": ["step", "loss"], "data": [[1, 0.5]]}')
    assert [item[:3] for item in scan_path(tmp_path)] == [
        ("20260101.jsonl", "train", None),
        ("rows.jsonl", "train", None),
    ]
    assert scan_folder(tmp_path).skipped == {scan.UNKNOWN_COLUMN_TABLES: ["losses.table.json"]}


@pytest.mark.parametrize("part", [b'"\\', b'"\\"', b'"', b"\\", b"{", b'{"response":[', b'"a" '])
def test_a_long_unfinished_line_is_parsed_only_once(part: bytes) -> None:
    """In quadratic time, a million bytes would take hours."""
    start = b'{"' + part * ((1 << 20) // len(part))
    assert not any(map(columns.has_generation_columns, columns.find_row_keys(start)))


def test_results_of_cure_without_the_lines_of_sample_py_are_recognized_and_counted(tmp_path: Path) -> None:
    shutil.copytree(DUMPS / "cure/step1/results", tmp_path / "optimization/results")
    results = sorted((tmp_path / "optimization/results").glob("*.txt"), key=lambda path: "ckpt" in path.name)
    for position, path in enumerate(results):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not line.startswith("code response length")))
        os.utime(path, (1000 + position, 1000 + position))
    found = {Path(source).name: (step, form) for source, _, step, _, form in scan_path(tmp_path)}
    assert found == {results[0].name: (0, "cure-results"), results[1].name: (1, "cure-results")}
