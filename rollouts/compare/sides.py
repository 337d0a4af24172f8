"""The samples of a step as arrays: score, correctness, length, text properties, reward parts.

A trajectory counts once, by its last sample. A step with more samples than `MAX_SIDE_SAMPLES` is represented by a
random part of its prompts, each with all its samples: a prompt key is a hash, so the keys below a limit are one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from django.db import connection
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from rollouts.errors import StorageUnavailableError
from rollouts.models import Dump, Sample, Step
from rollouts.samples import REWARD_METADATA, TEXT_PROPERTY_BITS, open_body_file, read_dump_columns

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

MAX_SIDE_SAMPLES = 20_000
MIN_PROMPTS = 50  # that are probably read of a side of which only a part is read
MAX_REWARD_PARTS = 12
MAX_TRIES = 3  # compaction may move the file that is about to be read
KEY_LETTERS = "234567abcdefghijklmnopqrstuvwxyz"  # of base32, in the order in which databases compare them
KEY_PREFIX_CHARS = 4
COLUMNS = (
    "prompt_key", "data_source", "score", "correct", "chars", "tokens", "truncated", "facets", "dump", "ordinal",
)  # fmt: skip
MARKS = ("no-marker", "repetition", "language-mix", "empty", "tool", "filtered", "duplicate")
PART = "part: "
MARK = "mark: "


@dataclass(slots=True)
class Side:
    """`values` has one array per measure, with a number per sample, NaN if unknown. `prompts` are numbers of prompts,
    `sources` has the data source of each prompt. `total` counts the samples of the step, also those left out."""

    prompts: IntArray
    sources: list[str]
    prompt_keys: list[str]
    values: dict[str, FloatArray] = field(default_factory=dict)
    truncation_inferred: bool = False
    total: int = 0

    @property
    def prompt_count(self) -> int:
        return len(self.sources)

    @property
    def is_part(self) -> bool:
        return self.total > len(self.prompts)


def load_side(steps: Sequence[Step]) -> Side:
    """`steps` are the rows of one step. Raises StorageUnavailableError if the reward parts cannot be read."""
    samples = Sample.objects.visible().filter(step__in=steps, final=True)
    has_dropped_samples = any(step.dropped for step in steps)
    total = samples.count() if has_dropped_samples else sum(step.trajectories or step.samples for step in steps)
    if total > MAX_SIDE_SAMPLES:
        share = MAX_SIDE_SAMPLES / total
        limit, needed = find_key_limit(share), ceil(MIN_PROMPTS / share)
        # Of few prompts, none or all may be below the limit. Ids of samples are hashes, too.
        prompts = samples.order_by().values("prompt_key").distinct()[:needed].count()
        samples = samples.filter(prompt_key__lt=limit) if prompts == needed else samples.filter(pk__lt=limit)
    rows = fetch_rows(samples.order_by().values_list(*COLUMNS))
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(COLUMNS, ())
    keys, numbers = np.unique(np.array(columns["prompt_key"], dtype=object), return_inverse=True)
    sources = [""] * len(keys)
    for number, source in zip(numbers.tolist(), columns["data_source"], strict=True):
        sources[number] = sources[number] or source
    bits = np.array(columns["facets"], np.int64)
    has_text = (bits & TEXT_PROPERTY_BITS["no-text"]) == 0
    recorded = to_floats(columns["truncated"])
    looks_cut = (bits & TEXT_PROPERTY_BITS["trunc?"]) != 0
    side = Side(numbers.astype(np.int64), sources, keys.tolist(), total=total)
    side.truncation_inferred = bool(np.isnan(recorded).any())
    side.values = {
        "score": to_floats(columns["score"]),
        "correct": to_floats(columns["correct"]),
        "tokens": to_floats(columns["tokens"]),
        "chars": np.where(has_text, to_floats(columns["chars"]), np.nan),
        "truncated": np.where(np.isnan(recorded), looks_cut, recorded),
        **load_reward_parts(columns["dump"], columns["ordinal"]),
        **{MARK + name: ((bits & TEXT_PROPERTY_BITS[name]) != 0).astype(np.float64) for name in MARKS},
    }
    return side


def fetch_rows(queryset: QuerySet[Any, tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The values as the database has them, 0 or 1 for a boolean: converting them takes as long as all the rest."""
    with connection.cursor() as cursor:
        cursor.execute(*queryset.query.sql_with_params())
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def to_floats(values: Sequence[float | None]) -> FloatArray:
    return np.array(values, dtype=np.float64)


def find_key_limit(share: float) -> str:
    """The prefix below which this share of all prompt keys is."""
    number = int(share * len(KEY_LETTERS) ** KEY_PREFIX_CHARS)
    letters = []
    for _place in range(KEY_PREFIX_CHARS):
        number, letter = divmod(number, len(KEY_LETTERS))
        letters.append(KEY_LETTERS[letter])
    return "".join(reversed(letters))


def load_reward_parts(dumps: Sequence[int], ordinals: Sequence[int]) -> dict[str, FloatArray]:
    """The first parts by name. Of a sample in several dumps, the parts of the dump that owns its index row."""
    positions: dict[int, list[int]] = defaultdict(list)
    for at, dump in enumerate(dumps):
        positions[dump].append(at)
    parts: dict[str, FloatArray] = defaultdict(lambda: np.full(len(dumps), np.nan))
    for row in Dump.objects.filter(pk__in=positions).select_related("segment").order_by("pk"):
        here = np.array(positions[row.pk])
        wanted = np.array([ordinals[at] for at in here.tolist()])
        for name, column in read_reward_columns(row).items():
            inside = wanted < len(column)
            parts[name][here[inside]] = column[wanted[inside]]
    return {PART + name: parts[name] for name in sorted(parts)[:MAX_REWARD_PARTS]}


def read_reward_columns(dump: Dump) -> dict[str, FloatArray]:
    """The reward parts of all rows of a dump; none if it has no body. Raises StorageUnavailableError."""
    for tries in range(MAX_TRIES):
        if dump.segment_id is None:
            return {}
        try:
            with open_body_file(dump) as file:
                names = [part.name for part in file.schema_arrow if has_rewards(part)]
                if not names:
                    return {}
                table = read_dump_columns(dump, file, names)
            break
        except FileNotFoundError as error:
            if tries == MAX_TRIES - 1:
                message = _("Cannot read the sample texts of dump {dump}: {error}.")
                raise StorageUnavailableError(message.format(dump=dump.pk, error="no such file")) from error
            dump = Dump.objects.select_related("segment").get(pk=dump.pk)
        except (OSError, pa.ArrowException) as error:
            message = _("Cannot read the sample texts of dump {dump}: {error}.")
            raise StorageUnavailableError(message.format(dump=dump.pk, error=error)) from error
    arrays = {name: table[name].to_numpy(zero_copy_only=False).astype(np.float64) for name in names}
    return {name.removeprefix("num."): column for name, column in arrays.items() if np.isfinite(column).any()}


def has_rewards(column: pa.Field) -> bool:
    return (column.metadata or {}).get(b"part") == REWARD_METADATA[b"part"]
