"""The commands as a shell sees them: what they print, where, and with which status."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.cli.folders import import_
from rolloutdeck.lib import local_servers
from tests.rolloutdeck.support.commands import Command
from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.support.fake_server import wait_until

DUMPS = Path(__file__).parents[2] / "data" / "verl_jsonl"
RUN_OPTIONS = ("--project", "math", "--run", "grpo")


def test_import_sends_every_file_of_a_real_run_and_says_what_it_sent(deck: Deck, command: Command) -> None:
    status, out, _ = command("import", DUMPS / "v0", *RUN_OPTIONS)
    assert status == 0
    assert sorted(step for _, step in deck.steps("train")) == [1, 2, 3, 4, 5]
    assert sorted(step for _, step in deck.steps("eval")) == [0, 2, 4, 5]
    assert [len(body.split(b"\n")) - 1 for *_, body in deck.metrics()] == [6]
    assert "288 samples" in out and "0, 2, 4-5" in out


def test_an_imported_run_has_ended(deck: Deck, command: Command) -> None:
    command("import", DUMPS / "v0", *RUN_OPTIONS, "--attempt", "night")
    (path, result) = deck.posts[-1]
    assert path.endswith("/finish/") and result == {"attempt": "night", "outcome": "finished"}


def test_import_and_watch_take_the_attempt_of_the_environment(
    deck: Deck, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_ATTEMPT", "job-7")
    command("import", DUMPS / "v0" / "val", *RUN_OPTIONS)
    command("watch", DUMPS / "v0" / "rollout", *RUN_OPTIONS, "--once")
    assert deck.attempts() == ["job-7"]
    command("import", DUMPS / "v0" / "val", *RUN_OPTIONS, "--attempt", "night")
    assert deck.attempts() == ["job-7", "night"]


def test_importing_into_a_run_that_is_being_trained_does_not_end_it(deck: Deck, command: Command) -> None:
    command("import", DUMPS / "v0" / "rollout", *RUN_OPTIONS, "--attempt", "launch")
    deck.answers["runs/"] = {"results": [{"name": "grpo", "status": "running"}]}
    _, _, err = command("import", DUMPS / "v0" / "val", *RUN_OPTIONS)
    assert "The run is still being trained, so it is not marked as finished." in err
    assert [result["attempt"] for result in deck.posted("/finish/")] == ["launch"]


def test_import_does_not_wait_for_a_pipe(tmp_path: Path, command: Command) -> None:
    os.mkfifo(tmp_path / "1.jsonl")
    status, _, err = command("import", tmp_path, *RUN_OPTIONS)
    assert status == 2 and "Nothing to import" in err


@pytest.mark.parametrize(
    ("name", "body", "says"),
    [
        ("a.csv", "frage,antwort\n1,2\n", "--map prompt=COLUMN,response=COLUMN; a.csv has `frage`, `antwort`."),
        ("a.jsonl", '{"doc": {}, "resps": []}\n', "a.jsonl has `doc`, `resps`."),
        ("a.parquet", "PAR1", "--map prompt=COLUMN,response=COLUMN."),
        ("a.parquet", "PAR1", "Skipped 1: Parquet files that are damaged or incomplete (a.parquet)"),
        ("a.csv", "", "Skipped 1: empty files (a.csv)"),
        ("a.csv", "frage,antwort\n1,2\n", "Skipped 1: tables without known sample columns"),
    ],
)
def test_the_error_for_an_unknown_table_says_how_to_import_it(
    tmp_path: Path, command: Command, name: str, body: str, says: str
) -> None:
    (tmp_path / name).write_text(body)
    (tmp_path / "gone.csv").symlink_to(tmp_path / "nowhere.csv")
    for path in (tmp_path / name, tmp_path):
        status, _, err = command("import", path, *RUN_OPTIONS)
        assert status == 2 and says in err


def test_import_and_watch_write_a_name_that_is_not_utf8_in_the_same_way(
    deck: Deck, tmp_path: Path, command: Command
) -> None:
    folder = tmp_path / os.fsdecode(b"r\xff") / "rollout"
    folder.mkdir(parents=True)
    for name in ("1.jsonl", "2.txt"):
        row = {"input": "q", "output": "a", "score": 1.0, "step": 1}
        (folder / name).write_text(json.dumps(row) + "\n")
    status, _, err = command("import", tmp_path, *RUN_OPTIONS)
    assert status == 0 and "Skipped 1: .txt files (r\\xff/rollout/2.txt)" in err
    assert command("watch", tmp_path, *RUN_OPTIONS, "--once", "--poll", "0.01")[0] == 0
    assert [query["source"] for _, query, _ in deck.dumps] == ["r\\xff/rollout/1.jsonl"]


def test_importing_twice_sends_no_file_twice(deck: Deck, command: Command) -> None:
    command("import", DUMPS / "v0", *RUN_OPTIONS)
    before = list(deck.dumps)
    status, out, _ = command("import", DUMPS / "v0", *RUN_OPTIONS)
    assert status == 0 and deck.dumps == before
    assert out.splitlines()[1].split() == ["train", "5", "5", "1-5"]


def test_import_and_watch_of_one_folder_give_one_set_of_dumps(deck: Deck, command: Command) -> None:
    command("import", DUMPS / "v0", *RUN_OPTIONS)
    before = list(deck.dumps)
    assert command("watch", DUMPS / "v0", *RUN_OPTIONS, "--once", "--poll", "0.01")[0] == 0
    assert deck.dumps == before


def test_import_says_why_files_failed_on_the_server_and_ends_with_one(deck: Deck, command: Command) -> None:
    deck.failed = {"rollout/3.jsonl": "Line 1 is no JSON object."}
    status, _, err = command("import", DUMPS / "v0", *RUN_OPTIONS)
    assert status == 1 and "rollout/3.jsonl failed: Line 1 is no JSON object." in err


def test_import_goes_on_past_a_refused_file_and_names_it(deck: Deck, tmp_path: Path, command: Command) -> None:
    for step in (1, 2):
        row = {"input": f"q{step}", "output": "a", "score": 1.0, "step": step}
        (tmp_path / f"{step}.jsonl").write_text(json.dumps(row) + "\n")
    deck.mode, deck.only = "413", "q1"
    status, _, err = command("import", tmp_path, *RUN_OPTIONS)
    assert status == 1 and "1.jsonl is not imported: No, because of a test." in err
    assert deck.steps() == [("files", 2)]


def test_import_goes_on_past_a_file_that_is_gone(
    deck: Deck, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        row = {"input": f"q{step}", "output": "a", "score": 1.0, "step": step}
        (tmp_path / f"{step}.jsonl").write_text(json.dumps(row) + "\n")
    upload = import_._upload_file

    def delete_and_upload(target: Any, file: Any, *words: Any) -> None:
        if file.path.name == "1.jsonl":
            file.path.unlink()
        upload(target, file, *words)

    monkeypatch.setattr(import_, "_upload_file", delete_and_upload)
    status, _, err = command("import", tmp_path, *RUN_OPTIONS)
    assert status == 1 and "1.jsonl is not imported: It can't be read: No such file or directory." in err
    assert deck.steps() == [("files", 2)]


def test_import_goes_on_past_a_folder_that_may_not_be_read_and_names_it(
    deck: Deck, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions do not stop root, who may run the tests."""
    scandir = os.scandir

    def refuse_one(path: Any = ".") -> Any:
        if isinstance(path, (str, Path)) and Path(path) == tmp_path / "run" / "val":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse_one)
    for split in ("rollout", "val"):
        (tmp_path / "run" / split).mkdir(parents=True)
        (tmp_path / "run" / split / "1.jsonl").write_text('{"input": "q", "output": "a", "score": 1.0, "step": 1}\n')
    status, _, err = command("import", tmp_path / "run", *RUN_OPTIONS)
    assert status == 1 and "Skipped 1: folders that can't be read (val)\n" in err
    assert deck.steps() == [("files", 1)] and deck.steps("eval") == []
    status, _, err = command("import", tmp_path / "run" / "val", *RUN_OPTIONS)
    assert status == 2 and "Skipped 1: folders that can't be read (val)\n" in err and "Nothing to import" in err


