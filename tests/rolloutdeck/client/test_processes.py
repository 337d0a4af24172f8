"""Recording in forked processes, and at the end of a process."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from rolloutdeck.client.upload.sync import sync_spools
from tests.rolloutdeck.support.fake_server import Receiver
from tests.rolloutdeck.support.programs import Start, start_program

FORKING = """
import os, rolloutdeck
run = rolloutdeck.init(project="math", name="forked")
run.log_samples([{"response": "parent"}], step=1)
pids = []
for number in range(2):
    pid = os.fork()
    if pid == 0:
        run.log_samples([{"response": f"child {number}"}], step=1)
        run._close(20)
        os._exit(0)
    pids.append(pid)
for pid in pids:
    os.waitpid(pid, 0)
run.finish()
"""
WITH_PROCESSES = """
import multiprocessing, rolloutdeck
run = rolloutdeck.init(project="math", name="forked")
run.log_samples([{"response": "parent"}], step=1)
def work(number):
    run.log_samples([{"response": f"child {number}"}], step=1)
children = [multiprocessing.get_context("fork").Process(target=work, args=(number,)) for number in range(2)]
[process.start() for process in children]
[process.join() for process in children]
run.finish()
"""


@pytest.mark.parametrize("program", [FORKING, WITH_PROCESSES])
def test_each_forked_child_records_into_its_own_spool(
    connected_receiver: Receiver, spool_root: Path, program: str
) -> None:
    assert start_program(program).wait(60) == 0
    messages = sorted(json.loads(body)["response"] for body in connected_receiver.bodies())
    assert messages == ["child 0", "child 1", "parent"]
    assert len({(uid, query["attempt"]) for uid, query, _ in connected_receiver.dumps}) == 1
    assert len(connected_receiver.posted("/finish/")) == 1
    assert list(spool_root.iterdir()) == []


FORKING_RANK = """
import multiprocessing, os, rolloutdeck
run = rolloutdeck.init(project="math", name="forked", exit_timeout=20)
def work():
    run.log_samples([{"response": "same"}], step=1)
def fork():
    pid = os.fork()
    if pid == 0:
        work()
        run._close(20)
        os._exit(0)
    os.waitpid(pid, 0)
def work_and_fork():
    work()
    fork()
work()
process = multiprocessing.get_context("fork").Process(target=work_and_fork)
process.start()
process.join()
fork()
run.finish()
"""


def test_equal_rows_of_a_rank_and_its_forked_children_have_different_producers(
    connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert start_program(FORKING_RANK).wait(60) == 0
    first, second, third, fourth = sorted(query["producer"] for _, query, _ in connected_receiver.dumps)
    assert (first, second) == ("rank1", "rank1-ForkProcess-1")
    assert third.startswith("rank1-ForkProcess-1-pid") and fourth.startswith("rank1-pid")


FORKED_CHILD_WITH_PLAN = """
import os, time, rolloutdeck
run = rolloutdeck.init(project="math", name="forked")
run.log_samples([{"response": "parent"}], step=1)
pid = os.fork()
if pid == 0:
    run.replay_plan("nightly", timeout=1.0)
    run.log_samples([{"response": "child 1"}], step=1)
    run._threads.writer.flush(20)
    time.sleep(0.2)
    run.log_samples([{"response": "child 2"}], step=2)
    is_written = run._threads.writer.flush(5)
    run._close(20)
    os._exit(0 if is_written else 3)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
run.finish()
"""


def test_a_forked_child_that_first_asks_for_a_plan_records_all_that_it_logs(
    connected_receiver: Receiver, spool_root: Path
) -> None:
    assert start_program(FORKED_CHILD_WITH_PLAN).wait(60) == 0
    messages = sorted(json.loads(body)["response"] for body in connected_receiver.bodies())
    assert messages == ["child 1", "child 2", "parent"]
    assert list(spool_root.iterdir()) == []


def test_a_process_that_can_start_no_thread_writes_at_its_end(
    start: Start, connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        run = start()
        run.log_samples([{"response": "x"}], step=1)
        assert run._threads.writer.flush(5)
        run.log_samples([{"response": "y"}], step=2)
        started = time.monotonic()
        run._close(5)
        assert time.monotonic() - started < 4
    assert [file.kind for file in run._threads.spool.list_files()] == ["run", "dump", "dump"]
    assert caplog.text.count("No thread can be started") == 1
    assert not run._threads.spool.dropped


def test_a_process_that_could_start_no_thread_for_a_time_starts_them_at_the_next_call(
    start: Start, connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        run = start()
        run.log_samples([{"response": "x"}], step=1)
    run.log_samples([{"response": "y"}], step=2)
    run.finish()
    assert [query["step"] for _, query, _ in connected_receiver.dumps] == ["1", "2"]


PRINTED_IMPORTS = """
import importlib.abc, sys, threading
class ImportPrinter(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            print(name, flush=True)
sys.meta_path.insert(0, ImportPrinter())
import rolloutdeck
run = rolloutdeck.init(project="math", name="é")
run.log({"loss": 1.0}, step=1)
run.log_samples([{"response": "é", "score": float("nan")}], step=1)
run.log_file(__import__("os").environ["GIVEN"], step=1)
run.report_replay(1, "miss")
run.finish()
"""


def test_no_thread_of_the_client_imports_a_module(
    connected_receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork during an import would leave the module locked in the child."""
    (tmp_path / "1.jsonl").write_text("{}\n")
    monkeypatch.setenv("GIVEN", str(tmp_path / "1.jsonl"))
    monkeypatch.setenv("ROLLOUTDECK_URL", connected_receiver.url.replace("127.0.0.1", "localhost"))
    message, _ = start_program(PRINTED_IMPORTS).communicate(timeout=600)
    assert len(connected_receiver.posted("/finish/")) == 1
    assert message.split() == []


ENDING = """
import logging, sys, rolloutdeck
logging.basicConfig(stream=sys.stdout)
run = rolloutdeck.init(project="math", name="ending", exit_timeout={seconds})
for step in range(200):
    run.log_samples([{{"response": "x" * 1000}}] * 50, step=step)
{end}
"""


def test_a_trainer_that_ends_without_finish_loses_nothing(connected_receiver: Receiver, spool_root: Path) -> None:
    assert start_program(ENDING.format(seconds=30, end="")).wait(60) == 0
    assert len(connected_receiver.dumps) == 200
    assert connected_receiver.posted("/finish/")[0]["outcome"] == "finished"


def test_a_trainer_that_dies_of_an_error_ends_as_failed(connected_receiver: Receiver) -> None:
    running = start_program("import rolloutdeck; rolloutdeck.init(project='math', exit_timeout=20); 1 / 0")
    running.wait(60)
    assert connected_receiver.posted("/finish/")[0]["outcome"] == "failed"


def test_a_trainer_that_ends_while_the_server_is_down_says_what_waits_and_how_to_send_it(
    connected_receiver: Receiver, spool_root: Path
) -> None:
    connected_receiver.down()
    running = start_program(ENDING.format(seconds=0.2, end=""))
    message, _ = running.communicate(timeout=600)
    assert f"202 files wait in {spool_root}" in message and f"rolloutdeck sync {spool_root}" in message
    connected_receiver.up()
    assert sync_spools([spool_root]).sent == 202
    assert len(connected_receiver.dumps) == 200
