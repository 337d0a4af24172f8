"""The spool of one process: it has complete files only, and counts what its limit or a full disk drops."""

from __future__ import annotations

import errno
import json
import logging
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolloutdeck.client import spool, writer, writer_items
from rolloutdeck.client.rows import RowBatch
from rolloutdeck.client.upload.sync import sync_spools
from rolloutdeck.lib.log import OnceLogger
from rolloutdeck.protocol import wire
from tests.rolloutdeck.support.fake_server import Receiver, wait_until
from tests.rolloutdeck.support.programs import HEADER, Start, create_abandoned_spool, is_complete
from tests.support.patching import patch_everywhere


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 128 KiB, where this may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], capture_output=True)
    if done.returncode:
        pytest.skip("mounting needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_kill_leaves_no_truncated_file_with_a_final_name(
    connected_receiver: Receiver, spool_root: Path, tmp_path: Path
) -> None:
    connected_receiver.mode = "500"
    for after in (1, 4, 9):
        folder = create_abandoned_spool(spool_root, after=after)
        for file in spool.list_spool_files(folder):
            header, start = spool.read_spool_header(file.path)
            body = file.path.read_bytes()[start:]
            assert len(body) == header["bytes"] and (file.kind != "dump" or is_complete(body))
        folder.rename(tmp_path / f"seen-{after}")


