"""Groups with one score, and groups in which all responses or none are correct.

The groups are cached per version of a step: in a million samples the database needs seconds to group them, and a page
needs them three times.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from django.db.models import Case, CharField, Count, IntegerField, Max, Min, When
from django.db.models.functions import Cast

from rollouts.lib import Cache, CacheSize
from rollouts.models import Sample, StepQuerySet

BATCH_SAMPLES: Final = 20_000  # samples that one SQL query groups

StepVersion = tuple[int, int, str]  # the step's id and version, and the time of the version as the database writes it


class GroupOutcomes(NamedTuple):
    """Names of groups of one step. Groups in `zerovar` have two scores or more, all equal."""

    zerovar: tuple[str, ...] = ()
    solve_all: tuple[str, ...] = ()
    solve_none: tuple[str, ...] = ()


outcome_cache: Cache[StepVersion, GroupOutcomes] = Cache(CacheSize.GROUP_NAMES, lambda own: 1 + sum(map(len, own)))


def find_step_group_outcomes(step_id: int) -> GroupOutcomes:
    """Returns the outcomes of a step from its present rows: a correctness rule runs before the step's new version."""
    return load_outcomes([step_id]).get(step_id, GroupOutcomes())


def find_group_outcomes(steps: StepQuerySet) -> dict[int, GroupOutcomes]:
    """Returns the outcomes by step id, without the steps that have no such groups."""
    updated_at = Cast("updated_at", CharField())
    rows = steps.filter(samples__gt=0).order_by("pk").values_list("pk", "version", updated_at, "samples")
    samples = {(pk, version, at): count for pk, version, at, count in rows}
    outcomes = outcome_cache.get_many(
        samples, lambda missing: load_in_batches({version: samples[version] for version in missing})
    )
    return {version[0]: groups for version, groups in outcomes.items() if any(groups)}


def load_in_batches(samples: Mapping[StepVersion, int]) -> dict[StepVersion, GroupOutcomes]:
    """Returns the outcomes of these steps, given the number of samples of each."""
    outcomes: dict[int, GroupOutcomes] = {}
    for step_ids in split_into_batches(samples):
        outcomes |= load_outcomes(step_ids)
    return {version: outcomes.get(version[0], GroupOutcomes()) for version in samples}


def split_into_batches(samples: Mapping[StepVersion, int]) -> Iterator[list[int]]:
    """Yields ids of steps that have about `BATCH_SAMPLES` samples in total, or of a single larger step."""
    batch: list[int] = []
    room = BATCH_SAMPLES
    for (pk, *_), count in samples.items():
        batch.append(pk)
        room -= count + 1
        if room < 0:
            yield batch
            batch, room = [], BATCH_SAMPLES
    if batch:
        yield batch


def load_outcomes(step_ids: Iterable[int]) -> dict[int, GroupOutcomes]:
    """Returns the outcomes of the steps that have named groups. A trajectory counts once, by its last sample."""
    correct = Case(When(correct=True, then=1), When(correct=False, then=0), output_field=IntegerField())
    last = Sample.objects.visible().filter(step__in=list(step_ids), final=True).exclude(group="")
    groups = last.order_by().values_list("step", "group").annotate(
        low=Min("score"), high=Max("score"), scores=Count("score"), all_correct=Min(correct), any_correct=Max(correct)
    )  # fmt: skip
    outcomes: dict[int, tuple[list[str], list[str], list[str]]] = {}
    for step, group, low, high, scores, all_correct, any_correct in groups:
        zerovar, solve_all, solve_none = outcomes.setdefault(step, ([], [], []))
        if scores > 1 and low == high:
            zerovar.append(group)
        if all_correct == 1:
            solve_all.append(group)
        if any_correct == 0:
            solve_none.append(group)
    return {step: GroupOutcomes(*map(tuple, names)) for step, names in outcomes.items()}
