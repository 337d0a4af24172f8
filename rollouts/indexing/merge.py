"""Merges the dumps of a step: a sample that several dumps contain becomes one row.

Dumps with text come first, in order of arrival. The first dump that contains a sample owns its row. The others get a
`DuplicateSource` row and fill missing values. Then come token-only dumps, such as the batches that trainers save to
load them again. Their rows are merged with samples of other dumps by trajectory and turn if both have them, else by
prompt and response. They do not add samples to a step that has dumps with text, so rows that cannot be matched do not
count twice; unless their format lists all samples of the step with their trajectories. A step that has only token-only
dumps gets its samples from them.

Properties that depend on the other samples of the step (duplicate, cut off, last of its trajectory) are computed for
the full step, not for each dump.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rollouts import samples
from rollouts.formats import SUMMARY_FORMATS, TOKEN_ONLY_FORMATS
from rollouts.models import Dump, DuplicateSource
from rollouts.samples import FIELD_POSITIONS, IndexRow, IndexRowBuilder, ResponseTraits, TrajectoryPosition

IndexRowLoader = Callable[[Dump], IndexRowBuilder]


def merge_dumps(
    step_id: int, current: Sequence[Dump], superseded: Sequence[Dump], load_rows: IndexRowLoader
) -> tuple[list[IndexRow], list[DuplicateSource], list[samples.Template]]:
    """Returns the rows of the step, the duplicate sources and the templates of its visible samples.

    Samples that only superseded dumps contain are hidden rows, taken from the newest of these dumps.
    """
    merger = StepMerger(step_id, load_rows)
    with_text, token_only = partition_dumps(current)
    for dump in with_text or token_only:
        merger.add_samples(dump)
    for dump in token_only if with_text else ():
        merger.add_values(dump)
    merger.compute_step_properties()
    old_with_text, old_token_only = partition_dumps(superseded)
    for dump in [*reversed(old_with_text), *([] if with_text else reversed(old_token_only))]:
        merger.add_hidden_samples(dump)
    return list(merger.rows.values()), merger.duplicates, merger.templates


def partition_dumps(dumps: Sequence[Dump]) -> tuple[list[Dump], list[Dump]]:
    """Returns the dumps with text, and the dumps that have only tokens or were created from artifacts."""
    parts: tuple[list[Dump], list[Dump]] = ([], [])
    for dump in dumps:
        parts[dump.is_from_artifact or dump.format in TOKEN_ONLY_FORMATS].append(dump)
    return parts


class StepMerger:
    """Merges the dumps of a step one by one. `by_turn` finds a sample by its trajectory and turn."""

    def __init__(self, step_id: int, load_rows: IndexRowLoader) -> None:
        self.step_id = step_id
        self.load_rows = load_rows
        self.rows: dict[str, IndexRow] = {}
        self.duplicates: list[DuplicateSource] = []
        self.by_turn: dict[tuple[str, int | None], str] = {}
        self.traits: dict[str, ResponseTraits] = {}
        self.tracker: samples.IntermediateTracker[str] = samples.IntermediateTracker()  # trajectories are per producer
        self.judged: set[str] = set()
        self.templates: list[samples.Template] = []

    def read_rows(self, dump: Dump) -> Iterator[tuple[IndexRow, TrajectoryPosition, ResponseTraits]]:
        builder = self.load_rows(dump)
        yield from zip(builder.rows(self.step_id, dump.pk), builder.positions(), builder.traits(), strict=True)

    def add_samples(self, dump: Dump) -> None:
        """Adds the rows of a dump. A row that an earlier dump has fills missing values there."""
        for row, position, traits in self.read_rows(dump):
            sample = row[0]
            known = self.rows.get(sample)
            if known is None:
                self.add_row(dump, row, position, traits)
                continue
            self.merge_row(sample, dump, row, position)
            if position.trajectory and not known[FIELD_POSITIONS["trajectory"]]:
                self.by_turn.setdefault(position[:2], sample)
                self.track_turn(sample, dump, position)

    def add_row(self, dump: Dump, row: IndexRow, position: TrajectoryPosition, traits: ResponseTraits) -> None:
        sample = row[0]
        self.rows[sample] = row
        self.traits[sample] = traits
        self.judged.update([sample] if position.judged else [])
        if position.trajectory:
            self.by_turn.setdefault(position[:2], sample)
            self.track_turn(sample, dump, position)

    def track_turn(self, sample: str, dump: Dump, position: TrajectoryPosition) -> None:
        row, turn = self.rows[sample], len(self.rows) if position.turn is None else position.turn
        group, prompt_key = row[FIELD_POSITIONS["group"]], row[FIELD_POSITIONS["prompt_key"]]
        trajectory = samples.build_trajectory_key(position.trajectory, group, prompt_key)
        self.tracker.add((dump.producer, trajectory), turn, sample)

    def compute_step_properties(self) -> None:
        """Computes the text properties of the visible samples and which of them end their trajectory."""
        if not self.rows:
            return
        rows = list(self.rows.values())
        names = ("facets", "chars", "tokens", "truncated")
        bits, chars, tokens, truncated = ([row[FIELD_POSITIONS[name]] for row in rows] for name in names)
        twins, openings, endings, marked, ended = zip(*self.traits.values(), strict=True)
        arrays = (np.array(bits, np.uint32), np.array(marked), np.array(ended), np.array(chars, np.int64))
        scan = samples.ResponseScan(*arrays)
        properties = samples.compute_text_properties(scan, np.array(twins, np.int64), tokens, truncated).tolist()
        groups, scores = ([row[FIELD_POSITIONS[name]] for row in rows] for name in ("group", "score"))
        found = samples.find_templates(openings, endings, groups, scores)
        self.templates = found.templates
        for row, facets, opening, ending in zip(rows, properties, found.openings, found.endings, strict=True):
            final = row[0] not in self.tracker.intermediate
            self.rows[row[0]] = replace_values(row, facets=facets, final=final, opening=opening, ending=ending)

    def add_values(self, dump: Dump) -> None:
        """Fills missing values of samples from the rows of a token-only dump, each sample from one row."""
        matched: set[str] = set()
        for row, position, traits in self.read_rows(dump):
            sample = (self.by_turn.get(position[:2]) if position.trajectory else None) or row[0]
            if sample in self.rows and sample not in matched:
                matched.add(sample)
                self.merge_row(sample, dump, row, position)
            elif sample not in self.rows and dump.format in SUMMARY_FORMATS:
                self.add_row(dump, row, position, traits)

    def merge_row(self, sample: str, dump: Dump, row: IndexRow, position: TrajectoryPosition) -> None:
        ordinal = row[FIELD_POSITIONS["ordinal"]]
        self.duplicates.append(DuplicateSource(sample=sample, dump_id=dump.pk, ordinal=ordinal))
        merged = samples.fill_missing_values(self.rows[sample], row)
        if position.judged and sample not in self.judged:
            self.judged.add(sample)
            merged = replace_values(merged, correct=row[FIELD_POSITIONS["correct"]])
        self.rows[sample] = merged

    def add_hidden_samples(self, dump: Dump) -> None:
        for row, *_ in self.read_rows(dump):
            if row[0] not in self.rows:
                self.rows[row[0]] = replace_values(row, visible=False, opening=None, ending=None)


def replace_values(row: IndexRow, **values: Any) -> IndexRow:
    """Returns the row with other values in these columns, or the same object if nothing changes."""
    if all(row[FIELD_POSITIONS[name]] == value for name, value in values.items()):
        return row
    result = list(row)
    for name, value in values.items():
        result[FIELD_POSITIONS[name]] = value
    return tuple(result)
