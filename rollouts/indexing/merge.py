"""The rows of one step out of its dumps: samples that several dumps tell of become one.

Dumps that hold text come first, by arrival: the oldest to tell of a sample owns its row, the others are Sightings and
fill in what it lacks. Then those that hold tokens, such as the batches that trainers keep to load again: their rows
join the samples of the others, by trajectory and turn where both say them, else by prompt and response. They never add
samples to a step that others tell of, so that what can't be joined does not count twice; a step that only they tell of
is theirs.

What a sample is only beside the others of its step (a duplicate, cut, the last of its trajectory) is said of the whole
step, whichever dumps they came in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rollouts.formats import TOKEN_ONLY_FORMATS
from rollouts.models import Dump, DuplicateSource
from rollouts.samples import (
    FIELD_POSITIONS,
    IndexRow,
    IndexRowBuilder,
    IntermediateTracker,
    ResponseScan,
    ResponseTraits,
    TrajectoryPosition,
    build_trajectory_key,
    compute_text_properties,
    fill_missing_values,
)

IndexRowLoader = Callable[[Dump], IndexRowBuilder]


def merge_dumps(
    step_id: int, live: Sequence[Dump], old: Sequence[Dump], slims: IndexRowLoader
) -> tuple[list[IndexRow], list[DuplicateSource]]:
    """Rows by owner, hidden ones from the newest superseded dump that has them, and the sightings."""
    merged = StepMerger(step_id, slims)
    telling, joining = parted(live)
    for version in telling:
        merged.tell(version)
    for version in joining:
        if telling:
            merged.join(version)
        else:
            merged.tell(version)
    merged.conclude()
    told_before, joined_before = parted(old)
    for version in [*reversed(told_before), *([] if telling else reversed(joined_before))]:
        merged.hide(version)
    return list(merged.rows.values()), merged.sights


def parted(versions: Sequence[Dump]) -> tuple[list[Dump], list[Dump]]:
    """Those with text, and those made of artifacts or that hold only tokens."""
    telling: list[Dump] = []
    joining: list[Dump] = []
    for one in versions:
        (
            joining if one.source.startswith(Dump.ARTIFACT_PREFIX) or one.format in TOKEN_ONLY_FORMATS else telling
        ).append(one)
    return telling, joining


class StepMerger:
    """The rows of a step while its dumps are gone through. `places` finds a row by its trajectory and turn."""

    def __init__(self, step_id: int, slims: IndexRowLoader) -> None:
        self.step_id = step_id
        self.slims = slims
        self.rows: dict[str, IndexRow] = {}
        self.sights: list[DuplicateSource] = []
        self.places: dict[tuple[str, int | None], str] = {}
        self.traits: dict[str, ResponseTraits] = {}
        self.ends: IntermediateTracker[str] = IntermediateTracker()  # each producer counts its trajectories by itself
        self.judged: set[str] = set()

    def read(self, version: Dump) -> Iterator[tuple[IndexRow, TrajectoryPosition, ResponseTraits]]:
        slim = self.slims(version)
        yield from zip(slim.rows(self.step_id, version.pk), slim.positions(), slim.traits(), strict=True)

    def tell(self, version: Dump) -> None:
        """Its rows, each a sample of its own unless a dump before has it."""
        for row, place, trait in self.read(version):
            known = self.rows.get(row[0])
            if known is None:
                self.rows[row[0]] = row
                self.traits[row[0]] = trait
                self.judged.update([row[0]] if place.judged else [])
            else:
                self.share(row[0], version, row, place)
            if place.trajectory and not (known and known[FIELD_POSITIONS["trajectory"]]):
                self.places.setdefault(place[:2], row[0])
                self.follow(row[0], version, place)

    def follow(self, sample: str, version: Dump, place: TrajectoryPosition) -> None:
        row, turn = self.rows[sample], len(self.rows) if place.turn is None else place.turn
        trajectory = build_trajectory_key(
            place.trajectory, row[FIELD_POSITIONS["group"]], row[FIELD_POSITIONS["prompt_key"]]
        )
        self.ends.add((version.producer, trajectory), turn, sample)

    def conclude(self) -> None:
        """Facets of the step that is shown, and which samples a later one of their trajectory follows."""
        if not self.rows:
            return
        rows, traits = list(self.rows.values()), self.traits.values()
        bits, chars, tokens, told = (
            [row[FIELD_POSITIONS[name]] for row in rows] for name in ("facets", "chars", "tokens", "truncated")
        )
        twins, marked, ended = zip(*traits, strict=True)
        seen = ResponseScan(np.array(bits, np.uint32), np.array(marked), np.array(ended), np.array(chars, np.int64))
        for row, facets in zip(
            rows, compute_text_properties(seen, np.array(twins, np.int64), tokens, told).tolist(), strict=True
        ):
            self.rows[row[0]] = changed(row, facets=facets, final=row[0] not in self.ends.intermediate)

    def join(self, version: Dump) -> None:
        """What it adds to samples that others tell of; each takes from one row."""
        taken: set[str] = set()
        for row, place, _ in self.read(version):
            sample = self.places.get(place[:2]) if place.trajectory else None
            sample = sample or row[0]
            if sample in self.rows and sample not in taken:
                taken.add(sample)
                self.share(sample, version, row, place)

    def share(self, sample: str, version: Dump, row: IndexRow, place: TrajectoryPosition) -> None:
        self.sights.append(DuplicateSource(sample=sample, dump_id=version.pk, ordinal=row[FIELD_POSITIONS["ordinal"]]))
        whole = fill_missing_values(self.rows[sample], row)
        if place.judged and sample not in self.judged:
            self.judged.add(sample)
            whole = changed(whole, correct=row[FIELD_POSITIONS["correct"]])
        self.rows[sample] = whole

    def hide(self, version: Dump) -> None:
        """Rows that no live dump has, out of sight."""
        for row, *_ in self.read(version):
            if row[0] not in self.rows:
                self.rows[row[0]] = changed(row, visible=False)


def changed(row: IndexRow, **values: Any) -> IndexRow:
    """The row with other values in these columns; the row itself where it has them."""
    if all(row[FIELD_POSITIONS[name]] == value for name, value in values.items()):
        return row
    made = list(row)
    for name, value in values.items():
        made[FIELD_POSITIONS[name]] = value
    return tuple(made)
