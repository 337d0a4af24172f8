"""Content keys: what a sample says, as a key that is the same on every server.

A sample id depends on the run's uid, which each server has its own of. A content key depends only on prompt and
response. Samples of one group with the same texts are numbered: `<key>`, `<key>#2`, …
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rollouts.models import Sample, Step
from rollouts.samples.bodies import SampleBody, load_bodies
from rollouts.samples.identity import compute_content_key, get_identity_texts

COPY_MARK: Final = "#"  # before the number of a copy, from 2
BATCH_SAMPLES: Final = 256
TEXT_COLUMNS: Final = ["prompt", "response", "trajectory", "turn"]
# What samples with equal texts have in common; only if several have it, texts are compared.
TWIN_FIELDS: Final = ("prompt_key", "group", "chars")


class SampleContent(NamedTuple):
    """`key` has the number of the copy."""

    key: str
    turn: int | None

    @property
    def text_key(self) -> str:
        """The same for all copies."""
        return self.key.partition(COPY_MARK)[0]


class Twin(NamedTuple):
    """A sample that may have the texts of another one."""

    pk: str
    order: tuple[Any, ...]  # of copies: the same on every server that has the same files


def load_contents(samples: Sequence[Sample]) -> dict[str, SampleContent]:
    """Returns what samples say, by id, without those whose texts are gone. Raises StorageUnavailableError."""
    found: dict[str, SampleContent] = {}
    for start in range(0, len(samples), BATCH_SAMPLES):
        batch = samples[start : start + BATCH_SAMPLES]
        plain = load_plain_contents(batch)
        numbers = number_copies(batch, plain)
        for pk, content in plain.items():
            number = numbers.get(pk, 1)
            found[pk] = content if number == 1 else content._replace(key=f"{content.key}{COPY_MARK}{number}")
    return found


def load_plain_contents(samples: Iterable[Sample]) -> dict[str, SampleContent]:
    """Without numbers of copies."""
    by_id = {sample.pk: sample for sample in samples}
    bodies: dict[str, SampleBody] = load_bodies(list(by_id.values()), TEXT_COLUMNS)
    if textless := [by_id[pk] for pk, body in bodies.items() if body.textless]:
        bodies |= load_bodies(textless, [*TEXT_COLUMNS, "response_ids"])
    return {
        pk: SampleContent(compute_content_key(by_id[pk].prompt_key, get_identity_texts(body)[1]), body.turn)
        for pk, body in bodies.items()
    }


def number_copies(samples: Sequence[Sample], plain: Mapping[str, SampleContent]) -> dict[str, int]:
    """Returns the numbers of the samples that have a copy in their group, from 1."""
    twins = find_twins(samples)
    unread = {twin.pk for group in twins for twin in group} - plain.keys()
    keys = {pk: content.key for pk, content in plain.items()}
    missing = list(Sample.objects.filter(pk__in=unread))
    for start in range(0, len(missing), BATCH_SAMPLES):
        part = load_plain_contents(missing[start : start + BATCH_SAMPLES])
        keys |= {pk: content.key for pk, content in part.items()}
    numbers = {}
    for group in twins:
        counts: dict[str, int] = defaultdict(int)
        for twin in sorted(group, key=lambda twin: twin.order):
            if key := keys.get(twin.pk):
                counts[key] += 1
                numbers[twin.pk] = counts[key]
    return numbers


def find_twins(samples: Sequence[Sample]) -> list[list[Twin]]:
    """Returns the visible samples that may have the same texts as one of these and are in the same group, if there are
    several. Attempts that trained at the same time have their steps in common."""
    own = Step.objects.filter(pk__in={sample.step_id for sample in samples})
    places = {step.pk: (step.run_id, step.split, step.step_kind, step.step, step.superseded) for step in own}
    numbers, runs = {place[3] for place in places.values()}, {place[0] for place in places.values()}
    wanted = set(places.values())
    for step in Step.objects.filter(run__in=runs, step__in=numbers):
        place = (step.run_id, step.split, step.step_kind, step.step, step.superseded)
        if place in wanted:
            places[step.pk] = place
    looks = {(places[sample.step_id], *(getattr(sample, name) for name in TWIN_FIELDS)) for sample in samples}
    rows = Sample.objects.visible().filter(step__in=places, prompt_key__in={sample.prompt_key for sample in samples})
    columns = ("pk", "step", *TWIN_FIELDS, "index", "trajectory", "dump__source", "ordinal")
    twins: dict[tuple[Any, ...], list[Twin]] = defaultdict(list)
    for pk, step, *look, index, trajectory, source, ordinal in rows.values_list(*columns):
        if (key := (places[step], *look)) in looks:
            order = (index is None, index or 0, trajectory, source, ordinal, step)
            twins[key].append(Twin(pk, order))
    return [group for group in twins.values() if len(group) > 1]
