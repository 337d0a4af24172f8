"""The commands as a shell sees them: what they print, where, and with which status."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.cli import import_
from rolloutdeck.cli.entry import main
from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.support.fake_server import until
from tests.rolloutdeck.support.programs import ROOT

DUMPS = Path(__file__).parents[2] / "data" / "verl_jsonl"
HERE = ("--project", "math", "--run", "grpo")
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def deck() -> Iterator[Deck]:
    running = Deck()
    yield running
    running.down()


@pytest.fixture
def command(deck: Deck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Status, standard output and standard error of a command."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ROLLOUTDECK_URL", deck.url)
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", "secret")

    def run(*words: object) -> tuple[int, str, str]:
        status = main([str(word) for word in words])
        return status, *capsys.readouterr()

    return run


def test_import_sends_every_file_of_a_real_run_and_says_what_it_sent(deck: Deck, command: Command) -> None:
    status, out, _ = command("import", DUMPS / "v0", *HERE)
    assert status == 0
    assert sorted(step for _, step in deck.steps("train")) == [1, 2, 3, 4, 5]
    assert sorted(step for _, step in deck.steps("eval")) == [0, 2, 4, 5]
    assert [len(body.split(b"\n")) - 1 for *_, body in deck.metrics()] == [6]
    assert "288 samples" in out and "0, 2, 4-5" in out


def test_an_imported_run_has_ended(deck: Deck, command: Command) -> None:
    command("import", DUMPS / "v0", *HERE, "--attempt", "night")
    (path, result) = deck.posts[-1]
    assert path.endswith("/finish/") and result == {"attempt": "night", "outcome": "finished"}


def test_importing_into_a_run_that_is_being_trained_does_not_end_it(deck: Deck, command: Command) -> None:
    command("import", DUMPS / "v0" / "rollout", *HERE, "--attempt", "launch")
    deck.answers["runs/"] = {"results": [{"name": "grpo", "status": "running"}]}
    _, _, err = command("import", DUMPS / "v0" / "val", *HERE)
    assert "The run is still being trained, so it is not marked as finished." in err
    assert [result["attempt"] for result in deck.posted("/finish/")] == ["launch"]


def test_import_waits_for_no_pipe(tmp_path: Path, command: Command) -> None:
    os.mkfifo(tmp_path / "1.jsonl")
    status, _, err = command("import", tmp_path, *HERE)
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
def test_a_table_that_nobody_knows_says_how_it_is_taken(
    tmp_path: Path, command: Command, name: str, body: str, says: str
) -> None:
    (tmp_path / name).write_text(body)
    (tmp_path / "gone.csv").symlink_to(tmp_path / "nowhere.csv")
    for path in (tmp_path / name, tmp_path):
        status, _, err = command("import", path, *HERE)
        assert status == 2 and says in err


def test_importing_twice_doubles_nothing(deck: Deck, command: Command) -> None:
    command("import", DUMPS / "v0", *HERE)
    before = list(deck.dumps)
    status, out, _ = command("import", DUMPS / "v0", *HERE)
    assert status == 0 and deck.dumps == before
    assert out.splitlines()[1].split() == ["train", "5", "5", "1-5"]


def test_import_and_watch_of_one_folder_give_one_set_of_dumps(deck: Deck, command: Command) -> None:
    command("import", DUMPS / "v0", *HERE)
    before = list(deck.dumps)
    assert command("watch", DUMPS / "v0", *HERE, "--once", "--poll", "0.01")[0] == 0
    assert deck.dumps == before


def test_import_says_why_files_failed_on_the_server_and_ends_with_one(deck: Deck, command: Command) -> None:
    deck.failed = {"rollout/3.jsonl": "Line 1 is no JSON object."}
    status, _, err = command("import", DUMPS / "v0", *HERE)
    assert status == 1 and "rollout/3.jsonl failed: Line 1 is no JSON object." in err


def test_import_goes_on_past_a_refused_file_and_names_it(deck: Deck, tmp_path: Path, command: Command) -> None:
    for step in (1, 2):
        row = {"input": f"q{step}", "output": "a", "score": 1.0, "step": step}
        (tmp_path / f"{step}.jsonl").write_text(json.dumps(row) + "\n")
    deck.mode, deck.only = "413", "q1"
    status, _, err = command("import", tmp_path, *HERE)
    assert status == 1 and "1.jsonl was refused: No, because of a test." in err
    assert deck.steps() == [("files", 2)]


def test_import_with_a_token_that_may_not_read_sends_and_says_so(deck: Deck, command: Command) -> None:
    deck.may_read = False
    status, _, err = command("import", DUMPS / "v0", *HERE)
    assert status == 0 and len(deck.dumps) == 10 and "may not read" in err


def test_import_takes_a_last_line_without_a_break_but_not_a_torn_one(
    deck: Deck, tmp_path: Path, command: Command
) -> None:
    full = '{"step": 1, "data": {"loss": 1}}'
    (tmp_path / "whole.jsonl").write_text(full + "\n" + full)
    (tmp_path / "torn.jsonl").write_text(full + "\n" + full[:-3])
    _, _, err = command("import", tmp_path, *HERE)
    got = {query["source"]: [] for _, query, _ in deck.dumps}
    for _, query, body in deck.dumps:
        got[query["source"]].append(body.decode())
    assert "".join(got["whole.jsonl"]) == full + "\n" + full
    assert "".join(got["torn.jsonl"]) == full + "\n"
    assert "torn.jsonl ends in the middle of a line" in err and "whole.jsonl" not in err


def test_import_says_of_half_a_json_file_that_it_is_not_whole(deck: Deck, tmp_path: Path, command: Command) -> None:
    name = "outputs-rl-m-d.json"
    (tmp_path / name).write_text('[{"question": "q"')
    _, _, err = command("import", tmp_path, *HERE)
    assert f"{name} is incomplete: is it still being written?\n" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("import", "/nowhere", *HERE), "/nowhere"),
        (("import", DUMPS, "--project", "math"), "--run"),
        (("import", DUMPS, "--run", "grpo"), "--project"),
        (("import", DUMPS, *HERE, "--format", "csv"), "csv"),
        (("import", DUMPS, *HERE, "--step-kind", "eval=minutes"), "minutes"),
        (("import", Path(__file__), *HERE), "no dump file"),
        (("watch", *HERE), "--tree"),
        (("watch", DUMPS, *HERE, "--poll", "0"), "--poll"),
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
    _, _, err = command("import", DUMPS, *HERE, "--format", "nope")
    names = err.rstrip(".\n").rpartition("Available: ")[2].split(", ")
    assert len(names) == len(set(names)) and {"table", "token-table", "native", "verl-jsonl"} <= set(names)


def test_samples_of_an_attempt_that_does_not_exist_are_an_error(deck: Deck, command: Command) -> None:
    attempts = {"attempts": [{"key": "files", "number": 1}], "dumps": {}}
    none = {"results": [], "next": None, "count": 0}
    deck.answers = {"runs/": {**none, "results": [RUN]}, "samples/": none, "runs/u1/": attempts}
    status, out, err = command("samples", "--run", "grpo", "--attempt", "nope")
    assert (status, out, err) == (2, "", "math/grpo has no attempt nope. It has: files.\n")
    assert command("samples", "--run", "grpo", "--attempt", "files")[:2] == (0, "No samples.\n")


@pytest.mark.parametrize("share", ["abc", "101", "-1", "%", "nan"])
def test_a_share_that_is_no_percentage_is_named(command: Command, share: str) -> None:
    status, _, err = command("fsck", f"--sample={share}")
    assert status == 2 and err.rstrip().endswith(f"{share} is not a percentage between 0 and 100")


def test_a_sync_of_nothing_says_so(command: Command, tmp_path: Path) -> None:
    assert command("sync", tmp_path) == (0, "Nothing to send.\n", "")


@pytest.mark.parametrize(
    "words", [("import", DUMPS, *HERE), ("samples", "--run", "x"), ("token", "create", "x", *HERE[:2])]
)
@pytest.mark.parametrize(
    ("mode", "says"), [("401", "because of a test"), ("login", "not from a Rolloutdeck server"), ("down", "refused")]
)
def test_a_server_that_is_none_or_says_no_is_one_sentence_and_status_two(
    deck: Deck,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[object, ...],
    mode: str,
    says: str,
) -> None:
    monkeypatch.setattr("rolloutdeck.cli.import_.TRIES", 1)
    deck.mode = mode
    if mode == "down":
        monkeypatch.setenv("ROLLOUTDECK_URL", "http://127.0.0.1:9")
    status, out, err = command(*words)
    assert status == 2 and out == "" and says in err.splitlines()[-1]


def test_without_any_server_the_person_learns_how_to_name_one(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROLLOUTDECK_URL")
    status, _, err = command("import", DUMPS, *HERE)
    assert status == 2 and "rolloutdeck up" in err


def test_the_local_token_never_goes_to_another_server(
    deck: Deck, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("URL", "TOKEN"):
        monkeypatch.delenv(f"ROLLOUTDECK_{name}")
    local = tmp_path / "home" / ".rolloutdeck" / "local.json"
    local.parent.mkdir(parents=True)
    local.write_text(json.dumps({"url": "http://127.0.0.1:8460", "token": "rd_local"}))
    command("import", DUMPS / "v0", *HERE, "--url", deck.url)
    assert set(deck.tokens) == {""}


def test_options_win_over_the_environment(deck: Deck, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUTDECK_URL", "http://127.0.0.1:9")
    assert command("import", DUMPS / "v0", *HERE, "--url", deck.url, "--token", "other")[0] == 0
    assert set(deck.tokens) == {"Bearer other"}


@pytest.mark.parametrize("scopes", [("--scope", "ingest,read"), ("--scope", "ingest", "--scope", "read")])
def test_a_new_token_is_all_that_goes_to_standard_output(deck: Deck, command: Command, scopes: tuple[str, ...]) -> None:
    status, out, err = command("token", "create", "ci", "--project", "math", *scopes)
    assert (status, out) == (0, "rd_secret\n") and "ci" in err and "rd_secret" not in err
    assert deck.posted("/tokens/") == [{"name": "ci", "project": "math", "scopes": ["ingest", "read"]}]
    assert "Created project" not in err and "does not expire" in err and f" on {deck.url} " in err


def test_a_token_expires_after_the_days_that_one_names(deck: Deck, command: Command) -> None:
    status, _out, err = command("token", "create", "ci", "--project", "math", "--days", "10")
    assert status == 0 and "expires on 2026-12-06" in err and deck.posted("/tokens/")[0]["days"] == 10
    status, _out, err = command("token", "create", "ci", "--project", "math", "--days", "0")
    assert status and "--days must be at least 1" in err


def test_token_create_says_that_it_created_the_project(deck: Deck, command: Command) -> None:
    deck.new_projects = {"nosuch"}
    status, out, err = command("token", "create", "ci", "--project", "nosuch")
    assert (status, out) == (0, "rd_secret\n") and err.startswith("Created project nosuch.\n")


RUN = {"id": "u1", "name": "grpo", "project": "math", "url": "http://deck/runs/u1/"}
SAMPLE = {
    "id": "abcdefghijklmnop",
    "step": 7,
    "score": 0.25,
    "group": "",
    "index": None,
    "chars": 1234,
    "tail": "so the answer is \x1b[2J答え 42\u202e",
}


def test_documented_commands_that_create_a_token_name_its_project(deck: Deck, command: Command) -> None:
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(path for path in (ROOT / "deploy").rglob("*"))]
    texts = [path.read_text() for path in files if path.is_file()]
    documented = [match[1] for text in texts for match in re.finditer(r"rolloutdeck (token create [^`#\n]+)", text)]
    assert "token create prometheus --project monitoring --scope read" in documented
    for words in documented:
        status, out, err = command(*words.split())
        assert (status, out) == (0, "rd_secret\n"), f"{words}: {err}"


@pytest.fixture
def answering(deck: Deck) -> Deck:
    deck.answers = {
        "runs/": {"results": [RUN], "next": None, "count": 1},
        "samples/": {"results": [SAMPLE], "next": None, "count": 32},
        "samples/abcdefghijklmnop/": {"prompt": "6*7?", "response": "it is\n42\x1b[2J", "ground_truth": 42},
    }
    return deck


def test_samples_are_a_table_without_control_characters_and_without_empty_columns(
    answering: Deck, command: Command
) -> None:
    status, out, err = command("samples", "--run", "grpo")
    head, row = out.splitlines()
    assert status == 0 and head.split() == ["step", "score", "length", "id", "end", "of", "the", "response"]
    assert "0.25" in row and "1,234" in row and "答え 42" in row
    assert "\x1b" not in out and "\u202e" not in out and "1 of 32" in err


def test_samples_can_be_read_whole_or_as_json(answering: Deck, command: Command) -> None:
    out = command("samples", "--run", "grpo", "--text")[1]
    assert "6*7?" in out and "it is\n42" in out and "\x1b" not in out
    assert json.loads(command("samples", "--run", "grpo", "--json")[1]) == SAMPLE


def test_no_match_in_the_newest_step_says_that_only_this_step_was_read(answering: Deck, command: Command) -> None:
    answering.answers["samples/"] = {"results": [], "next": None, "count": 0}
    assert "newest step (--step all for the run)" in command("samples", "--run", "grpo")[2]
    assert "--step" not in command("samples", "--run", "grpo", "--step", "all")[2]


def test_a_run_name_of_two_projects_asks_for_the_project(answering: Deck, command: Command) -> None:
    answering.answers["runs/"]["results"] = [RUN, {**RUN, "project": "code"}]
    status, _, err = command("samples", "--run", "grpo")
    assert status == 2 and "math, code" in err and "--project" in err


def test_ctrl_c_ends_watch_quietly_and_says_how_to_go_on(deck: Deck, tmp_path: Path) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "ROLLOUTDECK_URL": deck.url, "ROLLOUTDECK_TOKEN": "t"}
    watch = [sys.executable, "-m", "rolloutdeck", "watch", str(DUMPS / "v0"), *HERE, "--poll", "0.05"]
    running = subprocess.Popen(watch, env=environ, stderr=subprocess.PIPE, text=True)
    until(lambda: deck.dumps)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=20)
    assert running.returncode == 130
    assert err.endswith("Stopped. Run the same command to continue from here.\n") and "Traceback" not in err


def test_ctrl_c_ends_an_import_and_says_how_to_go_on(
    deck: Deck, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload, files = import_._upload_file, iter(range(2))

    def be_interrupted(*words: Any) -> None:
        if next(files, None) is None:
            raise KeyboardInterrupt
        upload(*words)

    monkeypatch.setattr(import_, "_upload_file", be_interrupted)
    status, _, err = command("import", DUMPS / "v0", *HERE)
    assert status == 130 and err.endswith("Stopped. 2 files uploaded. Run the same command again to upload the rest.\n")


INTERRUPTED = """
import signal, sys
from rolloutdeck.cli import entry as cli
from rolloutdeck.cli import watch

