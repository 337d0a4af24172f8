"""The steps to compare, and the config differences of their runs.

A target is written `run@step`: a run's uid or name, and a step number or `latest`. Targets are named A, B, … in order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from rolloutdeck.protocol import UID_PATTERN
from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.lib import MISSING, are_equal_config_values, flatten_config, parse_integer
from rollouts.models import Run, Step, join_concurrent_steps

if TYPE_CHECKING:
    from rollouts.models import RunQuerySet

TARGET_LETTERS = "ABCDEF"


@dataclass(frozen=True, slots=True)
class ComparisonTarget:
    """`requested_step` is the step as the URL names it, so that links keep `latest`. `rows` are its own row and those
    of attempts that ran at the same time."""

    letter: str
    run: Run
    step: Step
    requested_step: str
    rows: Sequence[Step]

    @property
    def samples(self) -> int:
        """Also those that the retention policy dropped."""
        return sum(row.samples for row in self.rows)

    @property
    def dropped(self) -> int:
        return sum(row.dropped for row in self.rows)


def load_comparison_targets(runs: RunQuerySet, of: str, split: str = "") -> list[ComparisonTarget]:
    """Returns the targets that `of` names, among these runs. Empty `split` means eval if all targets have such a step,
    else train. Raises InvalidInputError and NotFoundError."""
    words = [word.strip() for word in of.split(",") if word.strip()]
    if len(words) > len(TARGET_LETTERS):
        message = _("You can compare at most {limit} steps at once, not {count}.")
        raise InvalidInputError(message.format(limit=len(TARGET_LETTERS), count=len(words)), "of")
    requests: list[tuple[Run, str]] = []
    for word in words:
        name, _at, step = word.rpartition("@")
        requests.append((find_run(runs, name or word), (name and step.strip()) or "latest"))
    splits = [split] if split else ["eval", "train"]
    if not split and not all_have_eval_samples([run for run, _ in requests]):
        splits.reverse()
    try:
        return build_targets(requests, splits[0])
    except NotFoundError as missing:
        try:
            return build_targets(requests, splits[-1])
        except NotFoundError:
            raise missing from None


def build_targets(requests: Sequence[tuple[Run, str]], split: str) -> list[ComparisonTarget]:
    targets = []
    for letter, (run, requested_step) in zip(TARGET_LETTERS, requests, strict=False):
        step = find_step(run, split, requested_step)
        target = ComparisonTarget(letter, run, step, requested_step, join_concurrent_steps([step])[step.pk])
        if target.dropped >= target.samples:
            message = _("The samples of {run}, {split} step {step}, were dropped by the retention policy.")
            raise NotFoundError(message.format(run=run.name, split=split, step=step.step), "of")
        targets.append(target)
    return targets


def find_run(runs: RunQuerySet, name: str) -> Run:
    """Returns the run with this uid, or the only one with this name. Raises NotFoundError and InvalidInputError."""
    runs = runs.select_related("project")
    if UID_PATTERN.match(name) and (run := runs.by_uid(name)) is not None:
        return run
    same_name = list(runs.filter(name=name).order_by("-seen_at")[:2])
    if not same_name:
        raise NotFoundError(_("Run {name} not found, or you have no access to it.").format(name=repr(name[:80])), "of")
    if len(same_name) > 1:
        message = _("Several runs are named {name}. Use a run id instead, for example {uid}.")
        raise InvalidInputError(message.format(name=repr(name[:80]), uid=same_name[0].uid), "of")
    return same_name[0]


def all_have_eval_samples(runs: Sequence[Run]) -> bool:
    rows = Step.objects.current().filter(run__in=runs, split="eval", samples__gt=0)
    return rows.values("run").distinct().count() == len({run.pk for run in runs})


def find_step(run: Run, split: str, requested_step: str) -> Step:
    """Returns the current step with this number, or the latest, of the step kind that pages show. Raises NotFoundError
    and InvalidInputError."""
    steps = Step.objects.current().filter(run=run, split=split, samples__gt=0)
    steps = steps.filter(step_kind=steps.find_kind())
    message = _("{run} has no {split} samples.")
    if requested_step != "latest":
        steps = steps.filter(step=parse_step_number(requested_step))
        message = _("{run} has no {split} step {step}.")
    step: Step | None = steps.select_related("attempt").order_by("-step", "-attempt__number").first()
    if step is None:
        raise NotFoundError(message.format(run=run.name, split=split, step=requested_step), "of")
    return step


def load_rows(ids: Sequence[int]) -> list[list[Step]]:
    """Returns the rows of each step: its own, and those of attempts that ran at the same time. Raises NotFoundError."""
    found = Step.objects.select_related("attempt").in_bulk(ids)
    if any(pk not in found for pk in ids):
        raise NotFoundError(_("One of these steps was just deleted. Reload the page."), "of")
    joined = join_concurrent_steps(list(found.values()))
    return [joined[pk] for pk in ids]


def parse_step_number(text: str) -> int:
    try:
        return parse_integer(text, "of") or 0
    except InvalidInputError:
        message = _("{step} is not a valid step. Use a step number or latest.")
        raise InvalidInputError(message.format(step=repr(text[:40])), "of") from None


def find_config_differences(targets: Sequence[ComparisonTarget]) -> list[tuple[str, list[str]]]:
    """Returns [(config key, its value in each target as JSON, empty if the run lacks it)] of the keys that differ."""
    configs = [flatten_config(target.run.config) for target in targets]
    rows = [(key, [config.get(key, MISSING) for config in configs]) for key in sorted(set().union(*configs))]
    return [
        (key, ["" if value is MISSING else json.dumps(value, ensure_ascii=False, sort_keys=True) for value in values])
        for key, values in rows
        if not all(are_equal_config_values(values[0], value) for value in values)
    ]
