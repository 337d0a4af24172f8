"""`rolloutdeck plan --prompts FILE` against a real server: files that are larger than a request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from rolloutdeck.cli.entry import main
from rollouts.models import StepPrompts
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("steps", "prompt"),
    [
        pytest.param(6, "数" * 600_000, id="chinese"),
        pytest.param(6, "ю" * 600_000, id="cyrillic"),
        pytest.param(10_001, "2+2=", id="many steps"),
    ],
)
def test_the_prompts_are_sent_in_parts_that_the_server_takes(
    node: Path, owner: User, monkeypatch: pytest.MonkeyPatch, steps: int, prompt: str
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", builders.token(owner, "ingest", "read"))
    rows = [{"step": step, "prompts": [prompt]} for step in range(1, steps + 1)]
    (node / "prompts.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    assert main(["plan", "--run", "next", "--prompts", str(node / "prompts.jsonl")]) == 0
    assert StepPrompts.objects.count() == steps
