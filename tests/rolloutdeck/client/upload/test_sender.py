"""The sender of a spool: retries, rejected files, large files, and the end of a run."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.client import artifact, spool
from rolloutdeck.client.run import Run
from rolloutdeck.client.threads import connect_server
from rolloutdeck.client.upload import delivery, dispatcher, sender
from rolloutdeck.client.upload.dispatcher import Dispatcher
from rolloutdeck.client.upload.sync import sync_spools
from rolloutdeck.lib.http import ServerClient, ServerResponse
from rolloutdeck.lib.log import OnceLogger
from rolloutdeck.protocol import wire
from tests.rolloutdeck.support.fake_server import Receiver, wait_until
from tests.support.patching import patch_everywhere

Start = Callable[..., Run]


def write_dump(own_spool: spool.Spool, body: bytes, **query: Any) -> Path:
    header: wire.SpoolHeader = {
        "kind": "dump",
        "project": "math",
        "uid": own_spool.uid,
        "name": "grpo",
        "attempt": "first",
    }
    return own_spool.write({**header, "query": {"attempt": "first", **query}, "run": {}}, lambda: [body])


def log_steps(run: Run, steps: range) -> list[bytes]:
    bodies = [json.dumps({"prompt": "p", "response": f"step {step}"}).encode() + b"\n" for step in steps]
    for step in steps:
        run.log_samples([{"prompt": "p", "response": f"step {step}"}], step=step)
    return [body.replace(b": ", b":").replace(b", ", b",") for body in bodies]


@pytest.mark.parametrize(
    "mode",
    [
        "down",
        "500",
        "503",
        "429",
        "408",
        "401",
        "403",
        "404",
        "426",
        "login",
        "302",
        "502 proxy",
        "413 proxy",
        "wrong receipt",
        "slow",
    ],
)
def test_all_data_arrives_once_whatever_errors_the_server_answered_before(
    start: Start, connected_receiver: Receiver, mode: str
) -> None:
    run = start()
    bodies = log_steps(run, range(2))
    wait_until(lambda: len(connected_receiver.dumps) == 2)
    if mode == "down":
        connected_receiver.down()
    else:
        connected_receiver.mode = mode
    bodies += log_steps(run, range(2, 6))
    run._threads.writer.flush(10)
    time.sleep(0.3)
    if mode != "slow":
        assert len(run._threads.spool.list_files()) >= 4
    if mode == "down":
        connected_receiver.up()
    connected_receiver.mode = "ok"
    wait_until(lambda: not run._threads.spool.list_files())
    assert sorted(connected_receiver.bodies()) == sorted(bodies)


def test_a_server_that_fails_for_long_is_mentioned_once(
    start: Start, connected_receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    connected_receiver.mode = "500"
    run = start()
    for step in range(5):
        log_steps(run, range(step, step + 1))
        time.sleep(0.1)
    assert len(connected_receiver.tokens) > 2
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_a_refused_token_is_mentioned_once_with_the_reason(
    start: Start, connected_receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """An expired token, for example: the server's message has its name and the day."""
    connected_receiver.mode = "401"
    run = start()
    for step in range(3):
        log_steps(run, range(step, step + 1))
        time.sleep(0.1)
    wait_until(lambda: len(connected_receiver.tokens) > 2)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1 and "stays in" in warnings[0]


@pytest.mark.parametrize("mode", ["400", "413", "415"])
def test_a_rejected_file_is_moved_aside_with_the_reason_and_the_others_arrive(
    start: Start, connected_receiver: Receiver, spool_root: Path, mode: str
) -> None:
    run = start()
    connected_receiver.mode, connected_receiver.only = mode, "step 1"
    bodies = log_steps(run, range(3))
    run.finish()
    assert connected_receiver.bodies() == [bodies[0], bodies[2]]
    [folder] = spool_root.iterdir()
    stored, reason = sorted((folder / "rejected").iterdir())
    assert stored.read_bytes().endswith(bodies[1])
    assert "No, because of a test." in reason.read_text()
    assert list(connected_receiver.posted("/heartbeat/")[-1]["dropped"].values()) == [
        {"files: rejected by the server": 1}
    ]


