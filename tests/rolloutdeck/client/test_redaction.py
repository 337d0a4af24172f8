"""`ROLLOUTDECK_REDACT`: no text is stored or sent that the function has not returned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.cli import entry
from rolloutdeck.client.redaction import REMOVED, Redactor
from tests.rolloutdeck.support.fake_server import Receiver
from tests.rolloutdeck.support.programs import Start

FAILED = "samples: a text was removed, because ROLLOUTDECK_REDACT failed"


def hide_names(text: str) -> Any:
    if "fail" in text:
        raise ValueError(text)
    if "exit" in text:
        raise SystemExit(1)
    return None if "nothing" in text else text.replace("Ada", "[name]")


@pytest.fixture
def redaction_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUTDECK_REDACT", f"{__name__}:hide_names")


def read_rows(receiver: Receiver) -> list[dict[str, Any]]:
    return [json.loads(line) for body in (body for *_, body in receiver.dumps) for line in body.splitlines()]


def read_stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_every_text_of_a_row_is_redacted_before_the_spool(
    redaction_hook: None, start: Start, connected_receiver: Receiver, spool_root: Path
) -> None:
    connected_receiver.mode = "500"
    run = start()
    turn = {"role": "user", "content": "I am Ada"}
    row = {"prompt": "Who?", "response": "Ada", "messages": [turn], "score": 1.0, "response_ids": [5, 6]}
    run.log_samples([row], step=1)
    run._threads.writer.flush(10)
    assert b"Ada" not in read_stored(spool_root)
    connected_receiver.mode = "ok"
    run.finish()
    turn["content"] = "I am [name]"
    assert read_rows(connected_receiver) == [{"prompt": "Who?", "response": "[name]", "messages": [turn], "score": 1.0}]


@pytest.mark.parametrize("word", ["fail", "exit", "nothing"])
def test_a_text_whose_redaction_fails_is_removed_and_counted(
    word: str, redaction_hook: None, start: Start, connected_receiver: Receiver
) -> None:
    run = start()
    run.log_samples([{"prompt": "Ada?", "response": f"{word} Ada"}, {"prompt": "Ada?", "response": "4"}], step=1)
    run.finish()
    assert [(row["prompt"], row["response"]) for row in read_rows(connected_receiver)] == [
        ("[name]?", REMOVED), ("[name]?", "4")
    ]  # fmt: skip
    assert run._threads.spool.dropped == {FAILED: 1}
    status = run.status()
    assert (status.sent, status.dropped) == (2, {})  # both rows were sent
    assert "1 text: removed, because ROLLOUTDECK_REDACT failed" in str(status)


@pytest.mark.parametrize("name", ["no_such_module:f", "json:no_such_function", "json", "json:__doc__"])
def test_without_a_function_all_texts_are_removed(name: str) -> None:
    redactor = Redactor(name)
    assert (
        b"".join(redactor.redact_lines([b'{"a": "Ada", "b": 1}']))
        == json.dumps({"a": REMOVED, "b": 1}).encode() + b"\n"
    )


def test_files_are_redacted_line_by_line_or_not_stored(
    redaction_hook: None, start: Start, connected_receiver: Receiver, spool_root: Path, tmp_path: Path
) -> None:
    lines, other = tmp_path / "1.jsonl", tmp_path / "2.bin"
    lines.write_text('{"input": "Ada", "output": "I am Ada", "score": 1}\n' * 2)
    other.write_bytes(b"Ada \x80")
    run = start()
    run.log_file(lines, step=1)
    run.log_file(other, step=2)
    run.log_artifact(other, step=2)
    run.finish()
    assert read_rows(connected_receiver) == [{"input": "[name]", "output": "I am [name]", "score": 1}] * 2
    reason = "ROLLOUTDECK_REDACT cannot read them"
    assert run._threads.spool.dropped == {f"files: {reason}": 1, f"artifacts: {reason}": 1}


def test_commands_that_send_files_as_they_are_refuse(
    redaction_hook: None, connected_receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["watch", str(tmp_path)], ["import", str(tmp_path), "--project", "p", "--run", "r"]):
        assert entry.main(command) == 2
        assert "sends files as they are" in capsys.readouterr().err