def test_import_with_a_token_that_may_not_read_sends_and_says_so(deck: Deck, command: Command) -> None:
    deck.may_read = False
    status, _, err = command("import", DUMPS / "v0", *RUN_OPTIONS)
    assert status == 0 and len(deck.dumps) == 10 and "may not read" in err


def test_import_takes_a_last_line_without_a_line_break_but_not_a_truncated_one(
    deck: Deck, tmp_path: Path, command: Command
) -> None:
    full = '{"step": 1, "data": {"loss": 1}}'
    (tmp_path / "whole.jsonl").write_text(full + "\n" + full)
    (tmp_path / "torn.jsonl").write_text(full + "\n" + full[:-3])
    _, _, err = command("import", tmp_path, *RUN_OPTIONS)
    sent = {query["source"]: [] for _, query, _ in deck.dumps}
    for _, query, body in deck.dumps:
        sent[query["source"]].append(body.decode())
    assert "".join(sent["whole.jsonl"]) == full + "\n" + full
    assert "".join(sent["torn.jsonl"]) == full + "\n"
    assert "torn.jsonl ends in the middle of a line" in err and "whole.jsonl" not in err


def test_import_reports_an_incomplete_json_file(deck: Deck, tmp_path: Path, command: Command) -> None:
    name = "outputs-rl-m-d.json"
    (tmp_path / name).write_text('[{"question": "q"')
    _, _, err = command("import", tmp_path, *RUN_OPTIONS)
    assert f"{name} is incomplete: is it still being written?\n" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("import", "/nowhere", *RUN_OPTIONS), "/nowhere"),
        (("import", DUMPS, "--project", "math"), "--run"),
        (("import", DUMPS, "--run", "grpo"), "--project"),
        (("import", DUMPS, *RUN_OPTIONS, "--format", "csv"), "csv"),
        (("import", DUMPS, *RUN_OPTIONS, "--step-kind", "eval=minutes"), "minutes"),
        (("import", Path(__file__), *RUN_OPTIONS), "no dump file"),
        (("watch", *RUN_OPTIONS), "--tree"),
        (("watch", DUMPS, *RUN_OPTIONS, "--poll", "0"), "--poll"),
        (("samples", "--run", "grpo", "--step", "last"), "last"),
        (("samples", "--run", "grpo", "--worst", "0"), "--worst"),
        (("samples",), "--run"),
        (("token", "create", "ci", "--project", "math", "--scope", "all"), "all"),
        (("sync", "/nowhere"), "/nowhere"),
        (("check", "--trainer", "nobody"), "nobody"),
        (("check", "--trainer", "verl", "--config", "/nowhere"), "/nowhere"),
    ],
)
def test_bad_input_is_one_sentence_and_status_two(command: Command, words: tuple[object, ...], says: str) -> None:
    status, out, err = command(*words)
    assert status == 2 and out == ""
    assert says in err.splitlines()[-1] and err.rstrip().endswith((".", "?")) and "Traceback" not in err


