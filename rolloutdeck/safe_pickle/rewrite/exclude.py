"""Excludes selected rows from a batch that a trainer will load. The remaining rows are written value by value.

A selected row excludes its complete group, all answers to its prompt. A trainer computes the advantage of an answer
from the other answers to the prompt, and expects prompts times answers rows.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolloutdeck.safe_pickle.batches import RolloutBatch, build_source, load_data_proto, open_batch
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load import Consolidated, Data, Piece, Proto, Tree, load_archive
from rolloutdeck.safe_pickle.rewrite.archive_writer import write_torch_batch
from rolloutdeck.safe_pickle.rewrite.atomic import open_checked_output
from rolloutdeck.safe_pickle.rewrite.pickle_writer import write_pickle
from rolloutdeck.safe_pickle.rewrite.row_selection import RowSelection
from rolloutdeck.safe_pickle.stream import ByteSource, ByteSpan, is_zip


@dataclass(frozen=True, slots=True)
class ExclusionResult:
    """The numbers of excluded rows and prompts, and of those that remain."""

    rows: int
    prompts: int
    rows_left: int
    prompts_left: int


def exclude_prompts(
    source: str | os.PathLike[str], target: str | os.PathLike[str], selected: Collection[int], answers: int = 0
) -> ExclusionResult:
    """Writes `target` as `source` without the groups of the rows `selected`, atomically and only if it may be loaded.

    `selected` are row numbers from 0, not counting padding. `answers`: how many consecutive rows answer one prompt, for
    a batch without group names. The bytes of `target` depend only on `source` and the rows. Raises SafePickleError if
    the groups are unknown, nothing would be left, or a value can't be written; OSError.
    """
    with open_batch(source) as batch:
        groups = find_row_groups(batch, answers)
        excluded = {groups[row] for row in resolve_selected_rows(batch, selected)}
    keep = [row for row, group in enumerate(groups) if group not in excluded]
    if not keep:
        raise SafePickleError("all its prompts are selected, nothing would be left of it")
    write_rows(Path(source), Path(target), len(groups), keep)
    all_prompts = len(set(groups))
    return ExclusionResult(len(groups) - len(keep), len(excluded), len(keep), all_prompts - len(excluded))


def resolve_selected_rows(batch: RolloutBatch, selected: Iterable[int]) -> list[int]:
    """Returns the row numbers in the file, counting padding. Raises SafePickleError for a row that does not exist."""
    real = [row for row in range(batch.rows) if not batch.is_padding(row)]
    requested = sorted(set(selected))
    if requested and not 0 <= requested[0] <= requested[-1] < len(real):
        raise SafePickleError(f"row {requested[-1]} is selected and the batch has {len(real)}")
    return [real[row] for row in requested]


def find_row_groups(batch: RolloutBatch, answers: int) -> Sequence[Hashable]:
    """Returns the prompt of each row: its key, its uid, or a number by position. Raises SafePickleError."""
    if batch.keys:
        return [key.split("_")[0] for key in batch.keys]  # the rule of verl
    if "uid" in batch.columns:
        return [str(uid) for uid in batch.column("uid")]
    if not answers or batch.rows % answers or not have_same_prompts(batch, answers):
        raise SafePickleError("it does not record which of its rows answer one prompt")
    return [row // answers for row in range(batch.rows)]


def have_same_prompts(batch: RolloutBatch, answers: int) -> bool:
    """Whether each block of `answers` consecutive rows has the same prompt."""
    if "prompts" not in batch.fields:
        return False
    firsts = range(0, batch.rows, answers)
    return all(
        (batch.tensor("prompts", row) == batch.tensor("prompts", first)).all()
        for first in firsts
        for row in range(first + 1, first + answers)
    )


def write_rows(source: Path, target: Path, rows: int, keep: Sequence[int]) -> None:
    tensors_path = target.with_name(f".{target.name}.tensors")
    try:
        with ByteSource.open(source) as byte_source, open_checked_output(target) as file:
            selection = RowSelection(rows, keep)
            if is_zip(byte_source):
                batch = load_archive(byte_source)  # {tensordict, tags, keys, global_steps}
                columns = {name: selection.select_values(batch[name]) for name in ("tags", "keys")}
                tensordict = selection.select_tensordict(batch["tensordict"])
                write_torch_batch({**batch, "tensordict": tensordict, **columns}, file)
            else:
                write_proto(load_data_proto(byte_source), selection, tensors_path, file)
    finally:
        tensors_path.unlink(missing_ok=True)


def write_proto(batch: Proto, selection: RowSelection, tensors_path: Path, file: Any) -> None:
    """Writes the selected rows of a DataProto. Its tensors are a separate archive, which is written to a file first."""
    assert batch.state is not None
    tensors = batch.state[0]
    if isinstance(tensors, tuple):
        write_pickle(selection.build_proto(batch, selection.select_numpy_parts(tensors)), file)
        return
    if not isinstance(tensors, Data):
        raise SafePickleError("it has no tensors")
    tensordict = load_archive(build_source(tensors))
    if isinstance(tensordict, Tree):
        selected: Any = selection.select_tensordict(tensordict)
    elif isinstance(tensordict, Consolidated):
        selected = selection.select_consolidated(tensordict)
    else:
        raise SafePickleError("its tensors are not a TensorDict")
    with tensors_path.open("wb") as tensors_file:
        write_torch_batch(selected, tensors_file)
    with ByteSource.open(tensors_path) as written:
        write_pickle(selection.build_proto(batch, Piece(written, ByteSpan(0, written.size))), file)
