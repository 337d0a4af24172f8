"""A cell of a comparison, one step of one run, and what the runs of several cells were told differently.

Written `run@step`: the run's uid or name, and a number or `latest`. Cells are called A, B, … in the order in which they
are named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _

from rolloutdeck.protocol import STEP_KINDS, UID_PATTERN
from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.lib import parse_integer
from rollouts.models import Run, Step

if TYPE_CHECKING:
    from rollouts.models import RunQuerySet

TARGET_LETTERS = "ABCDEF"


@dataclass(frozen=True, slots=True)
class ComparisonTarget:
    """`asked` is the step as it was named, so that `latest` stays latest."""

    letter: str
    run: Run
    step: Step
    requested_step: str

    @property
    def name(self) -> str:
        return f"{self.run.uid}@{self.requested_step}"


def load_comparison_targets(runs: RunQuerySet, of: str, split: str = "") -> list[ComparisonTarget]:
    """The cells that `of` names, among these runs. `split` empty means eval where all have these steps of it, else
    train.

    Raises BadInput, NotThere.
    """
    words = [word for word in (part.strip() for part in of.split(",")) if word]
    if len(words) > len(TARGET_LETTERS):
        said = _("You can compare at most {most} steps at once, not {count}.")
        raise InvalidInputError(said.format(most=len(TARGET_LETTERS), count=len(words)), "of")
    named = [(run_of(runs, word.rpartition("@")[0] or word), asked_in(word)) for word in words]
    if split:
        return placed(named, split)
    first, second = ("eval", "train") if evaluated([run for run, _ in named]) else ("train", "eval")
    try:
        return placed(named, first)
    except NotFoundError as missing:
        try:
            return placed(named, second)
        except NotFoundError:
            raise missing from None


def placed(named: Sequence[tuple[Run, str]], split: str) -> list[ComparisonTarget]:
    return [
        ComparisonTarget(TARGET_LETTERS[at], run, step_of(run, split, step), step)
        for at, (run, step) in enumerate(named)
    ]


def asked_in(word: str) -> str:
    run, at, step = word.rpartition("@")
    return step.strip() if at and run and step.strip() else "latest"


def run_of(runs: RunQuerySet, name: str) -> Run:
    """By uid, else by a name that is the only one of its kind. Raises NotThere, BadInput."""
    found = runs.select_related("project").by_uid(name) if UID_PATTERN.match(name) else None
    if found is not None:
        return found
    same = list(runs.select_related("project").filter(name=name).order_by("-seen_at")[:2])
    if not same:
        raise NotFoundError(_("Run {name} not found, or you have no access to it.").format(name=repr(name[:80])), "of")
    if len(same) > 1:
        said = _("Several runs are named {name}. Use a run id instead, for example {uid}.")
        raise InvalidInputError(said.format(name=repr(name[:80]), uid=same[0].uid), "of")
    return same[0]


def evaluated(runs: Sequence[Run]) -> bool:
    """Whether each of them has steps of eval."""
    found = Step.objects.current().filter(run__in=runs, split="eval", samples__gt=0)
    return found.values("run").distinct().count() == len({run.pk for run in runs})


def step_of(run: Run, split: str, asked: str) -> Step:
    """The current step with this number, or the latest; what the number counts as pages have it. Raises NotThere."""
    steps = Step.objects.current().filter(run=run, split=split, samples__gt=0)
    kinds = set(steps.order_by().values_list("step_kind", flat=True).distinct())
    kind = next((kind for kind in STEP_KINDS if kind in kinds), "")
    found = steps.filter(step_kind=kind)
    if asked != "latest":
        found = found.filter(step=numbered(asked))
    step = found.order_by("-step", "-attempt__number").first()
    if step is None:
        said = _("{run} has no {split} samples.") if asked == "latest" else _("{run} has no {split} step {step}.")
        raise NotFoundError(said.format(run=run.name, split=split, step=asked), "of")
    return step


def numbered(asked: str) -> int:
    """Raises BadInput."""
    try:
        return parse_integer(asked, "of") or 0
    except InvalidInputError:
        said = _("{step} is not a valid step. Use a step number or latest.")
        raise InvalidInputError(said.format(step=repr(asked[:40])), "of") from None


def find_config_differences(found: Sequence[ComparisonTarget]) -> list[tuple[str, list[str]]]:
    """[(key of the config, its value in each cell as JSON)], those that differ; empty where a run lacks the key."""
    flat = [dict(leaves(cell.run.config)) for cell in found]
    keys = sorted(set().union(*flat)) if flat else []
    rows = [(key, [one.get(key, "") for one in flat]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def leaves(config: Any, name: str = "") -> list[tuple[str, str]]:
    """A nested config as [(dotted name, JSON)]."""
    if isinstance(config, Mapping) and (config or not name):
        return [leaf for key, value in config.items() for leaf in leaves(value, f"{name}.{key}" if name else str(key))]
    return [(name, json.dumps(config, ensure_ascii=False, sort_keys=True))]
