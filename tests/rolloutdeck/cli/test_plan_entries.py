"""The entries of a plan as `rolloutdeck plan` prints them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rolloutdeck.cli.plans.entries import print_entries
from rolloutdeck.cli.plans.plan import print_differences, print_timeline
from rolloutdeck.cli.plans.selection import print_effects
from rolloutdeck.protocol import FactDifference
from rolloutdeck.replay import PinnedArtifact, PlanEntry, PlanRevision

UNKNOWN = {"state": "unknown", "label": "unknown: depends on the prompts"}


def entry(target: int, step: int, reason: str = "", run: str = "old", **fields: Any) -> PlanEntry:
    source = {"run": run, "name": run, "step": step, "step_kind": "global_step"}
    return PlanEntry(target, 40 + step, source, preview={**UNKNOWN, "reason": reason}, **fields)


def test_neighbouring_steps_with_the_same_text_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    entries = [entry(step + 10, step, reason=f"x has not reached step {step + 10}") for step in range(1, 21)]
    entries += [entry(31, 25), entry(32, 26, run="other"), entry(34, 27, run="other")]
    print_entries(entries, has_run=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step", "11-30", "31", "32", "34"]
    assert "41-60" in lines[1] and "steps 1-20 of old" in lines[1] and "x has not reached step 11 …" in lines[1]
    assert "step 25 of old" in lines[2]


def test_steps_with_different_outcomes_are_separate_lines(capsys: pytest.CaptureFixture[str]) -> None:
    replayed = {"state": "replayed", "label": "replayed", "reason": ""}
    refused = {"state": "refused", "label": "refused", "reason": "its prompts differ"}
    outcomes = [replayed, replayed, refused, {"state": "not_reached", "label": "not reached"}]
    print_entries([entry(step, step, outcome=outcome) for step, outcome in enumerate(outcomes, 1)], has_run=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step", "1-2", "3", "4"]
    assert "was: unknown" in lines[1] and "its prompts differ" in lines[2] and "was:" not in lines[3]


@pytest.mark.parametrize(
    ("on_mismatch", "says"),
    [("generate", ["step 1 replays the pin of target step 1", "steps 2-6 generate"]),
     ("stop", ["step 2 stops the run", "step 1 replays the pin of target step 1"])],
)  # fmt: skip
def test_an_incompatible_pin_is_not_printed_as_replayed(
    capsys: pytest.CaptureFixture[str], on_mismatch: str, says: list[str]
) -> None:
    entries = (entry(1, 1), replace(entry(2, 2), preview={"state": "will_generate", "label": "will generate"}))
    print_timeline(PlanRevision("default", 1, "cache", on_mismatch, entries=entries), 0)
    assert capsys.readouterr().out.splitlines() == says


def test_a_run_that_generates_nothing_ends_at_its_first_step_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    file = PinnedArtifact("key", "rollout", 0, {}, {"format": "roll-mock"})
    entries = tuple(replace(entry(step, step), artifacts=(file,)) for step in (0, 1, 3))
    print_timeline(PlanRevision("default", 1, "cache", "generate", entries=entries), 0)
    end, replayed = capsys.readouterr().out.splitlines()
    assert end.startswith("step 2 has no file to load: the run ends there")
    assert replayed == "steps 0-1 replay the pins of these target steps"


def test_a_difference_of_many_steps_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_differences([(step, FactDifference("role", "rollout", None, "warn")) for step in (1, 2, 3, 7)])
    assert capsys.readouterr().out == '  steps 1-3, 7: warn: role is "rollout" in the pin, unknown in the run\n'


def test_the_effect_on_selected_samples_is_printed_for_the_first_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    prompt = {"group": "7", "text": "1 of 4 masked", "note": "nothing remains", "mean": 0.25, "rules": ["hack"]}
    effect = {"text": "masked: 25 samples of 25 prompts", "rules": {"hack": 25}, "guidance_version": 3, "left_off": 2}
    print_effects([entry(1, 1), entry(2, 2, effect={**effect, "prompts": [prompt] * 23})])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "step 2: masked: 25 samples of 25 prompts (version 3 of the rules: hack 25)"
    assert lines[1:] == ["  prompt 7: 1 of 4 masked, mean score 0.25, nothing remains, by hack"] * 20 + ["  and 5 more"]
