from __future__ import annotations

import hashlib
import os
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone

from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.ingest import attempts, dumps, runs
from rollouts.ingest.dumps import DumpHeader
from rollouts.models import Attempt, Dump, Project, Run, RunAlias
from rollouts.storage import files, get_raw_dump_key, raw_dumps
from tests.support import builders

pytestmark = pytest.mark.django_db


def push_dump(run: Run, body: bytes, **header: object) -> tuple[Dump, bool]:
    plain = files.create_incoming_path()
    plain.write_bytes(body)
    result = DumpHeader.from_query({"attempt": "a1", "step": "3", "source": "3.jsonl", **header})
    return dumps.accept_dump(run, result, hashlib.sha256(body).hexdigest(), plain, len(body))


def test_a_new_uid_makes_a_run_and_the_same_uid_is_that_run(project: Project) -> None:
    run, created = runs.open_run(project, uid="u1", name="grpo")
    again, created_again = runs.open_run(project, uid="u1", name="another name")
    assert (created, created_again) == (True, False)
    assert again == run


def test_a_second_launch_with_a_taken_name_becomes_name_2(project: Project) -> None:
    runs.open_run(project, uid="u1", name="grpo")
    assert runs.open_run(project, uid="u2", name="grpo")[0].name == "grpo-2"
    assert runs.open_run(project, uid="u3", name="grpo", resume="never")[0].name == "grpo-3"


def test_the_first_launch_uses_a_prepared_run_and_the_next_one_creates_another(project: Project) -> None:
    prepared, _ = runs.open_run(project, name="grpo", config={"n": 4})  # as `pull` does for a run that has not begun
    launched, created = runs.open_run(project, uid="u1", name="grpo", attempt="a", config={"n": 8}, host="node7")
    assert (launched, created) == (prepared, False)
    assert runs.open_run(project, uid="u1", name="grpo", attempt="a")[0] == prepared  # another process of it
    assert runs.open_run(project, uid="u2", name="grpo", attempt="b")[0].name == "grpo-2"
    launched.refresh_from_db()
    assert (launched.config, launched.attempts.get().host) == ({"n": 8}, "node7")


@pytest.mark.parametrize("more", [{"resume": "never", "attempt": "a"}, {}], ids=["it shall be new", "it is no launch"])
def test_a_prepared_run_is_used_only_by_a_launch_that_may_join(project: Project, more: dict[str, str]) -> None:
    runs.open_run(project, name="grpo")
    assert runs.open_run(project, uid="u1", name="grpo", **more)[0].name == "grpo-2"


def test_a_launch_with_the_id_of_a_prepared_run_sets_its_config(project: Project) -> None:
    prepared, _ = runs.open_run(project, name="grpo")
    runs.open_run(project, uid=prepared.uid, name="other", attempt="a", config={"lr": 1})
    prepared.refresh_from_db()
    assert (prepared.name, prepared.config, prepared.attempts.get().config_changes) == ("grpo", {"lr": 1}, {})


def test_resume_allow_continues_the_name_and_its_new_uid_becomes_an_alias(project: Project) -> None:
    run, _ = runs.open_run(project, uid="u1", name="grpo")
    joined, created = runs.open_run(project, uid="offline", name="grpo", resume="allow")
    assert (joined, created) == (run, False)
    assert RunAlias.objects.get().uid == "offline"
    assert runs.open_run(project, uid="offline", name="whatever") == (run, False)


def test_resume_allow_does_not_continue_a_run_in_the_trash(project: Project, owner: object) -> None:
    run, _ = runs.open_run(project, uid="u1", name="grpo")
    Run.objects.filter(pk=run.pk).update(deleted_at=timezone.now())
    other, created = runs.open_run(project, uid="u2", name="grpo", resume="allow")
    assert (other.name, created) == ("grpo-2", True)
    with pytest.raises(NotFoundError, match="trash"):
        runs.open_run(project, uid="u1", name="grpo")


def test_a_uid_of_another_project_is_refused(project: Project) -> None:
    runs.open_run(builders.project("code"), uid="u1", name="grpo")
    with pytest.raises(NotFoundError, match="The run id u1 cannot be used in math"):
        runs.open_run(project, uid="u1", name="grpo")


def test_attempts_are_numbered_in_order_of_arrival(project: Project) -> None:
    run, _ = runs.open_run(project, name="grpo", attempt="first")
    assert [attempts.get_or_create_attempt(run, key).number for key in ("second", "first", "third")] == [2, 1, 3]


def test_a_later_attempt_records_what_its_config_changed(project: Project) -> None:
    run, _ = runs.open_run(project, uid="u1", config={"lr": 1, "kl": 0.1}, attempt="a")
    runs.open_run(project, uid="u1", config={"lr": 2, "n": 8, "kl": 0.1}, attempt="b")
    assert run.attempts.get(key="b").config_changes == {"lr": [1, 2], "n": [None, 8]}
    run.refresh_from_db()
    assert run.config["lr"] == 2


