"""The entries of a plan as `rolloutdeck plan` prints them."""

from __future__ import annotations

from typing import Any

import pytest

from rolloutdeck.cli.plans.entries import print_entries
from rolloutdeck.replay import PlanEntry

UNKNOWN = {"state": "unknown", "label": "unknown: depends on the prompts"}


def entry(target: int, step: int, reason: str = "", run: str = "old", **fields: Any) -> PlanEntry:
    source = {"run": run, "name": run, "step": step, "step_kind": "global_step"}
    return PlanEntry(target, 40 + step, source, preview={**UNKNOWN, "reason": reason}, **fields)


def test_neighbours_that_say_the_same_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    entries = [entry(at + 10, at, reason=f"x has not reached step {at + 10}") for at in range(1, 21)]
    entries += [entry(31, 25), entry(32, 26, run="other"), entry(34, 27, run="other")]
    print_entries(entries, has_run=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step", "11-30", "31", "32", "34"]
    assert "41-60" in lines[1] and "steps 1-20 of old" in lines[1] and "x has not reached step 11 …" in lines[1]
    assert "step 25 of old" in lines[2]


def test_another_outcome_is_another_line(capsys: pytest.CaptureFixture[str]) -> None:
    replayed = {"state": "replayed", "label": "replayed", "reason": ""}
    refused = {"state": "refused", "label": "refused", "reason": "its prompts differ"}
    outcomes = [replayed, replayed, refused, {"state": "not_reached", "label": "not reached"}]
    print_entries([entry(at, at, outcome=outcome) for at, outcome in enumerate(outcomes, 1)], has_run=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step", "1-2", "3", "4"]
    assert "was: unknown" in lines[1] and "its prompts differ" in lines[2] and "was:" not in lines[3]
