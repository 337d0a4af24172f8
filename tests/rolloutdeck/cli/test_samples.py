"""`rolloutdeck samples`: what it prints, as a table, whole or as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rolloutdeck.cli.common import requests
from tests.rolloutdeck.support.commands import Command
from tests.rolloutdeck.support.deck import Deck

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


@pytest.fixture
def deck_with_sample(deck: Deck) -> Deck:
    deck.answers = {
        "runs/": {"results": [RUN], "next": None, "count": 1},
        "samples/": {"results": [SAMPLE], "next": None, "count": 32},
        "samples/abcdefghijklmnop/": {"prompt": "6*7?", "response": "it is\n42\x1b[2J", "ground_truth": 42},
    }
    return deck


def test_a_run_is_found_after_many_with_a_similar_name(
    deck: Deck, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [{**RUN, "id": f"o{number}", "name": f"grpo-{number}"} for number in range(3)]
    pages = {1: {"results": others, "next": "more", "count": 4}, 2: {"results": [RUN], "next": None, "count": 4}}
    real = requests.send_request

    def send(server: Any, method: str, path: str, body: Any = None, **options: Any) -> Any:
        if path == "runs/":
            return SimpleNamespace(json=lambda: pages[options["query"].get("page", 1)])
        return real(server, method, path, body, **options)

    monkeypatch.setattr(requests, "send_request", send)
    deck.answers = {"samples/": {"results": [SAMPLE], "next": None, "count": 1}}
    assert command("samples", "--run", "grpo")[0] == 0


def test_samples_of_an_attempt_that_does_not_exist_are_an_error(deck: Deck, command: Command) -> None:
    attempts = {"attempts": [{"key": "files", "number": 1}], "dumps": {}}
    none = {"results": [], "next": None, "count": 0}
    deck.answers = {"runs/": {**none, "results": [RUN]}, "samples/": none, "runs/u1/": attempts}
    status, out, err = command("samples", "--run", "grpo", "--attempt", "nope")
    assert (status, out, err) == (2, "", "math/grpo has no attempt nope. It has: files.\n")
    assert command("samples", "--run", "grpo", "--attempt", "files")[:2] == (0, "No samples.\n")


def test_samples_are_a_table_without_control_characters_and_without_empty_columns(
    deck_with_sample: Deck, command: Command
) -> None:
    status, out, err = command("samples", "--run", "grpo")
    head, row = out.splitlines()
    assert status == 0 and head.split() == ["step", "score", "length", "id", "end", "of", "the", "response"]
    assert "0.25" in row and "1,234" in row and "答え 42" in row
    assert "\x1b" not in out and "\u202e" not in out and "1 of 32" in err


def test_samples_can_be_read_whole_or_as_json(deck_with_sample: Deck, command: Command) -> None:
    out = command("samples", "--run", "grpo", "--text")[1]
    assert "6*7?" in out and "it is\n42" in out and "\x1b" not in out
    assert json.loads(command("samples", "--run", "grpo", "--json")[1]) == SAMPLE


def test_no_match_in_the_newest_step_says_that_only_this_step_was_read(
    deck_with_sample: Deck, command: Command
) -> None:
    deck_with_sample.answers["samples/"] = {"results": [], "next": None, "count": 0}
    assert "newest step (--step all for the run)" in command("samples", "--run", "grpo")[2]
    assert "--step" not in command("samples", "--run", "grpo", "--step", "all")[2]


def test_a_run_name_of_two_projects_asks_for_the_project(deck_with_sample: Deck, command: Command) -> None:
    deck_with_sample.answers["runs/"]["results"] = [RUN, {**RUN, "project": "code"}]
    status, _, err = command("samples", "--run", "grpo")
    assert status == 2 and "math, code" in err and "--project" in err


def test_a_pipe_that_is_closed_early_is_no_error(deck_with_sample: Deck, tmp_path: Path) -> None:
    deck_with_sample.answers["samples/"]["results"] = [SAMPLE] * 5000
    environ = {**os.environ, "HOME": str(tmp_path), "ROLLOUTDECK_URL": deck_with_sample.url, "ROLLOUTDECK_TOKEN": "t"}
    shell = f"{sys.executable} -m rolloutdeck samples --run grpo --worst 5000 --json | head -1"
    done = subprocess.run(["bash", "-c", shell], env=environ, capture_output=True, text=True, timeout=600)
    assert json.loads(done.stdout) == SAMPLE and "Traceback" not in done.stderr and "Error" not in done.stderr
