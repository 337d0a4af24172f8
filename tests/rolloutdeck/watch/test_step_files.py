"""Steps that `watch` registers on the server, and uploads after they are pinned."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from rolloutdeck.cli import entry
from rolloutdeck.cli.folders import watch_report
from rolloutdeck.cli.folders.run_follower import RunFollower
from rolloutdeck.client import artifact
from rolloutdeck.client.process_identity import get_host_name
from rolloutdeck.client.upload import artifact_uploads
from rolloutdeck.lib.http import ServerClient
from rolloutdeck.protocol import wire
from rolloutdeck.trainer_api import registry
from rolloutdeck.watch.artifact_collector import ArtifactOptions
from rolloutdeck.watch.follower import WatchedFolder
from rolloutdeck.watch.types import ScanOptions
from rolloutdeck.watch.upload import RetryLaterError, UploadTarget
from rollouts.models import Artifact, Run
from rollouts.pins import pins
from tests.dashboard.support.asgi_server import Site
from tests.rolloutdeck.support.logged_rows import index_all
from tests.rolloutdeck.support.step_files import check_artifacts, pin_step, read_artifact, read_folder, write_step
from tests.rollouts.support.verl_batches import ASYNC, TOKENIZER, V1
from tests.support.patching import patch_everywhere

DATA = Path(__file__).parents[2] / "data"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def start_watch(site: Site, secret: str, node: Path) -> Callable[..., RunFollower]:
    """Starts a `watch` of the node's disk as a new process does."""

    def start(mode: str = "on-pin", port: int = site.port) -> RunFollower:
        target = UploadTarget(ServerClient(f"http://127.0.0.1:{port}", secret), "math", "grpo", "files")
        return RunFollower(target, [WatchedFolder(node)], node, ScanOptions(), artifact_options=ArtifactOptions(mode))

    return start


StartWatch = Callable[..., RunFollower]


def run_turns(watch: RunFollower, count: int = 3, *, scans: bool = True) -> None:
    for _ in range(count):
        watch.collector._next_scan_at = 0.0 if scans else time.monotonic() + 60
        watch.send_ready()