def test_secrets_in_a_config_are_not_stored(project: Project) -> None:
    run, _ = runs.open_run(
        project,
        config={
            "wandb": {"api_key": "k" * 40},
            "hfToken": "x",
            "db": "postgres://ann:pw@host/db",
            "note": "use hf_abcdefghijklmnopqrstuv",
            "tokenizer": "qwen",
            "eos_token": "<|im_end|>",
            "max_tokens": 512,
            "lr": float("nan"),
            "odd": "a\x00b",
        },
    )
    run.refresh_from_db()
    assert run.config == {
        "wandb": {"api_key": "***"},
        "hfToken": "***",
        "db": "postgres://ann:***@host/db",
        "note": "use ***",
        "tokenizer": "qwen",
        "eos_token": "<|im_end|>",
        "max_tokens": 512,
        "lr": None,
        "odd": "a\ufffdb",
    }


def test_a_dump_pushed_twice_is_stored_once(project: Project) -> None:
    run = builders.run(project)
    dump, created = push_dump(run, b"one\n")
    again, created_again = push_dump(run, b"one\n")
    assert (created, created_again, again) == (True, False, dump)
    assert Dump.objects.count() == 1
    with raw_dumps.open_raw_dump(project.pk, dump.sha256) as raw:
        assert raw.read() == b"one\n"


def test_dumps_without_a_source_are_distinguished_by_their_bytes(project: Project) -> None:
    run = builders.run(project)
    first, _ = push_dump(run, b"one\n", source="")
    second, _ = push_dump(run, b"two\n", source="")
    assert first != second
    assert push_dump(run, b"two\n", source="") == (second, False)


def test_the_same_chunk_of_a_new_generation_is_another_dump(project: Project) -> None:
    run = builders.run(project)
    first, _ = push_dump(run, b"one\n", step="", offset="0")
    second, _ = push_dump(run, b"one\n", step="", offset="0", generation="1")
    assert first != second


def test_accepting_a_dump_leaves_no_file_in_incoming(project: Project, data_dir: Path) -> None:
    run = builders.run(project)
    push_dump(run, b"one\n")
    push_dump(run, b"one\n")
    assert list((data_dir / "incoming").iterdir()) == []


