from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerDown

from rollouts.lib import ClockWatch, process_id
from rollouts.maintenance import compaction, sweep
from rollouts.models import Dump, Project, Run, Sample, Segment
from rollouts.runs.actions import move_run_to_trash
from rollouts.storage import files, raw_dumps, set_location
from tests.dashboard.support.api_client import build_row, create_filled_run, push_rows
from tests.support import builders
from tests.support.stored import StoredPath, body_path, list_stored
from workers import dispatch, memory, tasks
from workers.celery import app

pytestmark = pytest.mark.django_db


@pytest.fixture
def sent_tasks(monkeypatch: Any) -> list[tuple[str, tuple[Any, ...]]]:
    """The tasks that would be sent to the broker: name and arguments."""
    out: list[tuple[str, tuple[Any, ...]]] = []
    monkeypatch.setattr(app, "send_task", lambda name, args, **_: out.append((name.rpartition(".")[2], args)))
    return out


@pytest.fixture
def dump(project: Project) -> Dump:
    return push_rows(builders.run(project), 1, [build_row(1, 0, 1.0)])


def claim_dump(dump: Dump, by: str, *, tries: int = 1, ago: timedelta = timedelta(0)) -> None:
    now = timezone.now()
    Dump.objects.filter(pk=dump.pk).update(state="indexing", claimed_by=by, claimed_at=now - ago, tries=tries)


def create_killed_process() -> str:
    """Returns the name of a process of this host that was killed."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        while not process_id.read_start_ticks(child.pid):
            time.sleep(0.01)
        host = process_id.get_current_process_id().rsplit(":", 2)[0]
        name = f"{host}:{child.pid}:{process_id.read_start_ticks(child.pid)}"
        assert not process_id.has_process_ended(name)
        os.kill(child.pid, signal.SIGKILL)
    return name


def test_a_killed_process_has_ended_and_this_one_and_those_of_other_hosts_have_not() -> None:
    assert process_id.has_process_ended(create_killed_process())
    assert not process_id.has_process_ended(process_id.get_current_process_id())
    assert not process_id.has_process_ended("elsewhere:1:1")


def test_a_pid_that_is_used_again_is_another_process() -> None:
    host, pid, start = process_id.get_current_process_id().rsplit(":", 2)
    assert process_id.has_process_ended(f"{host}:{pid}:{int(start) - 1}")


def test_the_sweep_sends_a_killed_workers_dump_again_at_once(dump: Dump, sent_tasks: list[Any]) -> None:
    claim_dump(dump, create_killed_process())
    tasks.sweep()
    assert sent_tasks == [("index_dump", (dump.pk,))]
    dump.refresh_from_db()
    assert dump.state == "received"


def test_a_worker_that_starts_sends_the_dumps_that_wait(dump: Dump, project: Project, sent_tasks: list[Any]) -> None:
    other = push_rows(builders.run(project, "second"), 1, [build_row(1, 0, 1.0)])
    claim_dump(dump, create_killed_process())
    later = timezone.now() + timedelta(minutes=1)
    Dump.objects.filter(pk=other.pk).update(state="received", due_at=later, tries=0)
    tasks.start_worker(SimpleNamespace(hostname="celery@here"))
    assert sorted(sent_tasks) == [("hourly_cleanup", ()), ("index_dump", (dump.pk,)), ("index_dump", (other.pk,))]


def test_the_claim_of_a_running_worker_is_kept_until_its_lease_ends(dump: Dump, sent_tasks: list[Any]) -> None:
    claim_dump(dump, process_id.get_current_process_id())
    tasks.sweep()
    assert sent_tasks == []
    claim_dump(dump, "elsewhere:1:1", ago=Dump.LEASE)
    tasks.sweep()
    assert sent_tasks == [("index_dump", (dump.pk,))]


def test_a_dump_whose_message_was_lost_is_sent_again_once(dump: Dump, sent_tasks: list[Any]) -> None:
    Dump.objects.filter(pk=dump.pk).update(state="received", due_at=timezone.now())
    tasks.sweep()
    tasks.sweep()
    assert sent_tasks == [("index_dump", (dump.pk,))]


@pytest.mark.parametrize("state", ["received", "indexing"])
def test_a_dump_from_before_the_clock_was_set_back_does_not_wait(dump: Dump, sent_tasks: list[Any], state: str) -> None:
    ahead = timezone.now() + timedelta(hours=1)
    alive = process_id.get_current_process_id()
    Dump.objects.filter(pk=dump.pk).update(state=state, due_at=ahead, claimed_at=ahead, claimed_by=alive)
    tasks.sweep()
    assert sent_tasks == [("index_dump", (dump.pk,))]
    assert dump.claim()


def test_a_dump_that_kills_every_worker_fails_with_a_message(dump: Dump, sent_tasks: list[Any]) -> None:
    claim_dump(dump, create_killed_process(), tries=Dump.MAX_TRIES)
    tasks.sweep()
    dump.refresh_from_db()
    assert (dump.state, "5 times" in dump.message, sent_tasks) == ("failed", True, [])


def test_a_cleanup_after_a_change_of_the_clock_removes_nothing(
    project: Project, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row of a file that was just written may be missing, and the file looks hours old."""
    path = data_dir / "raw" / str(project.pk) / "ab" / f"{'ab' * 32}.zst"
    path.parent.mkdir(parents=True)
    path.touch()
    real = time.time
    monkeypatch.setattr(tasks, "clock", ClockWatch())
    monkeypatch.setattr(time, "time", lambda: real() + 3 * 3600)
    tasks.hourly_cleanup()
    assert path.exists()
    tasks.hourly_cleanup()
    assert not path.exists()


