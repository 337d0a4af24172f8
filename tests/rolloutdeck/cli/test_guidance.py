"""`rolloutdeck guidance` against a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from rolloutdeck.cli.entry import main
from rollouts.models import Project
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)


def test_rules_are_set_shown_and_listed(
    node: Path, owner: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", builders.token(owner, "read", "admin"))
    rows = [{"prompt": "p", "response": text, "score": n} for n, text in enumerate("ab")]
    index_file(builders.run(Project.objects.get()), lines(*rows), 1)

    def run(*words: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        return main(["guidance", *map(str, words)]), *capsys.readouterr()

    assert run("history") == (0, "", "The project has no rules. Save some: rolloutdeck guidance set FILE\n")
    file = node / "rules.json"
    rules = [
        {"key": "bad", "query": "score=1", "action": "mask"},
        {"key": "less", "query": "score>=0", "action": "weight", "target": "response", "value": 0.5},
    ]
    file.write_text(json.dumps({"rules": rules, "baseline": "exclude"}), encoding="utf-8")
    assert run("set", file) == (0, "", "Version 1 has 2 rules.\n")
    shown = json.loads(run("show")[1])
    assert [rule["value"] for rule in shown["rules"]] == [1.0, 0.5] and shown["baseline"] == "exclude"
    assert run("show", "--selection") == (
        0,
        "bad: mask, 1 prompt of 1 sample\nless: weight 0.5, 2 responses of 2 samples\n",
        "Version 1, masked samples in the baseline: exclude\n",
    )

    file.write_text(json.dumps({**shown, "rules": []}), encoding="utf-8")
    assert run("set", file)[2] == "Version 2 has 0 rules.\n"
    assert "now version 2, not 1" in run("set", file)[2]
    assert [line.split()[::3] for line in run("history")[1].splitlines()] == [["2", "olga"], ["1", "olga"]]
    assert [json.loads(line)["version"] for line in run("history", "--json")[1].splitlines()] == [2, 1]
    assert json.loads(run("show", "--version", 1)[1]) == shown
    file.write_text("[]", encoding="utf-8")
    status, _, error = run("set", file)
    assert status == 2 and "must have an object with baseline and rules" in error
