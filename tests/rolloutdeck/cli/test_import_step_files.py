"""`import` of the files of steps that can be replayed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.cli import entry
from rolloutdeck.client.process_identity import get_host_name
from rolloutdeck.protocol import wire
from rolloutdeck.watch.upload import RetryLaterError, UploadTarget
from rollouts.models import Artifact, Project, Run
from tests.rolloutdeck.support.step_files import check_artifacts, read_artifact, read_folder, run_import, write_step
from tests.rollouts.support.verl_batches import TOKENIZER, index_waiting_dumps
from tests.support import builders
from tests.support.patching import patch_everywhere

pytestmark = pytest.mark.django_db(transaction=True)


def test_import_sends_whole_steps_at_once_byte_for_byte(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = write_step(node, 1), write_step(node, 2)
    write_step(node, 3).joinpath("meta.json").unlink()
    assert run_import(node) == 0
    rows = list(Artifact.objects.order_by("step"))
    assert [(row.step, row.role, row.step_kind, row.attempt.key) for row in rows] == [
        (1, "rollout", "global_step", "first"),
        (2, "rollout", "global_step", "first"),
    ]
    assert [read_artifact(row) for row in rows] == [read_folder(first), read_folder(second)]
    assert check_artifacts() == ["ready", "ready"]
    assert rows[0].facts["rows"] == 32 and rows[0].facts["samples_per_prompt"] == 4
    message = capsys.readouterr()
    assert "to replay" in message.out and "1-2" in message.out
    assert "unfinished rollout-skip steps" in message.err and "GBS8_N4_in128_out256/3" in message.err


def test_the_same_import_again_sends_nothing(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_step(node, 1)
    run_import(node)
    capsys.readouterr()
    run_import(node)
    assert Artifact.objects.count() == 1
    row = next(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("to replay"))
    assert row == ["to", "replay", "1", "1", "1"]


def test_import_counts_samples_and_steps_to_replay_separately(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_step(node, 1)
    (node / "rollout").mkdir()
    (node / "rollout/1.jsonl").write_text('{"input": "1+1", "output": "2", "score": 1.0, "step": 1}\n')
    assert run_import(node) == 0
    words = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert "train" in words and "to" in words
    assert Run.objects.get().framework == "verl"


def test_import_on_pin_registers_the_step_and_sends_no_bytes(node: Path) -> None:
    folder = write_step(node, 1)
    assert run_import(node, "--artifacts", "on-pin") == 0
    row = Artifact.objects.get()
    assert (row.state, row.missing) == ("waiting", 2)
    assert row.origin == {
        "host": get_host_name(),
        "path": str(folder),
        "command": f"rolloutdeck import {folder} --project math --run grpo --attempt first",
    }


def test_the_command_that_the_server_shows_sends_the_bytes(node: Path) -> None:
    folder = write_step(node, 1)
    run_import(node, "--artifacts", "on-pin")
    words = Artifact.objects.get().origin["command"].split()
    assert words[0] == "rolloutdeck" and entry.main([*words[1:], "--no-wait"]) == 0
    assert Artifact.objects.count() == 1 and read_artifact(Artifact.objects.get()) == read_folder(folder)


def test_import_with_artifacts_never_sends_no_steps_and_says_so(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_step(node, 1)
    assert run_import(node, "--artifacts", "never") == 2
    assert not Artifact.objects.exists() and "--artifacts never" in capsys.readouterr().err


def test_importing_steps_of_an_existing_run_does_not_end_it(node: Path, project: Project) -> None:
    run = builders.run(project, "grpo", uid="u1")
    write_step(node, 1)
    run_import(node)
    run.refresh_from_db()
    assert run.outcome == ""


def test_import_waits_for_the_safety_check_and_names_unsafe_steps(
    node: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rolloutdeck.cli.folders import import_

    write_step(node, 1)
    write_step(node, 5).joinpath("gen_batch.dp").write_bytes(b"\x80\x04cposix\nsystem\n(Vtrue\ntR.")
    monkeypatch.setattr(
        import_.time, "sleep", lambda seconds: (check_artifacts(), index_waiting_dumps(Run.objects.get()))
    )
    assert entry.main(["import", str(node)]) == 1
    message = capsys.readouterr()
    assert "Replayable: 1 step." in message.out
    assert re.search(r"Step 5 in \S+ is unsafe:", message.err)


def test_import_continues_to_wait_after_failed_requests(
    node: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rolloutdeck.cli.folders import import_

    write_step(node, 1)
    request_run, failed = UploadTarget.request_run, []

    def fail_every_second_time(self: UploadTarget, method: str, path: str, **options: Any) -> Any:
        if (method, path) == ("GET", "artifacts/"):
            failed.append(len(failed) % 2 == 0)
            if failed[-1]:
                raise RetryLaterError("the server does not respond")
        return request_run(self, method, path, **options)

    monkeypatch.setattr(UploadTarget, "request_run", fail_every_second_time)
    monkeypatch.setattr(
        import_.time, "sleep", lambda seconds: (check_artifacts(), index_waiting_dumps(Run.objects.get()))
    )
    assert entry.main(["import", str(node)]) == 0
    assert "Replayable: 1 step." in capsys.readouterr().out and failed.count(True) >= 2


def test_the_tokenizer_is_stored_with_the_run_and_its_fingerprint_with_the_steps(node: Path) -> None:
    write_step(node, 1)
    run_import(node, "--tokenizer", TOKENIZER)
    tokenizer, result = Artifact.objects.get(role="tokenizer"), Artifact.objects.get(role="rollout")
    assert (tokenizer.step, list(tokenizer.files)) == (0, ["tokenizer.json"])
    assert read_artifact(tokenizer) == {"tokenizer.json": (TOKENIZER / "tokenizer.json").read_bytes()}
    assert len(tokenizer.facts["tokenizer"]) == 64 and result.facts["tokenizer"] == tokenizer.facts["tokenizer"]


def test_the_import_of_a_tokenizer_alone_prints_no_table_of_files(
    node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_step(node, 1)
    run_import(node)
    assert "known" in capsys.readouterr().out
    run_import("--tokenizer", TOKENIZER)
    message = capsys.readouterr().out
    assert message.endswith(" MB.\n") and message.count("\n") == 1
    assert Artifact.objects.filter(role="tokenizer").count() == 1


def test_a_path_without_a_tokenizer_is_refused_with_a_clear_message(
    node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_step(node, 1)
    assert run_import(node, "--tokenizer", node) == 2
    assert f"There is no tokenizer.json at {node}." in capsys.readouterr().err
    assert not Run.objects.exists()


def test_a_large_file_is_sent_in_parts(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch_everywhere(monkeypatch, wire, "MAX_PART_BYTES", 100_000)
    folder = write_step(node, 1)
    run_import(node)
    assert read_artifact(Artifact.objects.get()) == read_folder(folder)
