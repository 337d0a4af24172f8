"""What stands around samples on their pages: their bodies, their groups, their prompts over steps, their flags."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from django.db.models import Q

from rollouts import bodies
from rollouts.bodies import Body
from rollouts.models import Flag, Sample

MOST_SIBLINGS = 64
MOST_STEPS = 200


@dataclass(slots=True)
class Past:
    """The same prompt at one step: `score` is the mean of its samples there, `pk` one of them."""

    step: int
    score: float | None
    count: int
    pk: str
    height: float
    here: bool

    @property
    def y(self) -> float:
        return round(94 - self.height, 1)


@dataclass(slots=True)
class Around:
    """`siblings` are the samples of its group in the order that the trainer gave them, `past` its prompt's steps."""

    body: Body
    flags: list[Flag]
    siblings: list[Sample]
    past: list[Past]


def of(samples: Sequence[Sample]) -> dict[str, Around]:
    """By sample id, in as many queries for twenty of a step as for one. Raises StorageUnavailable."""
    told, flags = bodies.read(samples), flags_of(samples)
    groups, prompts = siblings(samples), history(samples)
    found: dict[str, Around] = {}
    for one in samples:
        one.dump = told[one.pk].seen_in[0]
        past = passed(prompts[place_of(one)], one.step.step)
        found[one.pk] = Around(told[one.pk], flags[one.pk], groups[one.step_id, one.group], past)
    return found


def flags_of(samples: Iterable[Sample]) -> dict[str, list[Flag]]:
    """The flags that stand, by sample id, oldest first."""
    found: dict[str, list[Flag]] = {one.pk: [] for one in samples}
    rows = Flag.objects.filter(sample__in=list(found), withdrawn_at=None).select_related("user")
    for flag in rows.order_by("created_at"):
        found[flag.sample].append(flag)
    return found


def siblings(samples: Iterable[Sample]) -> dict[tuple[int, str], list[Sample]]:
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
        if len(found[one.step_id, one.group]) < MOST_SIBLINGS:
            found[one.step_id, one.group].append(one)
    return found


Place = tuple[int, str, str]  # run id, split, prompt key
Told = tuple[int, float | None, str]  # step, score, sample id


def place_of(sample: Sample) -> Place:
    return sample.step.run_id, sample.step.split, sample.prompt_key


def history(samples: Iterable[Sample]) -> dict[Place, list[Told]]:
    """The samples of the same prompts in the same run and split, step by step."""
    wanted: dict[tuple[int, str], set[str]] = defaultdict(set)
    for run, split, key in map(place_of, samples):
        wanted[run, split].add(key)
    found: dict[Place, list[Told]] = defaultdict(list)
    for (run, split), keys in wanted.items():
        rows = Sample.objects.visible().filter(prompt_key__in=keys, step__run=run, step__split=split, final=True)
        shown = rows.order_by("step__step", "score", "pk").values_list("prompt_key", "step__step", "score", "pk")
        for key, *told in shown:
            found[run, split, key].append((told[0], told[1], told[2]))
    return found


def passed(rows: Iterable[Told], here: int) -> list[Past]:
    """A prompt's steps, at most the last `MOST_STEPS` that have it."""
    steps: dict[int, list[tuple[float | None, str]]] = {}
    for number, score, pk in rows:
        steps.setdefault(number, []).append((score, pk))
    return [past(number, found, number == here) for number, found in list(steps.items())[-MOST_STEPS:]]


def past(number: int, found: list[tuple[float | None, str]], here: bool) -> Past:
    scores = [score for score, _ in found if score is not None]
    mean = sum(scores) / len(scores) if scores else None
    height = 0.0 if mean is None else round(6 + 88 * min(max(mean, 0.0), 1.0), 1)
    return Past(number, mean, len(found), found[0][1], height, here)