def test_a_refused_metric_does_not_lose_others_of_the_same_request(start: Start, connected_receiver: Receiver) -> None:
    connected_receiver.mode = "500"
    run = start()
    for name in ("good", "bad", "fine"):
        run.log({name: 1}, step=1)
        run._threads.writer.flush(5)
    connected_receiver.only, connected_receiver.mode = '"bad"', "400"
    run.finish()
    assert [list(point["values"]) for point in connected_receiver.points()] == [["good"], ["fine"]]


@pytest.mark.parametrize("mode", ["500", "403 proxy"])
def test_a_file_that_always_fails_delays_no_other_and_is_not_sent_too_often(
    start: Start, connected_receiver: Receiver, mode: str
) -> None:
    connected_receiver.mode, connected_receiver.only = mode, "step 0"
    run = start()
    bodies = log_steps(run, range(30))
    wait_until(lambda: connected_receiver.bodies() == bodies[1:])
    assert len(connected_receiver.tokens) < 2 * len(bodies)


def test_metrics_that_a_proxy_refuses_do_not_delay_others_of_the_same_request(
    connected_receiver: Receiver, spool_root: Path
) -> None:
    connected_receiver.mode, connected_receiver.only = "403 proxy", "bad"
    own_spool = spool.Spool(spool_root, "run-1", "first")
    header: wire.SpoolHeader = {"project": "math", "uid": own_spool.uid, "name": "grpo", "attempt": "first", "run": {}}
    for name in ("bad", "good"):
        body = json.dumps({"attempt": "first", "points": [{"step": 1, "values": {name: 1}}]}).encode()
        own_spool.write({**header, "kind": "metrics", "query": {}}, lambda body=body: [body])  # type: ignore[misc]
    file_dispatcher, server = Dispatcher(OnceLogger(), own_spool), ServerClient(connected_receiver.url)
    wait_until(
        lambda: file_dispatcher.send_next(server, [own_spool.folder or spool_root]) and connected_receiver.points()
    )
    assert [point["values"] for point in connected_receiver.points()] == [{"good": 1}]


def test_a_run_ends_on_the_server_when_all_its_files_have_arrived(
    start: Start, connected_receiver: Receiver, spool_root: Path
) -> None:
    connected_receiver.mode, connected_receiver.only = "500", "step 0"
    run = start()
    bodies = log_steps(run, range(4))
    run.finish(timeout=1)
    assert connected_receiver.bodies() == bodies[1:] and connected_receiver.posted("/finish/") == []
    connected_receiver.mode = "ok"
    assert sync_spools([spool_root]).sent == 2
    assert connected_receiver.bodies()[-1] == bodies[0] and len(connected_receiver.posted("/finish/")) == 1


def test_the_end_of_a_run_waits_only_a_short_time_for_a_server_that_is_down_and_says_so(
    start: Start,
    connected_receiver: Receiver,
    spool_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sender, "MAX_UNRESPONSIVE_SECONDS", 2.0)
    run = start()
    bodies = log_steps(run, range(1))
    wait_until(lambda: connected_receiver.bodies() == bodies)
    connected_receiver.down()
    bodies += log_steps(run, range(1, 4))
    started = time.monotonic()
    run.finish(timeout=600)
    assert time.monotonic() - started < 60
    assert "still wait for the server; trying" in caplog.text and "Send them with: rolloutdeck sync" in caplog.text
    connected_receiver.up()
    assert sync_spools([spool_root]).sent == 4  # and that the run has ended
    assert sorted(connected_receiver.bodies()) == sorted(bodies)


def test_the_end_of_a_run_waits_for_a_server_that_is_back_soon(start: Start, connected_receiver: Receiver) -> None:
    run = start()
    connected_receiver.down()
    bodies = log_steps(run, range(3))
    threading.Timer(1.5, connected_receiver.up).start()
    run.finish()
    assert sorted(connected_receiver.bodies()) == sorted(bodies) and len(connected_receiver.posted("/finish/")) == 1