def test_a_full_spool_drops_the_newest_counts_it_and_takes_more_when_there_is_room(
    start: Start, connected_receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    connected_receiver.mode = "500"
    run = start(spool_bytes=40_000)
    for step in range(10):
        run.log_samples([{"response": "x" * 9_000}], step=step)
    run._threads.writer.flush(10)
    connected_receiver.mode = "ok"
    wait_until(lambda: not run._threads.spool.list_files())
    assert [query["step"] for _, query, _ in connected_receiver.dumps] == ["0", "1", "2", "3"]
    run.log_samples([{"response": "x"}], step=11)
    run.finish()
    assert connected_receiver.dumps[-1][1]["step"] == "11"
    assert connected_receiver.posted("/heartbeat/")[-1]["dropped"] == {
        run._threads.spool.name: {"samples: the spool is full": 6}
    }
    assert len([record for record in caplog.records if "the spool is full" in record.getMessage()]) == 1


def test_a_full_disk_loses_only_what_does_not_fit(
    start: Start, connected_receiver: Receiver, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_SPOOL", str(small_disk / "spool"))
    connected_receiver.mode = "500"
    run = start()
    for step in range(10):
        run.log_samples([{"response": "x" * 30_000}], step=step)
    run._threads.writer.flush(10)
    stored = len([file for file in run._threads.spool.list_files() if file.kind == "dump"])
    assert 0 < stored < 10
    connected_receiver.mode = "ok"
    wait_until(lambda: len(connected_receiver.dumps) == stored)
    run.log_samples([{"response": "y"}], step=11)
    run.finish()
    assert [int(query["step"]) for _, query, _ in connected_receiver.dumps] == [*range(stored), 11]
    [dropped] = connected_receiver.posted("/heartbeat/")[-1]["dropped"].values()
    assert dropped == {"samples: the spool's disk is full": 10 - stored}


def test_losses_on_a_full_disk_and_the_end_of_the_run_are_reported_by_a_later_sync(
    start: Start, connected_receiver: Receiver, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_SPOOL", str(small_disk / "spool"))
    connected_receiver.mode = "500"
    run = start()
    run.log_samples([{"response": "x"}], step=1)
    run._threads.writer.flush(10)
    with (small_disk / "other").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(512)):
            pass
    for step in (2, 3):
        run.log_samples([{"response": "x" * 9_000}], step=step)
    run.finish(timeout=0)
    connected_receiver.mode = "ok"
    result = sync_spools([small_disk / "spool"])  # the disk is still full
    assert (result.waiting, result.live_spools, result.error) == (0, 0, "")
    assert connected_receiver.posted("/finish/")[-1]["outcome"] == "finished"
    assert [query["step"] for _, query, _ in connected_receiver.dumps] == ["1"]
    [dropped] = connected_receiver.posted("/heartbeat/")[-1]["dropped"].values()
    assert dropped == {"samples: the spool's disk is full": 2}


def test_a_spool_that_cannot_be_created_is_counted_and_training_continues(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ROLLOUTDECK_SPOOL", str(tmp_path / "file" / "spool"))
    run = start()
    run.log_samples([{"response": "x"}], step=1)
    run._threads.writer.flush(10)
    assert sum(run._threads.spool.dropped.values()) == 2


def test_lost_items_are_counted_whatever_objects_describe_them(start: Start, connected_receiver: Receiver) -> None:
    torch = pytest.importorskip("torch")
    run, mask = start(), torch.tensor([True, False, True])
    run.lose("no reward", mask.sum())
    run.lose("no reward", np.int64(3))
    run.lose(ValueError("a\nb\x00 \ud800" + "x" * 100), mask)
    run.lose(KeyError())
    run.lose("nothing", -5)
    run.lose(None, float("nan"))
    run.lose("huge", 10**30)
    run.log_samples([{"response": "x"}], step=1)
    run.finish()
    assert [query["step"] for _, query, _ in connected_receiver.dumps] == ["1"]
    assert connected_receiver.posted("/heartbeat/")[-1]["dropped"][run._threads.spool.name] == {
        "no reward": 5,
        "a?b? ?" + "x" * 74: 1,
        "KeyError": 1,
        "None": 1,
        "huge": 2**63 - 1,
    }


def test_only_the_first_of_many_reasons_are_counted_by_name(spool_root: Path) -> None:
    own_spool = spool.Spool(spool_root, "run-1", "a")
    for number in range(spool.MAX_REASONS + 20):
        own_spool.count_dropped(f"reason {number}", 2)
    own_spool.count_dropped("reason 3")
    own_spool.count_dropped("samples: the spool is full", 4)
    assert len(own_spool.dropped) == spool.MAX_REASONS + 2
    assert (own_spool.dropped["reason 3"], own_spool.dropped["other reasons"]) == (3, 40)
    assert own_spool.dropped["samples: other reasons"] == 4


@pytest.mark.parametrize("nested", [False, True])
def test_a_backlog_of_metrics_is_written_in_files_that_fit_into_a_request(spool_root: Path, nested: bool) -> None:
    own_spool = spool.Spool(spool_root, "run-1", "a")
    spool_writer = writer.SpoolWriter(own_spool, HEADER, OnceLogger(), lambda: None)
    values = {f"actor/layer-{number:04}/gradient/norm": 0.123456789 + number for number in range(1000)}
    for step in range(500):
        point = {"values": {"train": values} if nested else values, "step": step}
        spool_writer.enqueue(writer_items.MetricsItem("a", [point]))
    spool_writer.flush(60)
    sizes = [file.size for file in own_spool.list_files()]
    assert sum(sizes) > wire.MAX_JSON_BYTES and max(sizes) < 4 << 20 and len(sizes) < 50
    bodies = [file.path.read_bytes().partition(b"\n")[2] for file in own_spool.list_files()]
    assert [point["step"] for body in bodies for point in json.loads(body)["points"]] == list(range(500))


def test_a_point_larger_than_a_file_of_metrics_is_written_alone(spool_root: Path) -> None:
    own_spool = spool.Spool(spool_root, "run-1", "a")
    spool_writer = writer.SpoolWriter(own_spool, HEADER, OnceLogger(), lambda: None)
    for step, count in enumerate((1, 1, 100_000, 1, 1)):
        values = {f"metric-{number}": 1.5 for number in range(count)}
        spool_writer.enqueue(writer_items.MetricsItem("a", [{"values": values, "step": step}]))
    spool_writer.flush(60)
    bodies = [json.loads(file.path.read_bytes().partition(b"\n")[2]) for file in own_spool.list_files()]
    assert [[point["step"] for point in body["points"]] for body in bodies] == [[0, 1], [2], [3, 4]]
    assert not own_spool.dropped


def test_metrics_that_change_while_they_wait_do_not_end_the_writer(spool_root: Path) -> None:
    class Changing(dict[str, float]):
        reads = 0

        def values(self) -> Any:
            self.reads += 1
            if self.reads > 1:
                raise RuntimeError("dictionary changed size during iteration")
            return super().values()

    own_spool = spool.Spool(spool_root, "run-1", "a")
    spool_writer = writer.SpoolWriter(own_spool, HEADER, OnceLogger(), lambda: None)
    for step in (1, 2):
        spool_writer.enqueue(writer_items.MetricsItem("a", [{"values": {"train": Changing(loss=1.0)}, "step": step}]))
    assert spool_writer.flush(5) and spool_writer._waiting_bytes == 0
    [file] = own_spool.list_files()
    points = json.loads(file.path.read_bytes().partition(b"\n")[2])["points"]
    assert [point["values"] for point in points] == [{"train/loss": 1.0}] * 2 and not own_spool.dropped


def test_rows_that_exceed_the_queue_of_the_writer_are_dropped_and_counted(spool_root: Path) -> None:
    own_spool = spool.Spool(spool_root, "run-1", "a")
    spool_writer = writer.SpoolWriter(own_spool, HEADER, OnceLogger(), lambda: None, limit=1000)
    for _ in range(3):
        spool_writer.enqueue(writer_items.SamplesItem(RowBatch([{"response": "x" * 600}]), {}))
    assert own_spool.dropped == {"samples: more than the writer could keep up with": 2}
    spool_writer.flush(5)
    assert len(own_spool.list_files()) == 1


def test_the_end_of_the_run_is_written_although_the_queue_of_the_writer_is_full(spool_root: Path) -> None:
    own_spool = spool.Spool(spool_root, "run-1", "a")
    spool_writer = writer.SpoolWriter(own_spool, HEADER, OnceLogger(), lambda: None, limit=1000)
    spool_writer.enqueue(writer_items.SamplesItem(RowBatch([{"response": "x" * 2000}]), {}))
    spool_writer.enqueue(writer_items.NoteItem("finish", {"outcome": "finished"}))
    spool_writer.flush(5)
    assert [file.kind for file in own_spool.list_files()] == ["dump", "finish"] and not own_spool.dropped


def test_a_run_ends_also_if_the_disk_of_its_spool_fails(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = start()
    run.log_samples([{"response": "x"}], step=1)
    run._threads.writer.flush(10)

    def fail(path: Any) -> Any:
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    monkeypatch.setattr(spool.os, "scandir", fail)
    status = run.status(timeout=1)
    assert (status.logged, status.sent, status.waiting) == (1, 0, 1)
    assert "the spool can't be read: Stale file handle" in status.problems
    run.finish(timeout=0.5)
    assert "is ignored" not in caplog.text and "can't be read: Stale file handle" in caplog.text
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("rolloutdeck-")])


def test_a_file_that_changes_while_it_is_copied_is_copied_again(tmp_path: Path, spool_root: Path) -> None:
    path = tmp_path / "12.jsonl"
    path.write_bytes(b"a" * (writer_items.CHUNK_BYTES + 10))
    item = writer_items.FileItem(path, {})
    body, first = item.body, True

    def change_after_first_piece() -> Iterator[bytes]:
        nonlocal first
        for piece in body():
            yield piece
            if first:
                path.write_bytes(b"b" * 20)
                first = False

    item.body = change_after_first_piece  # type: ignore[method-assign]
    own_spool = spool.Spool(spool_root, "run-1", "a")
    spool_writer = writer.SpoolWriter(own_spool, HEADER, OnceLogger(), lambda: None)
    spool_writer.enqueue(item)
    spool_writer.flush(5)
    [file] = own_spool.list_files()
    assert file.path.read_bytes().endswith(b"\n" + b"b" * 20)


def test_the_heartbeat_contains_the_last_step_and_what_was_dropped(
    start: Start, connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_everywhere(monkeypatch, wire, "HEARTBEAT_SECONDS", 0.1)
    run: Any = start()
    run.log({"a": 1}, step=41)
    run.log("nonsense", step=42)
    wait_until(
        lambda: [
            body for body in connected_receiver.posted("/heartbeat/") if body.get("step") == 41 and body["dropped"]
        ]
    )


def test_warnings_do_not_repeat(caplog: pytest.LogCaptureFixture) -> None:
    once_logger = OnceLogger()
    with caplog.at_level(logging.WARNING):
        once_logger.log_once("a", "said")
        once_logger.log_once("a", "said")
        assert once_logger.reset("a") and not once_logger.reset("a")
        once_logger.log_once("a", "said")
    assert caplog.messages == ["said", "said"]


def test_a_file_that_is_sent_while_its_folder_is_listed_hides_no_other(tmp_path: Path) -> None:
    for number in range(20):  # listed, but no longer there when looked at
        (tmp_path / f"{number:02}.dump").symlink_to(tmp_path / "gone")
    for name in ("30.dump", "31.dump"):
        (tmp_path / name).write_bytes(b"{}\n")
    assert [file.path.name for file in spool.list_spool_files(tmp_path)] == ["30.dump", "31.dump"]
