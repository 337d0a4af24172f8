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

from rolloutdeck.safe_pickle.batches.batch import Batch, open_batch
from rolloutdeck.safe_pickle.batches.layouts import proto, source_of
from rolloutdeck.safe_pickle.errors import Refused
from rolloutdeck.safe_pickle.load import interpreter
from rolloutdeck.safe_pickle.load.placeholders import Consolidated, Data, Piece, Proto, Tree
from rolloutdeck.safe_pickle.rewrite.archive_writer import pack
from rolloutdeck.safe_pickle.rewrite.atomic import whole
from rolloutdeck.safe_pickle.rewrite.pickle_writer import write
from rolloutdeck.safe_pickle.rewrite.row_selection import Selection
from rolloutdeck.safe_pickle.stream.opcodes import Span
from rolloutdeck.safe_pickle.stream.source import Source
from rolloutdeck.safe_pickle.stream.torch_archive import Archive, is_zip


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What the written file lacks: `rows` of all answers to `prompts`, and what it still has."""

    rows: int
    prompts: int
    rows_left: int
    prompts_left: int


def exclude_prompts(
    source: str | os.PathLike[str], target: str | os.PathLike[str], flagged: Collection[int], answers: int = 0
) -> LeftOut:
    """Writes `target` as `source` without the groups of the rows `flagged`, as a whole and only when it may be loaded.

    `flagged` counts rows from 0, padding left out. `answers`: how many rows in a row answer one prompt, for a batch
    that names no groups. The bytes of `target` depend on those of `source` and on the rows alone. Raises Refused when
    groups can't be told apart, nothing would be left, or something in it can't be written again; OSError.
    """
    with open_batch(source) as batch:
        groups = groups_of(batch, answers)
        gone = {groups[row] for row in rows_of(batch, flagged)}
    keep = [row for row, group in enumerate(groups) if group not in gone]
    if not keep:
        raise Refused("all its prompts are flagged, nothing would be left of it")
    write_rows(Path(source), Path(target), len(groups), keep)
    every = len(set(groups))
    return LeftOut(len(groups) - len(keep), len(gone), len(keep), every - len(gone))


def rows_of(batch: Batch, flagged: Iterable[int]) -> list[int]:
    """The rows of the file. Raises Refused for one that is not there."""
    real = [row for row in range(batch.rows) if not batch.is_padding(row)]
    wanted = sorted(set(flagged))
    if wanted and not 0 <= wanted[0] <= wanted[-1] < len(real):
        raise Refused(f"row {wanted[-1]} is flagged and the batch has {len(real)}")
    return [real[row] for row in wanted]


def groups_of(batch: Batch, answers: int) -> Sequence[Hashable]:
    """Which prompt each row answers: by its key, by its uid, or by its place. Raises Refused where none tells."""
    if batch.keys:
        return [key.split("_")[0] for key in batch.keys]  # as verl does
    if "uid" in batch.columns:
        return [str(uid) for uid in batch.column("uid")]
    if not answers or batch.rows % answers or not same_prompts(batch, answers):
        raise Refused("it does not say which of its rows answer one prompt")
    return [row // answers for row in range(batch.rows)]


def same_prompts(batch: Batch, answers: int) -> bool:
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
        with Source.open(source) as opened, whole(target) as file:
            if is_zip(opened):
                pack(queue(opened, Selection(rows, keep)), file)
            else:
                write_proto(proto(opened), Selection(rows, keep), inner, file)
    finally:
        inner.unlink(missing_ok=True)


def queue(source: Source, chosen: Selection) -> dict[str, Any]:
    """The batch of a TransferQueue: {tensordict, tags, keys, global_steps}."""
    archive = Archive.open(source)
    found = interpreter.load(archive.pickle, archive)
    assert isinstance(found, dict)  # it was read as one before
    rows = {name: chosen.listed(found[name]) for name in ("tags", "keys")}
    return {**found, "tensordict": chosen.tree(found["tensordict"]), **rows}


def write_proto(batch: Proto, chosen: Selection, inner: Path, file: Any) -> None:
    """A DataProto; its tensors are an archive of their own, which is written to `inner` first."""
    assert batch.state is not None
    tensors = batch.state[0]
    if isinstance(tensors, tuple):
        write(chosen.proto(batch, chosen.raw(tensors)), file)
        return
    if not isinstance(tensors, Data):
        raise Refused("it has no tensors")
    with inner.open("wb") as made:
        pack(tensordict(source_of(tensors), chosen), made)
    with Source.open(inner) as written:
        write(chosen.proto(batch, Piece(written, Span(0, written.size))), file)


def tensordict(source: Source, chosen: Selection) -> Consolidated | Tree:
    archive = Archive.open(source)
    found = interpreter.load(archive.pickle, archive)
    if isinstance(found, Consolidated):
        return chosen.consolidated(found)
    if isinstance(found, Tree):
        return chosen.tree(found)
    raise Refused("its tensors are no TensorDict")
