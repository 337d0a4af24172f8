"""The context that processes report: masked, merged over hosts, and kept per attempt."""

from __future__ import annotations

from typing import Any

import pytest

from rollouts.errors import InvalidInputError
from rollouts.ingest.contexts import record_context
from rollouts.lib.redaction import redact_command, redact_text
from rollouts.models import AttemptContext, Run

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["python", "train.py", "--api-key", "abc", "--lr", "1"],
            ["python", "train.py", "--api-key", "***", "--lr", "1"],
        ),
        (["x", "--api-key=abc", "wandb.api_key=abc"], ["x", "--api-key=***", "wandb.api_key=***"]),
        (["x", "--password", "--lr=1"], ["x", "--password", "--lr=1"]),  # a flag without a value
        (["x", "url=postgres://me:secret@db/x"], ["x", "url=postgres://me:***@db/x"]),
        (["x", "hf_abcdefghijklmnopqrst"], ["x", "***"]),
        (["x", "--header", "Authorization: Bearer abc.def"], ["x", "--header", "Authorization: Bearer ***"]),
        (["x", "authorization = bearer"], ["x", "authorization = ***"]),
        (["x", "pad_token=<pad>", "max_tokens=8"], ["x", "pad_token=<pad>", "max_tokens=8"]),
        (["x", "train.py:12", "12:password=abc,-2.api_key=x"], ["x", "train.py:12", "12:password=***,-2.api_key=***"]),
        (["x", "ключ.password=abc", "'token' : 'abc'"], ["x", "ключ.password=***", "'token' : '***'"]),
    ],
)
def test_secrets_in_a_command_are_masked(arguments: list[str], expected: list[str]) -> None:
    assert redact_command(arguments) == expected


def test_secrets_in_a_patch_are_masked() -> None:
    assert redact_text('+API_KEY = "abc"\n+lr = 1e-6') == '+API_KEY = "***"\n+lr = 1e-6'


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("start", "repeated"), [("", "a"), ("", "7"), ("authorization:", " ")])
def test_a_long_word_or_gap_takes_no_longer_than_other_text(start: str, repeated: str) -> None:
    """A try from each of its characters would take hours."""
    text = f"{start}{repeated * 1_000_000}'"
    assert redact_text(text) == text


def facts(**more: Any) -> dict[str, Any]:
    return {
        "host": "node-1",
        "python": "3.12.1",
        "gpus": {"H100": 8},
        "git": {"commit": "a" * 40, "changed": 2},
        **more,
    }


def test_hosts_are_merged_and_the_command_is_that_of_the_leading_process(run: Run) -> None:
    record_context(run, attempt="a", facts=facts(host="node-2", command=["worker"]))
    record_context(run, attempt="a", facts=facts(command=["python", "train.py"], lead=True))
    record_context(run, attempt="a", facts=facts(host="node-3", command=["other"]))
    [row] = AttemptContext.objects.filter(attempt__run=run)
    assert row.facts["command"] == ["python", "train.py"]
    assert sorted(row.facts["hosts"]) == ["node-1", "node-2", "node-3"]
    assert row.facts["hosts"]["node-1"] == {"gpus": {"H100": 8}}


def test_each_attempt_has_its_own_context(run: Run) -> None:
    record_context(run, attempt="a", facts=facts(git={"commit": "a" * 40, "patch": "+x"}))
    record_context(run, attempt="b", facts=facts(git={"commit": "b" * 40}))
    rows = AttemptContext.objects.filter(attempt__run=run).order_by("attempt__number")
    assert [(row.facts["git"]["commit"][0], row.patch) for row in rows] == [("a", "+x"), ("b", "")]


@pytest.mark.parametrize("bad", [{"command": "python x"}, {"packages": ["torch"]}, {"git": "main"}, {"gpus": 8}])
def test_malformed_facts_are_refused(run: Run, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        record_context(run, attempt="a", facts=facts(**bad))


@pytest.mark.timeout(60)
def test_long_facts_are_cut_after_the_secrets_in_them_are_masked(run: Run) -> None:
    url = f"https://me:{'x' * 900}@host/repository"
    row = record_context(run, attempt="a", facts=facts(folder="a" * 1_000_000, git={"branch": url}))
    assert row.facts["folder"] == "a" * 200
    assert row.facts["git"]["branch"] == "https://me:***@host/repository"


def test_values_that_no_database_stores_are_replaced(run: Run) -> None:
    odd = facts(host="a\x00b", command=["\ud800", 7], packages={"torch": 2, "x": "1.0"}, cpus=-1)
    row = record_context(run, attempt="a", facts=odd)
    assert row.facts["command"] == ["\ufffd", "7"]
    assert row.facts["packages"] == {"x": "1.0"}
    assert list(row.facts["hosts"]) == ["a\ufffdb"]
