"""What a plan does with the samples that it selects, as text: each step, and the first prompts of all steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rolloutdeck.cli.common import clean_line
from rolloutdeck.replay import PlanEntry, PlanRevision

MAX_PROMPTS = 20
SOURCES = {"flags": "samples flagged bad", "rules": "samples that the guidance rules select"}
ACTIONS = {
    "exclude": "excluded, as the trainer does it",
    "mask": "masked",
    "drop": "dropped with their prompts",
    "regenerate": "generated again",
}


def describe_setting(plan: PlanRevision) -> str:
    """Returns `; samples flagged bad are masked`, and nothing for a plan that keeps all samples."""
    action = ACTIONS.get(plan.on_selected) if plan.changes_selected else None
    return f"; {SOURCES.get(plan.selected_by, SOURCES['flags'])} are {action}" if action else ""


def print_effects(entries: Sequence[PlanEntry]) -> None:
    left = MAX_PROMPTS
    for entry in entries:
        if not (effect := entry.effect):
            continue
        version = effect.get("guidance_version")
        rules = ", ".join(f"{key} {count}" for key, count in dict(effect.get("rules") or {}).items())
        source = f"version {version} of the rules: {rules}" if version is not None else rules
        print_line(f"step {entry.target_step}: {effect.get('text')} ({source})")
        prompts = list(effect.get("prompts") or ())
        for prompt in prompts[:left]:
            print_line(f"  prompt {prompt.get('group') or prompt.get('prompt_key')}: {describe_prompt(prompt)}")
        hidden = len(prompts[left:]) + int(effect.get("left_off") or 0)
        left = max(0, left - len(prompts))
        if hidden:
            print_line(f"  and {hidden:,} more")
        if not effect.get("complete", True):
            print_line("  The rules did not search everything, so more samples may be selected.")


def describe_prompt(prompt: Mapping[str, Any]) -> str:
    """Returns `3 of 8 masked, mean score 0.75 -> 0.67, the remaining scores are equal, by hack`."""
    before, after = prompt.get("mean"), prompt.get("remaining_mean")
    parts = [str(prompt.get("text"))]
    if isinstance(before, float | int):
        parts.append(f"mean score {before:.2f}" + (f" -> {after:.2f}" if isinstance(after, float | int) else ""))
    if prompt.get("note"):
        parts.append(str(prompt["note"]))
    return ", ".join([*parts, f"by {', '.join(map(str, prompt.get('rules') or ()))}"])


def print_line(text: str) -> None:
    print(clean_line(text))