@pytest.mark.disk
def test_a_cleanup_in_the_data_folder_of_another_server_removes_nothing(data_dir: Path) -> None:
    orphan = create_body_of_age("9/orphan.parquet", sweep.ORPHAN_LIFETIME_SECONDS + 9)
    (data_dir / "server").write_text("another-server sqlite\n")
    tasks.hourly_cleanup()
    assert orphan.exists()
    set_location("this-server")
    tasks.hourly_cleanup()
    assert not orphan.exists()


def test_every_task_that_is_sent_or_scheduled_is_one_that_workers_know(settings: Any) -> None:
    names = {f"workers.tasks.{name}" for name in get_args(dispatch.TaskName)}
    names |= {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()}
    assert names == {name for name in app.tasks if name.startswith("workers.")}


def test_the_sweep_does_not_wait_behind_dumps(settings: Any) -> None:
    queues = {
        name: app.amqp.router.route({}, f"workers.tasks.{name}")["queue"].name for name in ("sweep", "index_dump")
    }
    assert queues == {"sweep": "schedule", "index_dump": "celery"}
    assert set(app.amqp.queues.consume_from) >= {"schedule", "celery"}, "each worker reads both"


def test_an_unavailable_broker_raises_nothing_and_is_not_tried_again_for_a_while(dump: Dump, monkeypatch: Any) -> None:
    calls = []

    def refuse(name: str, args: tuple[Any, ...], **_: Any) -> None:
        calls.append(args)
        raise BrokerDown("connection refused")

    monkeypatch.setattr(dispatch, "quiet_until", 0.0)
    monkeypatch.setattr(app, "send_task", refuse)
    assert [dispatch.send_now("index_dump", 1), dispatch.send_now("index_dump", 2)] == [False, False]
    assert calls == [(1,)]
    monkeypatch.setattr(dispatch, "quiet_until", 0.0)


def test_a_dump_that_was_not_sent_without_a_broker_is_sent_by_the_next_sweep(
    dump: Dump, monkeypatch: Any, sent_tasks: list[Any]
) -> None:
    later = timezone.now() + timedelta(minutes=1)
    Dump.objects.filter(pk=dump.pk).update(state="received", due_at=later)
    monkeypatch.setattr(dispatch, "quiet_until", time.monotonic() + 60)
    dispatch.send_dump(dump.pk)
    monkeypatch.setattr(dispatch, "quiet_until", 0.0)
    tasks.sweep()
    assert sent_tasks == [("index_dump", (dump.pk,))]


def test_a_permanent_failure_is_stored_in_the_row_and_the_task_succeeds(project: Project) -> None:
    dump = Dump.objects.get(pk=push_rows(builders.run(project), 1, [build_row(1, 0, 1.0)]).pk)
    Dump.objects.filter(pk=dump.pk).update(state="received", format="no-such-format")
    tasks.index_dump(dump.pk)
    dump.refresh_from_db()
    assert (dump.state, bool(dump.message)) == ("failed", True)


