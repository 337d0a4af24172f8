"""Groups whose responses are alike: all with one score, all correct, or none.

Which they are is a fact of a step as it stands, so it is kept by its version: in a million samples the database takes
seconds to put them together by their groups' names, and a page asks for them three times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from django.db.models import Case, CharField, Count, IntegerField, Max, Min, When
from django.db.models.functions import Cast

from rollouts.lib import MAX_GROUP_NAMES, Cache
from rollouts.models import Sample, StepQuerySet

AT_ONCE: Final = 20_000  # samples that are put together in one question

Version = tuple[int, int, str]  # a step's id, its version, and when that was made, as the database writes it


class GroupOutcomes(NamedTuple):
    """Names of the groups of one step. In `zerovar` two scores or more are all equal."""

    zerovar: tuple[str, ...] = ()
    solve_all: tuple[str, ...] = ()
    solve_none: tuple[str, ...] = ()


outcome_cache: Cache[Version, GroupOutcomes] = Cache(MAX_GROUP_NAMES, lambda alike: 1 + sum(map(len, alike)))


def find_step_group_outcomes(step: int) -> GroupOutcomes:
    """Of the step with this id, as its rows stand: a rule is applied before their step has its new version."""
    return asked([step]).get(step, GroupOutcomes())


def find_group_outcomes(steps: StepQuerySet) -> dict[int, GroupOutcomes]:
    """By id of the step, those that have such groups."""
    written = Cast("updated_at", CharField())
    there = steps.filter(samples__gt=0).order_by("pk").values_list("pk", "version", written, "samples")
    samples = {(pk, version, at): count for pk, version, at, count in there}
    found = outcome_cache.get_many(samples, lambda missing: made({version: samples[version] for version in missing}))
    return {version[0]: alike for version, alike in found.items() if any(alike)}


def made(samples: Mapping[Version, int]) -> dict[Version, GroupOutcomes]:
    """Of these steps, each with how many samples it has."""
    found: dict[int, GroupOutcomes] = {}
    for steps in portions(samples):
        found |= asked(steps)
    return {version: found.get(version[0], GroupOutcomes()) for version in samples}


def portions(samples: Mapping[Version, int]) -> Iterator[list[int]]:
    """Ids of steps that have about `AT_ONCE` samples together, or more in a single one."""
    portion: list[int] = []
    room = AT_ONCE
    for (pk, *_), count in samples.items():
        portion.append(pk)
        room -= count + 1
        if room < 0:
            yield portion
            portion, room = [], AT_ONCE
    if portion:
        yield portion


def asked(steps: Iterable[int]) -> dict[int, GroupOutcomes]:
    """Looks at trajectories by their last samples; an unnamed group is none. Without the steps that have no group."""
    right = Case(When(correct=True, then=1), When(correct=False, then=0), output_field=IntegerField())
    last = Sample.objects.filter(step__in=list(steps), visible=True, final=True).exclude(group="")
    groups = last.order_by().values("step", "group").annotate(
        low=Min("score"), high=Max("score"), scores=Count("score"), least=Min(right), most=Max(right)
    )  # fmt: skip
    found: dict[int, tuple[list[str], list[str], list[str]]] = {}
    for step, group, low, high, scores, least, most in groups.values_list(
        "step", "group", "low", "high", "scores", "least", "most"
    ):
        zerovar, solve_all, solve_none = found.setdefault(step, ([], [], []))
        if scores > 1 and low == high:
            zerovar.append(group)
        if least == 1:
            solve_all.append(group)
        if most == 0:
            solve_none.append(group)
    return {step: GroupOutcomes(*map(tuple, names)) for step, names in found.items()}