def test_a_renewed_token_file_is_used_without_a_restart(
    start: Start, connected_receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    monkeypatch.delenv("ROLLOUTDECK_TOKEN")
    monkeypatch.setenv("ROLLOUTDECK_TOKEN_FILE", str(token))
    connected_receiver.mode = "401"
    start()
    wait_until(lambda: "Bearer old" in connected_receiver.tokens)
    token.write_text("new\n")
    wait_until(lambda: "Bearer new" in connected_receiver.tokens)


def test_a_server_that_is_too_old_is_named_once_and_nothing_is_rejected(
    start: Start, connected_receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    connected_receiver.mode = "426"
    run = start()
    bodies = log_steps(run, range(3))
    wait_until(lambda: len(connected_receiver.tokens) > 5)  # it has tried several times
    folder = run._threads.spool.folder
    assert not (folder / spool.REJECTED_FOLDER).exists()
    warnings = [record.getMessage() for record in caplog.records if "because of a test" in record.getMessage()]
    assert warnings == [f"Data stays in {folder} until this is fixed: No, because of a test."]
    connected_receiver.mode = "ok"
    wait_until(lambda: sorted(connected_receiver.bodies()) == sorted(bodies))


def test_a_server_of_a_newer_version_is_named_once_and_used(
    start: Start, connected_receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    connected_receiver.version = str(wire.WIRE_VERSION + 1)
    bodies = log_steps(start(), range(3))
    wait_until(lambda: sorted(connected_receiver.bodies()) == sorted(bodies))
    assert [record.getMessage() for record in caplog.records if "version" in record.getMessage()] == [
        f"The server {connected_receiver.url} speaks version {wire.WIRE_VERSION + 1} of the protocol, this client "
        f"version {wire.WIRE_VERSION}. What is new in it is not available here. Upgrade the client: pip install "
        "--upgrade rolloutdeck."
    ]


def test_a_body_over_the_part_size_is_sent_in_parts_and_continues_where_it_stopped(
    connected_receiver: Receiver, spool_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_everywhere(monkeypatch, wire, "MAX_PART_BYTES", 1000)
    own_spool = spool.Spool(spool_root, "run-1", "first")
    body = os.urandom(2500)
    write_dump(own_spool, body, step=1)
    connected_receiver.parts[hashlib.sha256(body).hexdigest()] = body[:1700]  # an earlier sender came this far
    assert delivery.upload_spool_files(ServerClient(connected_receiver.url), own_spool.list_files()).state == "sent"
    assert connected_receiver.bodies() == [body]
    assert connected_receiver.spans == ["bytes */2500", "bytes 1700-2499/2500"]


def test_a_body_over_the_part_size_is_sent_in_parts_from_the_start(
    connected_receiver: Receiver, spool_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_everywhere(monkeypatch, wire, "MAX_PART_BYTES", 1000)
    own_spool = spool.Spool(spool_root, "run-1", "first")
    write_dump(own_spool, b"a" * 2500)
    assert delivery.upload_spool_files(ServerClient(connected_receiver.url), own_spool.list_files()).state == "sent"
    assert connected_receiver.bodies() == [b"a" * 2500] and len(connected_receiver.spans) == 4


def test_a_spool_file_that_the_disk_damaged_is_rejected(connected_receiver: Receiver, spool_root: Path) -> None:
    own_spool = spool.Spool(spool_root, "run-1", "first")
    path = write_dump(own_spool, b"as it was")
    path.write_bytes(path.read_bytes().replace(b"was", b"is!"))
    assert delivery.upload_spool_files(ServerClient(connected_receiver.url), own_spool.list_files()).state == "rejected"
    path.write_bytes(b"\0" * 100)
    assert delivery.upload_spool_files(ServerClient(connected_receiver.url), own_spool.list_files()).state == "rejected"
    assert connected_receiver.dumps == []


def test_bytes_that_were_damaged_on_the_way_are_sent_again(connected_receiver: Receiver, spool_root: Path) -> None:
    own_spool = spool.Spool(spool_root, "run-1", "first")
    write_dump(own_spool, b"whole")
    connected_receiver.mode = "409"
    assert delivery.upload_spool_files(ServerClient(connected_receiver.url), own_spool.list_files()).state == "later"


def test_the_oldest_file_is_sent_first(connected_receiver: Receiver, spool_root: Path) -> None:
    own_spool = spool.Spool(spool_root, "run-1", "first")
    bodies = [str(n).encode() for n in range(5)]
    for body in bodies:
        write_dump(own_spool, body)
    file_dispatcher = Dispatcher(OnceLogger(), own_spool)
    while file_dispatcher.send_next(ServerClient(connected_receiver.url), [own_spool.folder or spool_root]) == 0:
        pass
    assert connected_receiver.bodies() == bodies


def test_the_pause_that_the_server_asks_for_is_kept() -> None:
    answer = ServerResponse(503, {"retry-after": "7"}, b"{}", is_from_server=True)
    assert delivery.classify_response(answer).pause == 7
    assert dispatcher.Backoff().next_pause(min_seconds=7) == 7
    assert (
        delivery.classify_response(ServerResponse(429, {"retry-after": "9" * 9}, b"", is_from_server=True)).pause
        == delivery.MAX_SERVER_PAUSE
    )
    assert delivery.classify_response(ServerResponse(429, {"retry-after": "soon"}, b"", is_from_server=True)).pause == 0


def test_pauses_grow_and_differ_between_trainers() -> None:
    pauses = dispatcher.Backoff()
    grown = [pauses.next_pause() for _ in range(30)]
    assert grown[0] <= dispatcher.MIN_BACKOFF_SECONDS and max(grown) <= dispatcher.MAX_BACKOFF_SECONDS
    assert grown[8] > 2 * grown[1]
    assert len({dispatcher.Backoff().next_pause() for _ in range(20)}) > 1


def test_a_requested_file_that_cannot_be_read_is_named_once(
    connected_receiver: Receiver,
    spool_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "a.bin").write_text("a")
    requested = artifact.build_artifact(tmp_path, ["a.bin"], "rollout", 1)
    header: wire.SpoolHeader = {"project": "math", "uid": "run-1", "name": "grpo", "attempt": "first"}
    spool_sender = sender.Sender(spool.Spool(spool_root, "run-1", "first"), connect_server, OnceLogger(), header=header)
    spool_sender.artifact_queue.add(requested, {requested.files["a.bin"]["sha256"]})

    def fail(path: Path, *args: Any, **options: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(Path, "open", fail)
    for _try in range(2):
        spool_sender._artifact_due = 0.0
        assert spool_sender._upload_requested(ServerClient(connected_receiver.url)) > 0
    assert caplog.text.count("can't be read now") == 1 and str(tmp_path / "a.bin") in caplog.text


def test_a_run_that_started_without_a_server_reports_how_long_ago_it_started(
    start: Start, connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected_receiver.down()
    now = time.time_ns
    with monkeypatch.context() as past:
        past.setattr(time, "time_ns", lambda: now() - 90 * 10**9)
        run = start()
        run._threads.writer.flush(10)
    connected_receiver.up()
    (result,) = wait_until(lambda: connected_receiver.posted("/runs/"))
    assert 90 <= result["waited"] < 150


def test_a_file_that_is_gone_is_reported_again_after_a_busy_server(
    start: Start, connected_receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rollout.pt").write_bytes(b"x")
    gone = artifact.build_artifact(tmp_path, ["rollout.pt"], "rollout", 1)
    responses = [ServerResponse(503, {}, b"", True), ServerResponse(200, {}, b"{}", True)]
    monkeypatch.setattr(sender, "register_artifact", lambda *_, **__: responses.pop(0))
    run = start()
    queue = run._threads.sender.artifact_queue
    queue.missing_artifacts.append((gone, "it was deleted"))
    for left in (1, 0):
        run._threads.sender._report_missing(connect_server())  # type: ignore[arg-type]
        assert len(queue.missing_artifacts) == left
