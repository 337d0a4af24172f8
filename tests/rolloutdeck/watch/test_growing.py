"""Growing files of samples, and files without a step in their names, as a watch sends them."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
import zstandard

from rolloutdeck.watch import file_endings
from rolloutdeck.watch import follower as follower_module
from rolloutdeck.watch.compression import read_plain_size
from rolloutdeck.watch.file_parts import FilePart
from rolloutdeck.watch.follower import Follower, WatchedFolder
from rolloutdeck.watch.state import WatchState
from rolloutdeck.watch.types import ScanOptions
from tests.rolloutdeck.watch.trainer import build_metric_line

DUMPS = Path(__file__).parents[2] / "data"


@pytest.fixture
def follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Follower:
    monkeypatch.setattr(follower_module, "QUIET_SECONDS", 0.0)
    (tmp_path / "run").mkdir()
    state = WatchState.load(tmp_path / "home", ("a",), "files")
    return Follower([WatchedFolder(tmp_path / "run")], tmp_path / "run", state, ScanOptions(), lambda message: None)


def send_ready_parts(follower: Follower) -> list[FilePart]:
    """Sends all that is ready after two scans: the first finds the files, the second that they are unchanged."""
    follower.find_changed()
    pieces = []
    for candidate in follower.find_changed():
        for piece in follower.read_parts(candidate):
            follower.mark_sent(piece)
            pieces.append(piece)
    return pieces


def test_episodes_are_sent_line_by_line_with_the_step_of_their_folder(follower: Follower, tmp_path: Path) -> None:
    lines = (DUMPS / "verifiers/prime/rollouts/step_3/train/all/traces.jsonl").read_bytes().splitlines(keepends=True)
    path = tmp_path / "run/rollouts/step_3/train/all/traces.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(lines[0] + lines[1][:100])
    (first,) = send_ready_parts(follower)
    with path.open("ab") as file:
        file.write(lines[1][100:] + lines[2])
    (second,) = send_ready_parts(follower)
    assert (first.body, second.body) == (lines[0], lines[1] + lines[2])
    assert (first.offset, second.offset) == (0, len(lines[0]))
    query = second.query()
    assert (query["step"], query["split"], query["format"], query["columns"]) == (3, "train", "verifiers", None)


def test_a_complete_last_line_without_a_line_break_is_sent_and_the_line_break_later_is_no_line(
    follower: Follower, tmp_path: Path
) -> None:
    path, lines = tmp_path / "run/metrics.jsonl", [build_metric_line(step).rstrip().encode() for step in (1, 2, 3)]
    path.write_bytes(b"\n".join(lines[:2]))
    assert [part.body for part in send_ready_parts(follower)] == [lines[0] + b"\n"]
    assert [part.body for part in send_ready_parts(follower)] == [lines[1]]
    assert follower.find_incomplete_lines() == []
    path.write_bytes(b"\n".join(lines[:2]) + b"\n")
    assert send_ready_parts(follower) == []
    path.write_bytes(b"\n".join(lines) + b"\n" + lines[0][:9])
    assert [part.body for part in send_ready_parts(follower)] == [lines[2] + b"\n"]
    assert (follower.state.last_steps, follower.find_incomplete_lines()) == ({"metrics/global_step": 3}, [path.name])
    assert send_ready_parts(follower) == []


def test_a_last_line_without_a_line_break_waits_until_the_file_is_quiet(
    follower: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "QUIET_SECONDS", 1000.0)
    (tmp_path / "run/metrics.jsonl").write_text(build_metric_line(1).rstrip())
    assert (send_ready_parts(follower), follower.pending_count) == ([], 1)


@pytest.mark.parametrize("has_new_lines", [True, False])
@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_growing_file_that_is_compressed_loses_no_lines(
    follower: Follower, tmp_path: Path, has_new_lines: bool, ending: str
) -> None:
    lines = (DUMPS / "verifiers/prime/rollouts/step_3/train/all/traces.jsonl").read_bytes().splitlines(keepends=True)
    path = tmp_path / "run/rollouts/step_3/train/all/traces.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(lines[0])
    os.utime(path, (1000, 1000))
    assert len(send_ready_parts(follower)) == 1
    compress = gzip.compress if ending == ".gz" else zstandard.compress
    compressed, body = path.with_name(f"traces.jsonl{ending}"), compress(b"".join(lines[: 1 + has_new_lines]))
    compressed.write_bytes(body)
    assert send_ready_parts(follower) == []  # the file itself is still there
    path.unlink()
    pieces = [(piece.body, piece.offset, piece.file.step, piece.attempt) for piece in send_ready_parts(follower)]
    assert pieces == ([(body, None, 3, "files")] if has_new_lines else [])
    assert send_ready_parts(follower) == []
    compressed.write_bytes(compress(b"".join(lines)))
    assert len(send_ready_parts(follower)) == 1  # the copy itself has changed


@pytest.mark.parametrize("size", [1, 255, 256, 300, 70_000])
def test_the_plain_size_of_a_compressed_file_is_read_from_it(tmp_path: Path, size: int) -> None:
    plain = os.urandom(size)
    for name, body in (("a.gz", gzip.compress(plain)), ("a.zst", zstandard.compress(plain))):
        (tmp_path / name).write_bytes(body)
        assert read_plain_size(tmp_path / name) == size
    stream = zstandard.ZstdCompressor().compressobj()  # does not know the size when it writes the header
    (tmp_path / "a.zst").write_bytes(stream.compress(plain) + stream.flush())
    assert read_plain_size(tmp_path / "a.zst") is None


def test_a_growing_file_that_becomes_a_link_after_its_check_is_not_read(follower: Follower, tmp_path: Path) -> None:
    path, secret = tmp_path / "run/metrics.jsonl", tmp_path / "secret.jsonl"
    path.write_text(build_metric_line(1))
    secret.write_text(build_metric_line(2))
    (candidate,) = follower.find_changed()
    path.unlink()
    path.symlink_to(secret)
    assert list(follower.read_parts(candidate)) == [] and follower.pending_count == 1


def test_lines_that_were_sent_are_recorded_even_if_their_file_is_gone(follower: Follower, tmp_path: Path) -> None:
    path = tmp_path / "run/metrics.jsonl"
    path.write_text(build_metric_line(1))
    (candidate,) = follower.find_changed()
    piece = next(follower.read_parts(candidate))
    path.unlink()
    follower.mark_sent(piece)
    assert follower.state.files["metrics.jsonl"].offset == len(build_metric_line(1))


def test_a_list_that_is_still_being_written_is_sent_when_it_is_complete(follower: Follower, tmp_path: Path) -> None:
    body = (DUMPS / "cure/step0/temp_data/rl_code_data.json").read_bytes()
    path = tmp_path / "run/temp_data/rl_code_data.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(body[: body.rindex(b"},") + 1])
    assert send_ready_parts(follower) == []
    path.write_bytes(body)
    os.utime(path, (2000, 2000))
    (piece,) = send_ready_parts(follower)
    assert (piece.size, piece.file.step, piece.attempt) == (len(body), 0, "files")


def test_a_file_that_is_rewritten_at_each_step_is_the_next_step(follower: Follower, tmp_path: Path) -> None:
    results, data = tmp_path / "run/results/results-rl-m-d.txt", tmp_path / "run/temp_data/rl_code_data.json"
    results.parent.mkdir(parents=True)
    data.parent.mkdir()
    steps = []
    for step, reward in enumerate(("0.5", "-0.5", "1.0")):
        results.write_text("code response length: 1, case response length: 2\ncode acc: 1\n" * (step + 1))
        data.write_text(f'[{{"prompt": "q", "response": "a", "reward": {reward}}}]')
        steps += [(piece.file.kind.content, piece.file.step, piece.attempt) for piece in send_ready_parts(follower)]
    assert [result for result in steps if result[0] == "samples"] == [("samples", step, "files") for step in range(3)]
    assert [result for result in steps if result[0] == "metrics"] == [("metrics", 0, "files")] * 3  # their first step's


def test_late_results_start_no_new_attempt(follower: Follower, tmp_path: Path) -> None:
    base, tuned = (tmp_path / f"run/results/results-rl-{model}-d.txt" for model in ("m", "ckpt.optimized"))
    base.parent.mkdir(parents=True)
    parts = []
    for path in (base, tuned, base):
        with path.open("a") as file:
            file.write("code response length: 1, case response length: 2\n")
        parts += [(piece.file.step, piece.file.step_kind, piece.attempt) for piece in send_ready_parts(follower)]
    assert parts == [(0, "iteration", "files"), (1, "iteration", "files"), (0, "iteration", "files")]


def test_a_line_that_is_too_long_is_skipped_and_named_once(
    follower: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_endings, "MAX_LINE_BYTES", 200_000)
    monkeypatch.setattr(file_endings, "MAX_PART_BYTES", 100_000)
    messages: list[str] = []
    follower.on_message = messages.append
    lines = (DUMPS / "verifiers/prime/rollouts/step_3/train/all/traces.jsonl").read_bytes().splitlines(keepends=True)
    path = tmp_path / "run/rollouts/step_3/train/all/traces.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(lines[0] + b"x" * 300_000)
    assert [part.body for part in send_ready_parts(follower)] == [lines[0]]
    with path.open("ab") as file:
        file.write(b"x" * 50_000 + b"\n")
    assert send_ready_parts(follower) == []
    with path.open("ab") as file:
        file.write(lines[1] + lines[2])
    assert [part.body for part in send_ready_parts(follower)] == [lines[1] + lines[2]]
    assert len(messages) == 1 and "a line of 0 MB is skipped" in messages[0]