def test_watch_registers_complete_steps_and_sends_no_bytes_before_a_pin(
    node: Path, start_watch: StartWatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_step(node, 1)
    write_step(node, 2, V1)
    watch = start_watch()
    run_turns(watch)
    assert "steps 1-2 can be pinned." in capsys.readouterr().err
    assert list(Artifact.objects.order_by("step").values_list("step", "role", "state")) == [
        (1, "rollout", "waiting"),
        (2, "rollout_tq", "waiting"),
    ]
    assert watch.pending_count == 0


def test_steps_are_registered_again_if_the_server_does_not_know_the_run_any_more(
    node: Path, start_watch: StartWatch
) -> None:
    write_step(node, 1)
    run_turns(start_watch())
    Run.objects.all().delete()
    run_turns(start_watch())
    assert Artifact.objects.get().step == 1


def test_a_step_is_pending_until_the_server_knows_it(node: Path, start_watch: StartWatch) -> None:
    write_step(node, 1)
    watch = start_watch()
    request_run = watch.target.request_run

    def fail(method: str, path: str, **options: Any) -> Any:
        if path.startswith("artifacts/"):
            raise RetryLaterError("the server does not respond")
        return request_run(method, path, **options)

    watch.target.request_run = fail  # type: ignore[method-assign]
    with pytest.raises(RetryLaterError):
        run_turns(watch)
    run_turns(watch, 1, scans=False)
    assert watch.pending_count == 1
    watch.target.request_run = request_run  # type: ignore[method-assign]
    run_turns(watch)
    assert watch.pending_count == 0 and Artifact.objects.get().step == 1


def test_a_step_that_is_being_written_is_registered_when_its_marker_exists(node: Path, start_watch: StartWatch) -> None:
    folder = write_step(node, 1)
    marker = (folder / "meta.json").read_bytes()
    (folder / "meta.json").unlink()
    watch = start_watch()
    run_turns(watch)
    assert not Artifact.objects.exists()
    (folder / "meta.json").write_bytes(marker)
    run_turns(watch, 1)
    assert not Artifact.objects.exists()  # it must be unchanged at another scan
    run_turns(watch)
    assert Artifact.objects.get().step == 1


def test_a_rollout_of_slime_is_sent_as_samples_and_can_be_pinned_once_it_is_complete(
    node: Path, start_watch: StartWatch, owner: User
) -> None:
    full = (DATA / "slime/rollout_data/1.pt").read_bytes()
    (node / "0.pt").write_bytes((DATA / "slime/rollout_data/0.pt").read_bytes())
    (node / "1.pt").write_bytes(full[:5000])
    watch = start_watch()
    run_turns(watch)
    assert list(Artifact.objects.values_list("step", "step_kind", "state")) == [(0, "rollout_id", "waiting")]
    (node / "1.pt").write_bytes(full)
    run_turns(watch)
    assert sorted(Run.objects.get().dumps.values_list("step", "source")) == [(0, "0.pt"), (1, "1.pt")]
    pins.pin_step(Run.objects.get(), 1, owner, step_kind="rollout_id")
    watch.collector._next_poll_at = 0.0
    run_turns(watch, 6)
    assert check_artifacts() == ["waiting", "ready"]
    assert read_artifact(Artifact.objects.get(step=1)) == {"1.pt": full}


def test_a_pin_causes_the_upload_of_its_step_and_of_no_other(node: Path, start_watch: StartWatch, owner: User) -> None:
    folder = write_step(node, 1)
    write_step(node, 2)
    watch = start_watch()
    run_turns(watch)
    pin_step(1, owner)
    run_turns(watch, 1)
    assert read_artifact(Artifact.objects.get(step=1)) == read_folder(folder)
    assert check_artifacts() == ["ready", "waiting"]
    assert list(Run.objects.get().pollers) == [get_host_name()]


def test_a_restarted_watch_reads_no_batch_again_and_still_sends(
    node: Path, start_watch: StartWatch, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_step(node, 1)
    run_turns(start_watch())
    pin_step(1, owner)
    artifact._hashes.clear()
    with monkeypatch.context() as patched:
        patched.setattr(artifact, "hash_stable_file", lambda *_: pytest.fail("hashed again"))
        patch_everywhere(patched, registry, "read_step", lambda *_: pytest.fail("read again"))
        run_turns(start_watch())
    assert read_artifact(Artifact.objects.get()) == read_folder(folder)


def test_an_interrupted_upload_continues_where_it_stopped(
    node: Path, start_watch: StartWatch, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_everywhere(monkeypatch, wire, "MAX_PART_BYTES", 100_000)
    folder = write_step(node, 1)
    watch = start_watch()
    run_turns(watch)
    pin_step(1, owner)
    spans: list[str] = []
    request_run = watch.target.request_run

    def fail_third_request(method: str, path: str, **options: Any) -> Any:
        if span := options.get("headers", {}).get("Content-Range"):
            spans.append(span)
            if len(spans) == 3:
                raise RetryLaterError("the server does not answer")
        return request_run(method, path, **options)

    monkeypatch.setattr(watch.target, "request_run", fail_third_request)
    with pytest.raises(RetryLaterError):
        watch.send_ready()
    assert Artifact.objects.get().state == "uploading"
    run_turns(watch)
    size = (folder / "gen_batch.dp").stat().st_size
    assert spans[:3] == [f"bytes */{size}", f"bytes 0-99999/{size}", f"bytes 100000-199999/{size}"]
    assert spans[3:5] == [f"bytes */{size}", f"bytes 100000-199999/{size}"]
    assert read_artifact(Artifact.objects.get()) == read_folder(folder)


def test_with_artifacts_now_every_complete_step_is_sent(node: Path, start_watch: StartWatch) -> None:
    folder = write_step(node, 1)
    run_turns(start_watch("now"))
    assert read_artifact(Artifact.objects.get()) == read_folder(folder)


def test_with_artifacts_never_no_step_is_registered(node: Path, start_watch: StartWatch) -> None:
    write_step(node, 1)
    run_turns(start_watch("never"))
    assert not Artifact.objects.exists()


def test_a_file_that_changed_after_it_was_registered_is_never_sent(
    node: Path, start_watch: StartWatch, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_step(node, 1)
    watch = start_watch()
    run_turns(watch)
    pin_step(1, owner)
    with (folder / "gen_batch.dp").open("ab") as file:
        file.write(b"x")
    run_turns(watch, 1, scans=False)
    row = Artifact.objects.get()
    assert row.state == "gone" and "changed since it was registered" in row.message
    assert str(folder / "gen_batch.dp") in capsys.readouterr().err


def test_the_server_gets_only_files_that_this_watch_registered(node: Path, start_watch: StartWatch) -> None:
    write_step(node, 1)
    watch = start_watch()
    run_turns(watch)
    (result,) = watch.collector.upload_queue.artifacts
    other = "0" * 64
    watch.collector.upload_queue.enqueue_requested(
        [
            {"artifact": other, "path": "gen_batch.dp", "sha256": other, "bytes": 1, "received": 0},
            {"artifact": result, "path": "../../../../etc/passwd", "sha256": other, "bytes": 1, "received": 0},
            {"artifact": result, "path": "/etc/passwd"},
            "nonsense",
        ]
    )
    assert watch.collector.upload_queue.pending_count == 0


def test_what_the_server_refuses_is_reported_once_and_delays_nothing_else(
    node: Path, start_watch: StartWatch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_step(node, 1)
    watch = start_watch()
    run_turns(watch)
    monkeypatch.setattr("rollouts.pins.manifests.MAX_FACTS_BYTES", 1)  # a server that takes nothing any more
    monkeypatch.setattr(artifact_uploads, "get_host_name", lambda: "node" * 500)
    watch.collector.options = ArtifactOptions("on-pin", artifact.build_tokenizer_artifact(TOKENIZER))
    (result,) = watch.collector.upload_queue.artifacts.values()
    watch.collector.upload_queue.missing_artifacts.append((result, "it is gone"))
    (node / "9.jsonl").write_bytes(b'{"input": "a", "output": "b", "score": 1, "step": 9}\n')
    for _ in range(3):
        watch.collector._next_poll_at = 0.0
        run_turns(watch, 1)
    message = capsys.readouterr().err
    assert message.count("is skipped: `facts` must be an object") == 1
    assert message.count("the server does not list the requested files: `host`") == 1
    assert message.count("the server rejected the report that it is gone: `facts`") == 1
    assert (
        not watch.collector.upload_queue.missing_artifacts and Run.objects.get().dumps.filter(source="9.jsonl").exists()
    )


def test_steps_of_a_fully_async_run_have_their_own_step_kind(node: Path, start_watch: StartWatch) -> None:
    write_step(node, 41, ASYNC, "exp_proj/GBS1_N4_in128_out256")
    run_turns(start_watch())
    row = Artifact.objects.get()
    assert (row.role, row.step_kind, row.step) == ("async_rollout", "feed_index", 41)


def test_a_run_of_a_tree_that_has_only_steps_to_replay_is_found(node: Path) -> None:
    write_step(node, 4, tree="math/night/skip/exp_proj/GBS8_N4_in128_out256")
    tree = ["--tree", f"{node}/{{project}}/{{run}}/{{split}}"]
    assert entry.main(["watch", *tree, "--once", "--poll", "0.01", "--artifacts", "now"]) == 0
    row = Artifact.objects.get()
    assert (row.run.name, row.step, row.missing) == ("night", 4, 0)


def test_watch_once_ends_when_all_steps_are_registered(node: Path) -> None:
    write_step(node, 1)
    assert entry.main(["watch", str(node), "--once", "--poll", "0.01", "--tokenizer", str(TOKENIZER)]) == 0
    assert sorted(Artifact.objects.values_list("role", "missing")) == [("rollout", 2), ("tokenizer", 0)]


def watch_once(*words: object) -> int:
    return entry.main(["watch", *map(str, words), "--once", "--poll", "0.01"])


def test_watch_once_sends_all_but_a_requested_file_that_can_t_be_read(
    node: Path, owner: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unreadable = write_step(node, 1) / "gen_batch.dp"
    write_step(node, 2, V1)
    assert watch_once(node) == 0
    for number in (1, 2):
        pin_step(number, owner)
    open_path = Path.open

    def fail_for_one(path: Path, *words: Any, **options: Any) -> Any:
        if path == unreadable:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return open_path(path, *words, **options)

    monkeypatch.setattr(Path, "open", fail_for_one)
    (node / "9.jsonl").write_bytes(b'{"input": "a", "output": "b", "score": 1, "step": 9}\n')
    capsys.readouterr()
    assert watch_once(node) == 2
    message = capsys.readouterr().err
    assert message.count(f"grpo: {unreadable}: Input/output error. Trying again.\n") == 1
    assert Run.objects.get().dumps.filter(source="9.jsonl").exists()
    assert list(Artifact.objects.order_by("step").values_list("step", "missing")) == [(1, 1), (2, 0)]


def test_watch_once_fails_if_there_is_no_folder(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert watch_once(node, node / "typo") == 2
    error = capsys.readouterr().err
    assert f"There is no file or folder {node / 'typo'}." in error and "without --once" in error
    assert not Run.objects.exists()


def test_watch_once_names_what_was_not_sent_and_what_the_server_rejected(
    node: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"input": "a", "output": "b", "score": 1, "step": 1}
    (node / "1.jsonl").write_text(json.dumps(good) + "\n{broken\n")
    (node / "2.jsonl").write_text(json.dumps(good)[:-1] + "\n" + "{broken\n")
    (node / "other.jsonl").write_text(json.dumps({"colour": "red"}) + "\n")
    monkeypatch.setattr(watch_report, "_wait_until_indexed", index_first(watch_report._wait_until_indexed))
    assert watch_once(node, "--format", "verl-jsonl") == 1
    error = capsys.readouterr().err
    assert "1.jsonl, line 2: not JSON" in error and "2.jsonl failed: " in error
    (node / "empty").mkdir()
    assert watch_once(node) == 0
    error = capsys.readouterr().err
    assert "Skipped 1: JSONL files of an unknown format (other.jsonl)" in error and "failed" not in error


def index_first(wait: Callable[..., Any]) -> Callable[..., Any]:
    def index_and_wait(*given: Any) -> Any:
        index_all()
        return wait(*given)

    return index_and_wait
