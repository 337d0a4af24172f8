"""The prompts of steps, compared by hash: whether a run's step has the prompts that a pinned step answers.

The prompts of a step are known if its samples are recorded, or if a dry run of the data loader sent them.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from django.db import transaction
from django.utils.translation import gettext as _

from rolloutdeck.protocol import STEP_KINDS, compute_prompt_key
from rollouts.errors import InvalidInputError
from rollouts.lib import Cache, CacheSize, parse_choice, parse_integer
from rollouts.live import notify_run_changed
from rollouts.models import Pin, Run, Sample, Step, StepPrompts

MAX_SENT_STEPS = 10_000  # in one request
MAX_STEP_PROMPTS = 100_000
STEPS_PER_QUERY = 32  # of which all samples are read at once

Comparison = Literal["same", "different", "reordered", "unknown"]


@dataclass(frozen=True, slots=True)
class PromptDigest:
    """Hashes of the different prompts of a step, in its order and sorted. `prompts` is their number, `rows` the number
    of samples; None for the prompts of a dry run."""

    ordered: str
    unordered: str
    prompts: int
    rows: int | None = None

    def is_complete(self, facts: Mapping[str, Any]) -> bool:
        """Whether the step has as many samples as its batch has rows, as far as the batch is known."""
        rows = facts.get("rows")
        return self.rows is None or not isinstance(rows, int) or self.rows >= rows


StepKey = tuple[int, int, datetime]  # id, version, time of the last update

_digests: Cache[StepKey, PromptDigest] = Cache(CacheSize.PROMPT_DIGESTS)


def compute_digest(keys: Sequence[str], rows: int | None = None) -> PromptDigest:
    """`keys` are the prompt keys of a step in its order."""
    unique = list(dict.fromkeys(keys))
    ordered, unordered = (
        hashlib.sha256("\n".join(part).encode()).hexdigest()[:32] for part in (unique, sorted(unique))
    )
    return PromptDigest(ordered, unordered, len(unique), rows)


def compare_prompts(pinned: PromptDigest | None, requested: PromptDigest | None) -> Comparison:
    if pinned is None or requested is None:
        return "unknown"
    if pinned.unordered != requested.unordered:
        return "different"
    return "same" if pinned.ordered == requested.ordered else "reordered"


def load_pin_digests(pins: Collection[Pin]) -> dict[int, PromptDigest]:
    """Returns the recorded prompts of pinned steps, by pin id."""
    runs, steps = {pin.run_id for pin in pins}, {pin.step for pin in pins}
    rows = Step.objects.filter(run__in=runs, step__in=steps, samples__gt=0)
    by_position = {(row.run_id, row.attempt_id, row.split, row.step_kind, row.step): row for row in rows}
    found = {
        pin.pk: row
        for pin in pins
        if (row := by_position.get((pin.run_id, pin.attempt_id, pin.split, pin.step_kind, pin.step)))
    }
    digests = load_step_digests(found.values())
    return {pin: digests[row.pk] for pin, row in found.items() if row.pk in digests}


def load_run_digests(run: Run, positions: Collection[tuple[str, int]]) -> dict[tuple[str, int], PromptDigest]:
    """Returns the prompts of the run's training steps (step kind, step): as recorded, else of its dry run."""
    steps = {step for _kind, step in positions}
    sent = StepPrompts.objects.filter(run=run, step__in=steps)
    digests = {
        (row.step_kind, row.step): PromptDigest(row.ordered, row.unordered, row.prompts)
        for row in sent
        if (row.step_kind, row.step) in positions
    }
    rows = Step.objects.current().filter(run=run, split="train", step__in=steps, samples__gt=0)
    recorded = {(row.step_kind, row.step): row for row in rows if (row.step_kind, row.step) in positions}
    of_steps = load_step_digests(recorded.values())
    return digests | {position: of_steps[row.pk] for position, row in recorded.items() if row.pk in of_steps}


def load_step_digests(steps: Iterable[Step]) -> dict[int, PromptDigest]:
    """Returns the digests of the steps' visible samples, by step id."""
    keys: dict[StepKey, int] = {(step.pk, step.version, step.updated_at): step.pk for step in steps}

    def compute(missing: list[StepKey]) -> dict[StepKey, PromptDigest]:
        samples = Sample.objects.visible().filter(step__in=[keys[key] for key in missing])
        order = samples.order_by("step", "dump__producer", "dump__source", "ordinal")
        prompts: dict[int, list[str]] = defaultdict(list)
        for step, prompt in order.values_list("step", "prompt_key"):
            prompts[step].append(prompt)
        return {key: compute_digest(own, len(own)) for key in missing if (own := prompts.get(keys[key]))}

    digests: dict[int, PromptDigest] = {}
    ordered = list(keys)
    for start in range(0, len(ordered), STEPS_PER_QUERY):
        found = _digests.get_many(ordered[start : start + STEPS_PER_QUERY], compute)
        digests |= {keys[key]: digest for key, digest in found.items()}
    return digests


@transaction.atomic
def record_step_prompts(run: Run, steps: Any, step_kind: str = "global_step") -> int:
    """Stores the prompts that a dry run of the data loader gave: {step: [prompt, …]}. Returns the number of steps.

    A second dry run replaces the prompts of its steps. Raises InvalidInputError.
    """
    kind = parse_choice(step_kind, "step_kind", STEP_KINDS, default="global_step")
    if not isinstance(steps, dict) or not steps or len(steps) > MAX_SENT_STEPS:
        message = _("`steps` must be an object of 1 to {limit} lists of prompts, by step.")
        raise InvalidInputError(message.format(limit=f"{MAX_SENT_STEPS:,}"), "steps")
    rows = [build_step_prompts(run, kind, number, prompts) for number, prompts in steps.items()]
    repeated = [step for step, count in Counter(row.step for row in rows).items() if count > 1]
    if repeated:
        raise InvalidInputError(_("Step {step} is sent twice.").format(step=repeated[0]), "steps")
    StepPrompts.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["run", "step_kind", "step"],
        update_fields=["ordered", "unordered", "prompts"],
    )
    notify_run_changed(run, topics=("pins",))
    return len(rows)


def build_step_prompts(run: Run, step_kind: str, number: Any, prompts: Any) -> StepPrompts:
    """Raises InvalidInputError."""
    step = parse_integer(number, "steps", minimum=0)
    is_valid = isinstance(prompts, list) and 0 < len(prompts) <= MAX_STEP_PROMPTS
    if step is None or not is_valid or not all(isinstance(prompt, str) for prompt in prompts):
        raise InvalidInputError(
            _("The prompts of step {step} must be a list of texts.").format(step=repr(number)[:40]), "steps"
        )
    digest = compute_digest([compute_prompt_key(prompt) for prompt in prompts])
    return StepPrompts(
        run=run, step_kind=step_kind, step=step,
        ordered=digest.ordered, unordered=digest.unordered, prompts=digest.prompts,
    )  # fmt: skip
