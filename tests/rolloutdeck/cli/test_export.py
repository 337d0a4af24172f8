"""`rolloutdeck export` against a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from rolloutdeck.cli.entry import main
from rollouts.models import Project
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_export_is_a_folder_with_data_and_a_card(
    node: Path, owner: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", builders.token(owner, "read"))
    rows = [{"prompt": "p", "group": "g", "response": text, "score": n} for n, text in enumerate("abc")]
    index_file(builders.run(Project.objects.get()), lines(*rows), 1)
    out = node / "pairs"
    words = ["export", "--layout", "preferences", "--out", str(out), "--run", "grpo"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "samples read: 3" in printed.out and "rows: 1" in printed.out and "Reading 3 samples." in printed.err
    assert f"datasets.load_dataset('{out}')" in printed.err
    (row,) = map(json.loads, (out / "data" / "train.jsonl").read_text().splitlines())
    assert (row["chosen"], row["rejected"]) == ("c", "a")
    assert (out / "README.md").read_text().startswith("---\nconfigs:")
    assert main(words) == 2 and "is not empty" in capsys.readouterr().err
    assert main([*words[:-3], str(node / "none"), "--run", "grpo", "--q", "score>5"]) == 0
    assert "Nothing is written: no sample matches" in capsys.readouterr().err and not (node / "none").exists()
    (node / "here").mkdir()
    monkeypatch.chdir(node / "here")
    assert main([*words[:-3], ".", "--run", "grpo", "--q", "score>5"]) == 0
    assert "Nothing is written: no sample matches" in capsys.readouterr().err and not any(Path().iterdir())
    assert main([*words[:-2], "--project", "math", "--q", "score>>", "--out", str(node / "x")]) == 2
    assert "score" in capsys.readouterr().err and not (node / "x").exists()