def test_an_unknown_format_lists_each_known_one_once(command: Command) -> None:
    _, _, err = command("import", DUMPS, *RUN_OPTIONS, "--format", "nope")
    names = err.rstrip(".\n").rpartition("Available: ")[2].split(", ")
    assert len(names) == len(set(names)) and {"table", "token-table", "native", "verl-jsonl"} <= set(names)


@pytest.mark.parametrize("share", ["abc", "101", "-1", "%", "nan"])
def test_a_share_that_is_no_percentage_is_named(command: Command, share: str) -> None:
    status, _, err = command("fsck", f"--sample={share}")
    assert status == 2 and err.rstrip().endswith(f"{share} is not a percentage between 0 and 100")


def test_sync_without_waiting_files_says_so(command: Command, tmp_path: Path) -> None:
    assert command("sync", tmp_path) == (0, "Nothing to send.\n", "")


@pytest.mark.parametrize(
    "words", [("import", DUMPS, *RUN_OPTIONS), ("samples", "--run", "x"), ("token", "create", "x", *RUN_OPTIONS[:2])]
)
@pytest.mark.parametrize(
    ("mode", "says"), [("401", "because of a test"), ("login", "not from a Rolloutdeck server"), ("down", "refused")]
)
def test_a_server_that_refuses_or_does_not_answer_gives_one_sentence_and_status_two(
    deck: Deck,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[object, ...],
    mode: str,
    says: str,
) -> None:
    monkeypatch.setattr("rolloutdeck.cli.folders.import_.TRIES", 1)
    deck.mode = mode
    if mode == "down":
        monkeypatch.setenv("ROLLOUTDECK_URL", "http://127.0.0.1:9")
    status, out, err = command(*words)
    assert status == 2 and out == "" and says in err.splitlines()[-1]


