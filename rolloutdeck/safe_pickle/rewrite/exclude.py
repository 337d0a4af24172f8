"""Leaves flagged rows out of a batch that a trainer will load: the rows that stay are written by us, value by value.

A flagged row takes its whole group with it, all answers to its prompt: what a trainer makes of an answer (its
advantage) compares it with the other answers to the prompt, and trainers count prompts times answers.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolloutdeck.safe_pickle.batches import RolloutBatch, build_source, load_data_proto, open_batch
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load import Consolidated, Data, Piece, Proto, Tree, load_pickle
from rolloutdeck.safe_pickle.rewrite.archive_writer import write_torch_batch
from rolloutdeck.safe_pickle.rewrite.atomic import open_checked_output
from rolloutdeck.safe_pickle.rewrite.pickle_writer import write_pickle
from rolloutdeck.safe_pickle.rewrite.row_selection import RowSelection
from rolloutdeck.safe_pickle.stream import ByteSource, ByteSpan, TorchArchive, is_zip


@dataclass(frozen=True, slots=True)
class ExclusionResult:
    """What the written file lacks: `rows` of all answers to `prompts`, and what it still has."""

    rows: int
    prompts: int
    rows_left: int
    prompts_left: int


def exclude_prompts(
    source: str | os.PathLike[str], target: str | os.PathLike[str], flagged: Collection[int], answers: int = 0
) -> ExclusionResult:
    """Writes `target` as `source` without the groups of the rows `flagged`, as a whole and only when it may be loaded.

    `flagged` counts rows from 0, padding left out. `answers`: how many rows in a row answer one prompt, for a batch
    that names no groups. The bytes of `target` depend on those of `source` and on the rows alone. Raises
    SafePickleError when groups can't be told apart, nothing would be left, or something in it can't be written again;
    OSError.
    """
    with open_batch(source) as batch:
        groups = find_row_groups(batch, answers)
        gone = {groups[row] for row in resolve_flagged_rows(batch, flagged)}
    keep = [row for row, group in enumerate(groups) if group not in gone]
    if not keep:
        raise SafePickleError("all its prompts are flagged, nothing would be left of it")
    write_rows(Path(source), Path(target), len(groups), keep)
    every = len(set(groups))
    return ExclusionResult(len(groups) - len(keep), len(gone), len(keep), every - len(gone))


def resolve_flagged_rows(batch: RolloutBatch, flagged: Iterable[int]) -> list[int]:
    """The rows of the file. Raises SafePickleError for one that is not there."""
    real = [row for row in range(batch.rows) if not batch.is_padding(row)]
    wanted = sorted(set(flagged))
    if wanted and not 0 <= wanted[0] <= wanted[-1] < len(real):
        raise SafePickleError(f"row {wanted[-1]} is flagged and the batch has {len(real)}")
    return [real[row] for row in wanted]


def find_row_groups(batch: RolloutBatch, answers: int) -> Sequence[Hashable]:
    """Which prompt each row answers: by its key, by its uid, or by its place. Raises SafePickleError where none
    tells."""
    if batch.keys:
        return [key.split("_")[0] for key in batch.keys]  # as verl does
    if "uid" in batch.columns:
        return [str(uid) for uid in batch.column("uid")]
    if not answers or batch.rows % answers or not same_prompts(batch, answers):
        raise SafePickleError("it does not say which of its rows answer one prompt")
    return [row // answers for row in range(batch.rows)]


def same_prompts(batch: RolloutBatch, answers: int) -> bool:
    """Whether each `answers` rows in a row have the same prompt."""
    if "prompts" not in batch.fields:
        return False
    firsts = range(0, batch.rows, answers)
    return all(
        (batch.tensor("prompts", row) == batch.tensor("prompts", first)).all()
        for first in firsts
        for row in range(first + 1, first + answers)
    )


def write_rows(source: Path, target: Path, rows: int, keep: Sequence[int]) -> None:
    inner = target.with_name(f".{target.name}.tensors")
    try:
        with ByteSource.open(source) as opened, open_checked_output(target) as file:
            if is_zip(opened):
                write_torch_batch(queue(opened, RowSelection(rows, keep)), file)
            else:
                write_proto(load_data_proto(opened), RowSelection(rows, keep), inner, file)
    finally:
        inner.unlink(missing_ok=True)


def queue(source: ByteSource, chosen: RowSelection) -> dict[str, Any]:
    """The batch of a TransferQueue: {tensordict, tags, keys, global_steps}."""
    archive = TorchArchive.open(source)
    found = load_pickle(archive.pickle, archive)
    assert isinstance(found, dict)  # it was read as one before
    rows = {name: chosen.listed(found[name]) for name in ("tags", "keys")}
    return {**found, "tensordict": chosen.tree(found["tensordict"]), **rows}


def write_proto(batch: Proto, chosen: RowSelection, inner: Path, file: Any) -> None:
    """A DataProto; its tensors are an archive of their own, which is written to `inner` first."""
    assert batch.state is not None
    tensors = batch.state[0]
    if isinstance(tensors, tuple):
        write_pickle(chosen.proto(batch, chosen.raw(tensors)), file)
        return
    if not isinstance(tensors, Data):
        raise SafePickleError("it has no tensors")
    with inner.open("wb") as made:
        write_torch_batch(tensordict(build_source(tensors), chosen), made)
    with ByteSource.open(inner) as written:
        write_pickle(chosen.proto(batch, Piece(written, ByteSpan(0, written.size))), file)


def tensordict(source: ByteSource, chosen: RowSelection) -> Consolidated | Tree:
    archive = TorchArchive.open(source)
    found = load_pickle(archive.pickle, archive)
    if isinstance(found, Consolidated):
        return chosen.consolidated(found)
    if isinstance(found, Tree):
        return chosen.tree(found)
    raise SafePickleError("its tensors are no TensorDict")
