"""Finds the rows of body files that have the prompt: by its key, by its trajectory, or by its text."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from django.db.models import Q

from rollouts.forgetting.texts import SearchText
from rollouts.formats import TOKEN_ONLY_FORMATS
from rollouts.models import Dump, DuplicateSource, Project, Segment, get_step_position
from rollouts.samples import build_trajectory_key
from rollouts.storage import fetch_body_file, list_files

Trajectory = tuple[object, ...]


@dataclass(slots=True)
class BodyMatches:
    """`ordinals` are the rows to remove of each dump, `others` those that only contain the text, and `added` those of
    them that are removed too. `dumps` are these dumps as they were when their rows were read. `keys` are the prompt
    keys of other prompts that must not come back. `stale` are body files with rows of the prompt that no dump uses,
    `orphans` such files without a row in the database. `unreadable` are damaged ones."""

    dumps: dict[int, Dump] = field(default_factory=dict)
    ordinals: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    others: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    added: dict[int, set[int]] = field(default_factory=dict)
    sample_ids: set[str] = field(default_factory=set)
    other_ids: set[str] = field(default_factory=set)
    trajectories: set[Trajectory] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    containing_keys: set[str] = field(default_factory=set)
    stale: set[str] = field(default_factory=set)
    orphans: set[str] = field(default_factory=set)
    unreadable: list[str] = field(default_factory=list)
    prompt: str = ""

    def include_others(self) -> None:
        """Removes also the rows that only contain the text."""
        self.added = {dump: set(ordinals) for dump, ordinals in self.others.items()}
        for dump, ordinals in self.others.items():
            self.ordinals[dump] |= ordinals
        self.sample_ids |= self.other_ids
        self.keys |= self.containing_keys
        self.others.clear()
        self.other_ids = set()


class SegmentRows:
    """The dumps of a body file, and which row belongs to which."""

    def __init__(self, segment: Segment) -> None:
        dumps = Dump.objects.filter(segment=segment).select_related("run", "attempt", "segment")
        self.dumps = sorted(dumps, key=lambda dump: dump.segment_offset)
        self.starts = [dump.segment_offset for dump in self.dumps]

    def find(self, row: int) -> tuple[Dump, int] | None:
        """Returns the dump and the ordinal of a row; None for a row that no dump uses."""
        at = bisect_right(self.starts, row) - 1
        if at < 0 or row >= self.starts[at] + self.dumps[at].rows:
            return None
        return self.dumps[at], row - self.starts[at]


def find_body_matches(
    project: Project,
    keys: frozenset[str],
    text: SearchText | None = None,
    paths: Iterable[str] | None = None,
    *,
    with_orphans: bool = True,
) -> BodyMatches:
    """Reads the keys of all bodies of the project, then their texts. Takes long for a large project.

    `text` is known if the prompt was found before. `paths` limits it to these body files. `with_orphans`: also reads
    files without a row; the folder of files of several backups has many of them.
    """
    result = BodyMatches()
    segments = list(Segment.objects.filter(run__project=project).order_by("pk"))
    if paths is not None:
        segments = [segment for segment in segments if segment.path in set(paths)]
    for segment in segments:
        find_keys(segment, keys, result)
    find_duplicates(result)
    text = text or (SearchText.from_prompt(result.prompt) if result.prompt else None)
    for segment in segments:
        find_related_rows(segment, text, result)
    if paths is None and with_orphans:
        find_orphans(project, keys, text, result)
    return result


def find_keys(segment: Segment, keys: frozenset[str], result: BodyMatches) -> None:
    rows = SegmentRows(segment)
    wanted = pa.array(sorted(keys), pa.string())
    for first, table in read_tables(segment.path, ["id", "prompt_key", "trajectory", "group"], result):
        for at in find_true(pc.is_in(table["prompt_key"], value_set=wanted)):
            result.prompt = result.prompt or read_prompt(segment.path, first + at)
            if (found := rows.find(first + at)) is None:
                result.stale.add(segment.path)
                continue
            dump, ordinal = found
            values = {name: table[name][at].as_py() for name in table.schema.names}
            result.dumps.setdefault(dump.pk, dump)
            result.ordinals[dump.pk].add(ordinal)
            result.sample_ids.add(values["id"])
            if values["trajectory"]:
                result.trajectories.add(get_trajectory(dump, values))


def read_prompt(path: str, row: int) -> str:
    for first, table in read_tables(path, ["prompt"], BodyMatches()):
        if row < first + table.num_rows:
            return table["prompt"][row - first].as_py() or ""
    return ""


def get_trajectory(dump: Dump, values: dict[str, str | None]) -> Trajectory:
    group, key = values["group"] or values["prompt_key"] or "", values["prompt_key"] or ""
    return (
        *get_step_position(dump).values(),
        dump.producer,
        *build_trajectory_key(values["trajectory"] or "", group, key),
    )


def find_duplicates(result: BodyMatches) -> None:
    """Adds the rows of other dumps that were merged with a matched sample: those of tokens have another key."""
    merged = DuplicateSource.objects.filter(sample__in=list(result.sample_ids)).values_list("dump", "ordinal")
    for dump, ordinal in merged:
        result.ordinals[dump].add(ordinal)


def find_related_rows(segment: Segment, text: SearchText | None, result: BodyMatches) -> None:
    """Adds the other samples of matched trajectories, and lists rows that contain the text."""
    rows = SegmentRows(segment)
    columns = None if text else ["id", "prompt_key", "trajectory", "group"]
    for first, table in read_tables(segment.path, columns, result):
        containing = set(find_true(text.find_rows(table))) if text else set()
        keys, ids = table["prompt_key"].to_pylist(), table["id"].to_pylist()
        names, groups = table["trajectory"].to_pylist(), table["group"].to_pylist()
        for at in range(table.num_rows):
            if (found := rows.find(first + at)) is None:
                if at in containing:
                    result.stale.add(segment.path)
                continue
            dump, ordinal = found
            values = {"trajectory": names[at], "group": groups[at], "prompt_key": keys[at]}
            known = ordinal in result.ordinals.get(dump.pk, ())
            if known or at in containing:
                result.dumps.setdefault(dump.pk, dump)
            if known and (dump.format in TOKEN_ONLY_FORMATS or dump.is_from_artifact):
                result.keys.add(keys[at])
            if not known and names[at] and get_trajectory(dump, values) in result.trajectories:
                result.dumps.setdefault(dump.pk, dump)
                result.ordinals[dump.pk].add(ordinal)
                result.sample_ids.add(ids[at])
                if at in containing:
                    result.keys.add(keys[at])
            elif not known and at in containing:
                result.others[dump.pk].add(ordinal)
                result.other_ids.add(ids[at])
                result.containing_keys.add(keys[at])


def find_orphans(project: Project, keys: frozenset[str], text: SearchText | None, result: BodyMatches) -> None:
    """Body files that are no longer used remain on the disk for an hour."""
    known = set(Segment.objects.filter(run__project=project).values_list("path", flat=True))
    wanted = pa.array(sorted(keys), pa.string())
    for run in project.runs.values_list("pk", flat=True):
        for file in list_files(f"bodies/{run}/"):
            name = file.key.removeprefix("bodies/")
            if not name.endswith(".parquet") or name in known or Segment.objects.filter(path=name).exists():
                continue
            for _, table in read_tables(name, None, BodyMatches()):
                has_key = pc.any(pc.is_in(table["prompt_key"], value_set=wanted)).as_py()
                if has_key or (text and pc.any(text.find_rows(table)).as_py()):
                    result.orphans.add(name)
                    break


def read_tables(path: str, columns: list[str] | None, result: BodyMatches) -> Iterator[tuple[int, pa.Table]]:
    """Yields (first row, rows) of a body file."""
    first = 0
    try:
        with pq.ParquetFile(fetch_body_file(path)) as file:
            for group in range(file.metadata.num_row_groups):
                table = file.read_row_group(group, columns=columns)
                yield first, table
                first += table.num_rows
    except FileNotFoundError:
        if Segment.objects.filter(path=path).exists():
            result.unreadable.append(path)
    except (OSError, pa.ArrowException):
        if path not in result.unreadable:
            result.unreadable.append(path)


def find_true(mask: pa.ChunkedArray) -> Sequence[int]:
    positions: list[int] = pc.indices_nonzero(mask).to_pylist()
    return positions


def list_unscanned_dumps(project: Project) -> list[Dump]:
    """Returns the dumps with rows that no body has: failed, unsafe, with several steps, or with skipped rows. Waiting
    dumps are not among them: indexing leaves the prompt out."""
    dumps = Dump.objects.filter(run__project=project).select_related("run").order_by("pk")
    state = Dump.State
    unread = Q(segment=None, state__in=(state.FAILED, state.UNSAFE)) | Q(segment=None, step=None) | ~Q(left_out={})
    waiting = Q(segment=None, state__in=(state.RECEIVED, state.INDEXING))
    return list(dumps.filter(unread, raw_dropped_at=None).exclude(waiting))
