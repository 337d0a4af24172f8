"""The repairs that some dumps of verl need before its trainer can replay them; nothing else is ever changed.

verl V0 joins a replayed batch with the live one and dies when a column of both differs. A dump with `rm_scores` has no
such column. One without (the reward model ran beside the trainer, rewards were not streamed) holds `uid`, which is
fresh in every run, and `data_source`, `reward_model` and `extra_info`, which differ at any other step than the dump's
own, and where rows of it are left out (`union_numpy_dict` in verl/protocol.py; proven through `fit()`, verl 0.9 and
0.10.0.dev). The trainer takes those columns from its live batch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from rolloutdeck.safe_pickle.batches import RolloutBatch, build_proto_contents, load_data_proto
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load import Proto
from rolloutdeck.safe_pickle.rewrite.atomic import open_checked_output
from rolloutdeck.safe_pickle.rewrite.pickle_writer import write_pickle
from rolloutdeck.safe_pickle.stream import ByteSource

ALWAYS_DROPPED_COLUMNS = ("uid",)
MOVED_DROPPED_COLUMNS = ("data_source", "reward_model", "extra_info")


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What the repaired file lacks; every other value is the same."""

    dropped: tuple[str, ...]
    rows: int


def columns_to_drop(batch: RolloutBatch, moved: bool) -> tuple[str, ...]:
    """The columns to drop before verl can replay the batch: none for most. `moved`: beside other rows than its own."""
    if batch.format != "gen_batch" or "rm_scores" in batch.fields:
        return ()
    names = ALWAYS_DROPPED_COLUMNS + MOVED_DROPPED_COLUMNS if moved else ALWAYS_DROPPED_COLUMNS
    return tuple(name for name in names if name in batch.columns)


def drop_columns(source: str | os.PathLike[str], target: str | os.PathLike[str], drop: Sequence[str]) -> RepairResult:
    """Writes `target` as `source` without the columns `drop`, as a whole and only when it may be loaded.

    The bytes of `target` depend on those of `source` and on `drop` alone. Raises SafePickleError when nothing is to be
    repaired, or the result would not be loadable; ValueError for a column that no repair drops; OSError.
    """
    unknown = set(drop) - {*ALWAYS_DROPPED_COLUMNS, *MOVED_DROPPED_COLUMNS}
    if unknown:
        raise ValueError(f"no repair drops {', '.join(sorted(unknown))}")
    with ByteSource.open(source) as opened, open_checked_output(Path(target)) as file:
        return _write_without(load_data_proto(opened), drop, file)


def _write_without(batch: Proto, drop: Sequence[str], file: BinaryIO) -> RepairResult:
    found = build_proto_contents(batch)
    assert batch.state is not None
    tensors, columns, meta = batch.state
    dropped = tuple(name for name in columns if name in drop)
    if "rm_scores" in found.cells or not dropped:
        raise SafePickleError("there is nothing to repair: the batch has rm_scores, or none of these columns")
    kept = {name: column for name, column in columns.items() if name not in dropped}
    write_pickle(replace(batch, state=(tensors, kept, meta)), file)
    return RepairResult(dropped, found.rows)