def test_without_a_server_the_error_says_how_to_start_one(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLOUTDECK_URL")
    status, _, err = command("import", DUMPS, *RUN_OPTIONS)
    assert status == 2 and "rolloutdeck up" in err


@pytest.mark.parametrize(
    ("token", "sent"), [("", ""), ("rd_local", ""), ("rd_other", "Bearer rd_other")], ids=["none", "local", "other"]
)
def test_the_local_token_never_goes_to_another_server_and_a_given_one_does(
    deck: Deck, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str, sent: str
) -> None:
    monkeypatch.delenv("ROLLOUTDECK_URL")
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", token)
    local = tmp_path / "home" / ".rolloutdeck" / "local.json"
    local.parent.mkdir(parents=True)
    server = {"url": "http://127.0.0.1:8460", "token": "rd_local", "host": local_servers._get_host_name()}
    local.write_text(json.dumps(server))
    command("import", DUMPS / "v0", *RUN_OPTIONS, "--url", deck.url)
    assert set(deck.tokens) == {sent}


def test_options_win_over_the_environment(deck: Deck, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUTDECK_URL", "http://127.0.0.1:9")
    assert command("import", DUMPS / "v0", *RUN_OPTIONS, "--url", deck.url, "--token", "other")[0] == 0
    assert set(deck.tokens) == {"Bearer other"}


def test_ctrl_c_ends_watch_without_a_traceback_and_says_how_to_continue(deck: Deck, tmp_path: Path) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "ROLLOUTDECK_URL": deck.url, "ROLLOUTDECK_TOKEN": "t"}
    watch = [sys.executable, "-m", "rolloutdeck", "watch", str(DUMPS / "v0"), *RUN_OPTIONS, "--poll", "0.05"]
    running = subprocess.Popen(watch, env=environ, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: deck.dumps)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=20)
    assert running.returncode == 130
    assert err.endswith("Stopped. Run the same command to continue from here.\n") and "Traceback" not in err


def test_ctrl_c_ends_an_import_and_says_how_to_continue(
    deck: Deck, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload, files = import_._upload_file, iter(range(2))

    def interrupt_third_upload(*words: Any) -> None:
        if next(files, None) is None:
            raise KeyboardInterrupt
        upload(*words)

    monkeypatch.setattr(import_, "_upload_file", interrupt_third_upload)
    status, _, err = command("import", DUMPS / "v0", *RUN_OPTIONS)
    assert status == 130 and err.endswith("Stopped. 2 files uploaded. Run the same command again to upload the rest.\n")


INTERRUPTED = """
import signal, sys
from rolloutdeck.cli import entry as cli
from rolloutdeck.cli.folders import watch

class SignalOnDelete:
    def __del__(self):
        signal.raise_signal(signal.SIG{name})

turn = watch.WatchLoop.run_once

def turns(loop):
    SignalOnDelete()
    return turn(loop)

watch.WatchLoop.run_once = turns
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_a_signal_that_comes_while_an_object_is_finalized_ends_watch_too(deck: Deck, tmp_path: Path, name: str) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "ROLLOUTDECK_URL": deck.url, "ROLLOUTDECK_TOKEN": "t"}
    watch = [
        sys.executable,
        "-c",
        INTERRUPTED.format(name=name),
        "watch",
        str(DUMPS / "v0"),
        *RUN_OPTIONS,
        "--poll",
        "0.05",
    ]
    done = subprocess.run(watch, env=environ, capture_output=True, text=True, timeout=600)
    assert done.returncode == 130 and "Traceback" not in done.stderr
    assert done.stderr.endswith("Stopped. Run the same command to continue from here.\n")


def test_commands_import_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "from rolloutdeck.cli.entry import COMMANDS\n"
        "import importlib\n"
        "[importlib.import_module(module) for name, (module, *_) in COMMANDS.items() if name != 'up']\n"
        "foreign = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(foreign - set(sys.stdlib_module_names) - {'rolloutdeck'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout == "[]\n"