@pytest.mark.parametrize(
    "query",
    [
        {"step": "-1"},
        {"step": "x"},
        {"step": str(2**63)},
        {"step": "٣"},
        {"split": "test"},
        {"step_kind": "epoch"},
        {"source": "a\x00"},
        {"source": "x" * 501},
        {"attempt": "\ud800"},
        {"offset": "1.5"},
        {"generation": str(2**31)},
        {"colour": "red"},
    ],
)
def test_the_error_for_a_bad_dump_header_names_the_field(query: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        DumpHeader.from_query(query)
    assert caught.value.field == next(iter(query))


def test_sending_the_newest_version_again_changes_nothing(project: Project) -> None:
    run, _ = runs.open_run(project, name="grpo")
    push_dump(run, b"A")
    push_dump(run, b"B")
    before = list(Dump.objects.order_by("pk").values())
    dump, created = push_dump(run, b"B")
    assert (dump.pk, created, list(Dump.objects.order_by("pk").values())) == (before[1]["id"], False, before)


def test_a_version_that_is_sent_again_can_be_claimed_again(project: Project) -> None:
    run, _ = runs.open_run(project, name="grpo")
    first, _ = push_dump(run, b"A")
    assert first.claim()
    push_dump(run, b"B")
    again, _ = push_dump(run, b"A")
    assert again.claim() and again.tries == first.tries + 1


def test_a_chunk_of_an_older_generation_sent_again_changes_nothing(project: Project) -> None:
    run, _ = runs.open_run(project, name="grpo")
    push_dump(run, b"A", offset="0")
    push_dump(run, b"B", offset="0", generation="1")
    before = list(Dump.objects.order_by("pk").values())
    push_dump(run, b"A", offset="0")
    assert list(Dump.objects.order_by("pk").values()) == before


@pytest.mark.disk
def test_bytes_and_names_are_on_the_disk_before_a_dump_is_accepted(
    project: Project, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(file: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{file}").readlink()))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    run, _ = runs.open_run(project, name="grpo")
    dump, _ = push_dump(run, b"A")
    stored = data_dir / get_raw_dump_key(project.pk, dump.sha256)
    assert Path(synced[0]).name.startswith(f".{stored.name}")
    assert synced[1:] == [str(folder) for folder in (stored.parent, *list(stored.parents)[1:4])]


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL does so unless told otherwise")
def test_sqlite_syncs_each_commit_to_the_disk() -> None:
    with connection.cursor() as cursor:
        assert cursor.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL: a commit waits for the write-ahead log


def test_an_old_launch_that_ends_late_does_not_end_the_run(project: Project) -> None:
    run, _ = runs.open_run(project, name="grpo", attempt="old")
    attempts.get_or_create_attempt(run, "new")
    attempts.finish_attempt(run, "old")
    run.refresh_from_db()
    assert run.outcome == ""
    attempts.finish_attempt(run, "new", "failed")
    run.refresh_from_db()
    assert run.status == "failed"


def test_watched_files_do_not_keep_the_run_of_a_launch_from_ending(project: Project) -> None:
    run, _ = runs.open_run(project, name="grpo", attempt="launch")
    attempts.get_or_create_attempt(run, "files")
    attempts.get_or_create_attempt(run, "files-2")
    attempts.finish_attempt(run, "launch")
    run.refresh_from_db()
    assert run.status == "finished"


def test_a_new_launch_opens_a_finished_run_again(project: Project) -> None:
    run, _ = runs.open_run(project, name="grpo", attempt="old")
    attempts.finish_attempt(run, "old")
    attempts.get_or_create_attempt(run, "new")
    run.refresh_from_db()
    assert run.status == "running"


def test_a_launch_that_waited_in_a_spool_is_numbered_before_later_launches(project: Project) -> None:
    run, _ = runs.open_run(project, uid="u1", name="grpo", attempt="first", waited=timedelta(hours=2))
    runs.open_run(project, uid="u1", attempt="third", config={"lr": 3})
    attempts.finish_attempt(run, "third")
    runs.open_run(project, uid="u1", attempt="second", config={"lr": 2}, waited=timedelta(hours=1))
    run.refresh_from_db()
    order = run.attempts.order_by("number").values_list("number", "key")
    assert list(order) == [(1, "first"), (2, "second"), (3, "third")]
    assert (run.outcome, run.config) == ("finished", {"lr": 3})


def test_a_heartbeat_long_after_the_end_opens_the_run_and_one_in_flight_does_not(project: Project) -> None:
    run, _ = runs.open_run(project, name="grpo", attempt="a")
    attempts.finish_attempt(run, "a")
    attempts.record_heartbeat(run, attempt="a")
    run.refresh_from_db()
    assert run.outcome == "finished"
    Run.objects.filter(pk=run.pk).update(finished_at=timezone.now() - timedelta(minutes=1))
    attempts.record_heartbeat(run, attempt="a", phase="generate")
    run.refresh_from_db()
    assert (run.outcome, run.phase) == ("", "generate")


def test_an_older_launch_does_not_open_a_finished_run(project: Project) -> None:
    run, _ = runs.open_run(project, name="grpo", attempt="old")
    attempts.get_or_create_attempt(run, "new")
    attempts.finish_attempt(run, "new")
    Run.objects.filter(pk=run.pk).update(finished_at=timezone.now() - timedelta(minutes=1))
    attempts.record_heartbeat(run, attempt="old", step=3, dropped={"s1": {"full": 2}})
    run.refresh_from_db()
    assert (run.outcome, run.dropped) == ("finished", {"s1": {"full": 2}})


def test_dropped_counts_of_an_old_spool_do_not_open_the_run(project: Project) -> None:
    run, _ = runs.open_run(project, name="grpo", attempt="a")
    attempts.finish_attempt(run, "a")
    Run.objects.filter(pk=run.pk).update(finished_at=timezone.now() - timedelta(minutes=1))
    attempts.record_heartbeat(run, attempt="a", dropped={"s1": {"full": 2}})
    run.refresh_from_db()
    assert (run.outcome, run.dropped) == ("finished", {"s1": {"full": 2}})


def test_dropped_counts_are_kept_per_spool(project: Project) -> None:
    run, _ = runs.open_run(project, name="grpo", attempt="a")
    attempts.record_heartbeat(run, attempt="a", dropped={"s1": {"full": 2}})
    attempts.record_heartbeat(run, attempt="a", dropped={"s2": {"full": 1}})
    attempts.record_heartbeat(run, attempt="a", dropped={"s1": {"full": 5}})
    run.refresh_from_db()
    assert run.dropped == {"s1": {"full": 5}, "s2": {"full": 1}}


def test_a_heartbeat_with_any_reason_and_count_is_accepted(project: Project) -> None:
    run, attempt = runs.open_run(project, name="grpo", attempt="a")[0], "a"
    Attempt.objects.filter(run=run).update(alive_at=timezone.now() - timedelta(hours=1))
    long_reason = "slime: " + "x" * 80
    counts = {long_reason: 2, long_reason + " again": 3, "line\n\x00 \ud800": 1, "bad": "many", "less": -4, "half": 1.5}
    attempts.record_heartbeat(run, attempt=attempt, step=3, dropped={"s1": {**counts, "none": None, "all": 10**30}})
    run.refresh_from_db()
    replaced = "line\ufffd\ufffd \ufffd"
    zeros = dict.fromkeys(("bad", "less", "half", "none", "all"), 0)
    assert run.dropped == {"s1": {long_reason[:80]: 5, replaced: 1, **zeros}}
    assert timezone.now() - run.attempts.get().alive_at < timedelta(minutes=1)
