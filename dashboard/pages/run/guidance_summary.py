"""What the guidance rules of the project did in a run: which version applied to each step, and how much it affected."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from rollouts.metrics import load_curves
from rollouts.models import Run

PREFIX, RULE_PREFIX = "guidance/", "guidance/rule/"
VERSION, SAMPLES, TOKENS = "guidance/version", "guidance/samples", "guidance/tokens"
MAX_STEPS = 300


@dataclass(slots=True)
class GuidedStep:
    """A step to which a version of the rules applied. `rules` are the samples of each rule that selected some."""

    step: int
    version: int
    samples: int = 0
    tokens: int = 0
    rules: list[tuple[str, int]] = field(default_factory=list)


def build_guidance_summary(run: Run, names: list[str]) -> dict[str, Any] | None:
    """`names` are those of the run's metrics. None if no rule applied to a step of the run."""
    if VERSION not in names:
        return None
    own = [name for name in names if name.startswith(PREFIX)]
    values: dict[int, dict[str, int]] = defaultdict(dict)
    for name, curves in load_curves(run, own)[run.uid].items():
        for curve in curves:
            for step, value in zip(curve["steps"], curve["values"], strict=True):
                if value is not None:
                    values[step][name] = int(value)
    steps = [build_guided_step(step, values[step]) for step in sorted(values, reverse=True) if VERSION in values[step]]
    if not steps:
        return None
    return {
        "steps": steps[:MAX_STEPS],
        "more": len(steps) > MAX_STEPS,
        "version": steps[0].version,
        "guided": len(steps),
        "affected": sum(step.samples > 0 for step in steps),
        "samples": sum(step.samples for step in steps),
        "tokens": sum(step.tokens for step in steps),
    }


def build_guided_step(step: int, values: dict[str, int]) -> GuidedStep:
    counts = {name.removeprefix(RULE_PREFIX): count for name, count in values.items() if name.startswith(RULE_PREFIX)}
    rules = [(key, count) for key, count in sorted(counts.items()) if count]
    return GuidedStep(step, values[VERSION], values.get(SAMPLES, 0), values.get(TOKENS, 0), rules)
