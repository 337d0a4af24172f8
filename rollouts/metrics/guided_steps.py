"""What guidance rules did in a step, from the metrics `guidance/…` of the trainer, stored with the step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from rolloutdeck.protocol import GUIDANCE_METRICS
from rollouts.metrics.blocks import load_packed_values
from rollouts.models import Attempt, MetricRow, Run, Step
from rollouts.samples import MetricPoint

VERSION_METRIC: Final = f"{GUIDANCE_METRICS}version"
RULE_PREFIX: Final = "rule/"
MAX_RULES: Final = 100

StepGuidance = dict[str, Any]


def parse_step_guidance(values: Mapping[str, Any]) -> StepGuidance | None:
    """Returns {version, samples, tokens, rules: {key: samples}} of the metrics of a step; None if no rules applied.
    Rules that selected nothing are left out."""
    own = {
        name.removeprefix(GUIDANCE_METRICS): int(value)
        for name, value in values.items()
        if name.startswith(GUIDANCE_METRICS) and isinstance(value, int | float) and 0 <= value < 2**53
    }
    if not own.get("version"):
        return None
    rules = {name.removeprefix(RULE_PREFIX): own[name] for name in sorted(own) if name.startswith(RULE_PREFIX)}
    selected = [(key, count) for key, count in rules.items() if count][:MAX_RULES]
    counts = {name: own.get(name, 0) for name in ("samples", "tokens")}
    return {"version": own["version"], **counts, "rules": dict(selected)}


def store_guidance(run: Run, attempt: Attempt, points: Iterable[MetricPoint]) -> None:
    """Stores it with the steps that are there already; for the others see `find_step_guidance`."""
    for point in points:
        if VERSION_METRIC in point.values and (guidance := parse_step_guidance(point.values)):
            steps = Step.objects.filter(run=run, attempt=attempt, split="train", step_kind=point.step_kind)
            steps.filter(step=point.step).update(guidance=guidance)


def find_step_guidance(step: Step) -> StepGuidance | None:
    """Returns what the step has, or what arrived before its samples: as rows, or packed already."""
    if step.split != "train" or step.guidance is not None:
        return step.guidance
    rows = MetricRow.objects.filter(run=step.run_id, attempt=step.attempt_id, step_kind=step.step_kind, step=step.step)
    texts = rows.filter(values__contains=VERSION_METRIC).order_by("-pk").values_list("values", flat=True)
    known = next((found for text in texts if (found := parse_step_guidance(orjson.loads(text)))), None)
    return known or parse_step_guidance(load_packed_values(step, GUIDANCE_METRICS))