def create_file_of_age(path: Path, seconds: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    os.utime(path, (time.time() - seconds,) * 2)
    return path


def create_body_of_age(name: str, age: float) -> StoredPath:
    path = body_path(name)
    path.write_bytes(b"x")
    path.set_age(age)
    return path


def test_abandoned_uploads_expire_and_recent_ones_stay(db: None, data_dir: Path) -> None:
    folder = files.ensure_parts_folder()
    old = [
        create_file_of_age(folder / "1-a-2", sweep.PART_LIFETIME_SECONDS + 9),
        create_file_of_age(data_dir / "incoming" / "x", sweep.ORPHAN_LIFETIME_SECONDS + 9),
    ]
    new = [create_file_of_age(folder / "1-b-2", 60), create_file_of_age(data_dir / "incoming" / "y", 60)]
    assert sweep.delete_stale_uploads() == 2
    assert [path.exists() for path in old + new] == [False, False, True, True]


def test_a_run_in_the_trash_is_deleted_with_its_files_after_a_week(
    project: Project, owner: User, data_dir: Path
) -> None:
    run, kept_run = create_filled_run(project, "gone"), create_filled_run(project, "kept")
    for path in list_stored("raw/"):
        path.set_age(3600)
    move_run_to_trash(run, owner)
    assert sweep.empty_trash() == 0
    Run.objects.filter(pk=run.pk).update(deleted_at=timezone.now() - timedelta(days=8))
    assert sweep.empty_trash() == 1
    assert list(Run.objects.all()) == [kept_run]
    assert Sample.objects.count() == 8
    bodies = {path.key.removeprefix("bodies/") for path in list_stored("bodies/")}
    assert bodies == set(Segment.objects.values_list("path", flat=True))
    for dump in kept_run.dumps.all():
        with raw_dumps.open_raw_dump(project.pk, dump.sha256) as raw:
            assert raw.read(1) == b"{"


def test_raw_dumps_are_deleted_with_their_only_run(project: Project, owner: User, data_dir: Path) -> None:
    run = create_filled_run(project)
    raw = list_stored("raw/")
    for path in raw:
        path.set_age(3600)
    sweep.delete_run_permanently(run)
    assert raw and not any(path.exists() for path in raw)


def test_an_old_body_file_that_no_segment_refers_to_is_deleted(dump: Dump, data_dir: Path) -> None:
    orphan = create_body_of_age("9/orphan.parquet", sweep.ORPHAN_LIFETIME_SECONDS + 9)
    current = body_path(Segment.objects.get().path)
    current.set_age(sweep.ORPHAN_LIFETIME_SECONDS + 9)
    assert compaction.delete_orphan_body_files() == 1
    assert (orphan.exists(), current.exists()) == (False, True)


def test_a_segment_without_dumps_is_deleted_with_its_file(dump: Dump, data_dir: Path) -> None:
    body_file = create_body_of_age("9/left.parquet", sweep.ORPHAN_LIFETIME_SECONDS + 9)
    Segment.objects.create(run=dump.run, split="train", path="9/left.parquet", rows=1, bytes=1)
    tasks.hourly_cleanup()
    assert (body_file.exists(), Segment.objects.count()) == (False, 1)


def test_a_sweep_without_work_makes_few_queries(
    db: None, sent_tasks: list[Any], django_assert_max_num_queries: Any
) -> None:
    with django_assert_max_num_queries(11):
        tasks.sweep()
    assert sent_tasks == []


def test_the_hourly_cleanup_deletes_expired_sessions(db: None) -> None:
    from rollouts.models import SignInSession

    for key, days in (("old", -1), ("new", 1)):
        SignInSession.objects.create(
            session_key=key, session_data="", expire_date=timezone.now() + timedelta(days=days)
        )
    tasks.hourly_cleanup()
    assert [session.session_key for session in SignInSession.objects.all()] == ["new"]


def test_the_check_of_an_artifact_is_interrupted_at_the_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_artifact(artifact_id: int) -> list[int]:
        assert memory.running_tasks
        return [7]

    sent_dumps: list[int] = []
    monkeypatch.setattr(tasks.pins, "check_artifact", check_artifact)
    monkeypatch.setattr(dispatch, "send_dump", sent_dumps.append)
    tasks.check_artifact(1)
    assert sent_dumps == [7] and not memory.running_tasks
