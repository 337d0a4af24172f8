"""`rolloutdeck labels` against a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from rolloutdeck.cli.entry import main
from rolloutdeck.cli.review.estimates import REASONS
from rollouts.agreement import Reason
from rollouts.models import Label, Project, Sample
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)
RUBRIC = {
    "questions": [
        {"key": "correct", "title": "Right?", "kind": "yes-no"},
        {"key": "quality", "kind": "rating"},
        {"key": "note", "kind": "text"},
    ],
    "guidelines": "Read it all.",
}


def test_each_reason_of_the_server_has_a_text() -> None:
    assert set(REASONS) == set(Reason)


def test_a_rubric_is_set_and_labels_are_stored_and_listed(
    node: Path, owner: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", builders.token(owner, "read", "annotate", "admin"))
    rows = [{"prompt": "p", "response": text, "score": n} for n, text in enumerate("ab")]
    index_file(builders.run(Project.objects.get()), lines(*rows), 1)
    first, second = Sample.objects.order_by("ordinal").values_list("pk", flat=True)

    def run(*words: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        return main(["labels", *map(str, words)]), *capsys.readouterr()

    file, labels = node / "rubric.json", node / "labels.jsonl"
    file.write_text(json.dumps(RUBRIC), encoding="utf-8")
    assert run("rubric", "--set", file) == (0, "", "The rubric is version 1.\n")
    shown = json.loads(run("rubric")[1])
    assert (shown["version"], shown["guidelines"], len(shown["questions"])) == (1, "Read it all.", 3)
    file.write_text(json.dumps({**shown, "version": 0}), encoding="utf-8")
    assert "now version 1, not 0" in run("rubric", "--set", file)[2]

    assert run("add", first, "correct", "false", "--rationale", "no proof") == (0, "", "Stored.\n")
    assert "No change" in run("add", first, "correct", "false", "--rationale", "no proof")[2]
    status, _, error = run("add", first, "correct", "perhaps")
    assert status == 2 and "must be true or false" in error
    written = [
        {"sample": second, "name": "quality", "value": 4, "source": "model", "author": "judge"},
        {"sample": second, "name": "note", "value": "多行\n文本"},
    ]
    labels.write_text("".join(json.dumps(row) + "\n\n" for row in written), encoding="utf-8")
    assert "2 labels of" in run("add", "--file", labels)[2]
    labels.write_text("{}\nno json\n", encoding="utf-8")
    assert "line 2, is not JSON" in run("add", "--file", labels)[2]
    assert "Use either --file or SAMPLE" in run("add", first, "correct", "true", "--file", labels)[2]

    status, table, count = run("list")
    assert status == 0 and "3 labels of math/grpo" in count
    assert table.splitlines()[0].split() == ["step", "name", "value", "author", "source", "sample", "rationale"]
    assert "多行 文本" in table and "no proof" in table and first in table
    listed = [json.loads(line) for line in run("list", "--json", "--source", "model")[1].splitlines()]
    assert [(row["sample"], row["name"], row["value"]) for row in listed] == [(second, "quality", 4)]
    assert Label.objects.count() == 3

    status, check, count = run("reward-check", "--threshold", "0.5", "--steps", "1", "--than", "1")
    assert status == 0 and "correct = yes, score >= 0.5" in check and "1 more chosen by hand" in check
    assert "\nFrom grpo (steps 1) to grpo (steps 1):\n" in check and "fits the labels best" not in check
    assert "wrong, of the rewarded: - -> - (fewer than 20 labelled samples)" in check
    assert "0 suspected reward hacks" in count
    assert json.loads(run("reward-check", "--json")[1])["hand_picked"] == 1
    assert "score >= 0.6666666666666666:" in run("reward-check", "--threshold", repr(2 / 3))[1]
    assert "Give steps as 41-80." in run("reward-check", "--steps", "new")[2]