class Dying:
    def __del__(self):
        signal.raise_signal(signal.SIG{name})

turn = watch.WatchLoop.run_once

def turns(loop):
    Dying()
    return turn(loop)

watch.WatchLoop.run_once = turns
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_a_signal_that_comes_while_an_object_is_finalized_ends_watch_too(deck: Deck, tmp_path: Path, name: str) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "ROLLOUTDECK_URL": deck.url, "ROLLOUTDECK_TOKEN": "t"}
    watch = [sys.executable, "-c", INTERRUPTED.format(name=name), "watch", str(DUMPS / "v0"), *HERE, "--poll", "0.05"]
    done = subprocess.run(watch, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 130 and "Traceback" not in done.stderr
    assert done.stderr.endswith("Stopped. Run the same command to continue from here.\n")


def test_a_pipe_that_is_closed_early_is_no_error(answering: Deck, tmp_path: Path) -> None:
    answering.answers["samples/"]["results"] = [SAMPLE] * 5000
    environ = {**os.environ, "HOME": str(tmp_path), "ROLLOUTDECK_URL": answering.url, "ROLLOUTDECK_TOKEN": "t"}
    shell = f"{sys.executable} -m rolloutdeck samples --run grpo --worst 5000 --json | head -1"
    done = subprocess.run(["bash", "-c", shell], env=environ, capture_output=True, text=True, timeout=30)
    assert json.loads(done.stdout) == SAMPLE and "Traceback" not in done.stderr and "Error" not in done.stderr


def test_commands_bring_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "from rolloutdeck.cli.entry import COMMANDS\n"
        "import importlib\n"
        "[importlib.import_module(module) for name, (module, *_) in COMMANDS.items() if name != 'up']\n"
        "foreign = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(foreign - set(sys.stdlib_module_names) - {'rolloutdeck'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "[]\n"
