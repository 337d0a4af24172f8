"""Drops columns of verl dumps that its trainer could not replay otherwise. Nothing else is changed.

verl V0 merges a replayed batch with the live one and fails if a column differs between them. A dump with `rm_scores`
has no such column. A dump without it (the reward model ran next to the trainer, rewards were not streamed) contains
`uid`, which is new in every run. It also contains `data_source`, `reward_model` and `extra_info`, which differ if the
dump is replayed at another step or without some rows (`union_numpy_dict` in verl/protocol.py; tested through `fit()`,
verl 0.9 and 0.10.0.dev). The trainer takes those columns from its live batch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rolloutdeck.safe_pickle.batches import RolloutBatch, build_proto_contents, load_data_proto
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.rewrite.atomic import open_checked_output
from rolloutdeck.safe_pickle.rewrite.pickle_writer import write_pickle
from rolloutdeck.safe_pickle.stream import ByteSource

ALWAYS_DROPPED_COLUMNS = ("uid",)
MOVED_DROPPED_COLUMNS = ("data_source", "reward_model", "extra_info")


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The dropped columns. Every other value is unchanged."""

    dropped: tuple[str, ...]
    rows: int


def columns_to_drop(batch: RolloutBatch, moved: bool) -> tuple[str, ...]:
    """Returns the columns to drop before a replay. `moved`: at another step, or without some of the rows."""
    if batch.format != "gen_batch" or "rm_scores" in (*batch.fields, *batch.columns):
        return ()
    names = ALWAYS_DROPPED_COLUMNS + MOVED_DROPPED_COLUMNS if moved else ALWAYS_DROPPED_COLUMNS
    return tuple(name for name in names if name in batch.columns)


def drop_columns(source: str | os.PathLike[str], target: str | os.PathLike[str], drop: Sequence[str]) -> RepairResult:
    """Writes `target` as `source` without the columns `drop`, atomically and only if it may be loaded.

    The bytes of `target` depend only on `source` and `drop`. Raises SafePickleError if there is nothing to repair or
    the result would not be loadable; ValueError for a column that no repair drops; OSError.
    """
    unknown = set(drop) - {*ALWAYS_DROPPED_COLUMNS, *MOVED_DROPPED_COLUMNS}
    if unknown:
        raise ValueError(f"no repair drops {', '.join(sorted(unknown))}")
    with ByteSource.open(source) as byte_source, open_checked_output(Path(target)) as file:
        batch = load_data_proto(byte_source)
        contents = build_proto_contents(batch)
        assert batch.state is not None
        tensors, columns, meta = batch.state
        dropped = tuple(name for name in columns if name in drop)
        if "rm_scores" in (*contents.tensors, *contents.columns) or not dropped:
            raise SafePickleError("there is nothing to repair: the batch has rm_scores, or none of these columns")
        remaining_columns = {name: column for name, column in columns.items() if name not in dropped}
        write_pickle(replace(batch, state=(tensors, remaining_columns, meta)), file)
    return RepairResult(dropped, contents.rows)
