"""What stands around samples on their pages: their bodies, their groups, their prompts over steps, their flags, and
where they came from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from django.db.models import Q

from dashboard.pages.pins import ReplayLabel, load_replay_labels
from dashboard.pages.sample.prompt_history import PromptStep, build_history_key, build_prompt_steps, load_prompt_scores
from rollouts.models import Flag, Sample
from rollouts.samples import SampleBody, load_bodies

MAX_SIBLINGS = 64


@dataclass(slots=True)
class RelatedData:
    """`siblings` are the samples of its group in the order that the trainer gave them, `past` its prompt's steps."""

    body: SampleBody
    flags: list[Flag]
    siblings: list[Sample]
    past: list[PromptStep]
    replayed: ReplayLabel | None


def load_related_data(samples: Sequence[Sample]) -> dict[str, RelatedData]:
    """By sample id, in as many queries for twenty of a step as for one; without what the bodies do not have.
    Raises StorageUnavailable."""
    told, flags = load_bodies(samples), load_flags_by_sample(samples)
    groups, prompts = load_siblings(samples), load_prompt_scores(samples)
    origins = load_replay_labels({one.step_id: one.step for one in samples}.values())
    found: dict[str, RelatedData] = {}
    for one in samples:
        if one.pk not in told:
            continue
        one.dump = told[one.pk].source_dumps[0]
        past = build_prompt_steps(prompts[build_history_key(one)], one.step.step)
        found[one.pk] = RelatedData(
            told[one.pk], flags[one.pk], groups[one.step_id, one.group], past, origins.get(one.step_id)
        )
    return found


def load_flags_by_sample(samples: Iterable[Sample]) -> dict[str, list[Flag]]:
    """The flags that stand, by sample id, oldest first."""
    found: dict[str, list[Flag]] = {one.pk: [] for one in samples}
    rows = Flag.objects.filter(sample__in=list(found), withdrawn_at=None).prefetch_related("user")
    for flag in rows.order_by("created_at"):
        found[flag.sample].append(flag)
    return found


def load_siblings(samples: Iterable[Sample]) -> dict[tuple[int, str], list[Sample]]:
    """By step id and group; none where a sample has no group."""
    wanted: dict[int, set[str]] = defaultdict(set)
    for one in samples:
        if one.group:
            wanted[one.step_id].add(one.group)
    found: dict[tuple[int, str], list[Sample]] = defaultdict(list)
    if not wanted:
        return found
    there = reduce(or_, (Q(step=step, group__in=groups) for step, groups in wanted.items()))
    rows = Sample.objects.filter(there, visible=True, final=True).order_by("index", "ordinal", "pk")
    for one in rows:
        if len(found[one.step_id, one.group]) < MAX_SIBLINGS:
            found[one.step_id, one.group].append(one)
    return found
