"""A second reader of every dump, written from the documentation of the trainers and from docs/formats.md. It shares no
code with the readers of the product. A row is what the product's record must hold; a field that a row lacks must be
empty there. `group` is any label: rows with the same label must be in the same group. `SKIP` is a row that must not be
a sample. `read_rows` returns None for a file without a reader here; `find_reason` returns why it is not compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.rollouts.formats.independent import (
    any_table,
    cure,
    episodes,
    evaluations,
    nemo,
    roll,
    skyrl,
    slime,
    tables,
    tinker,
    trl,
    verl,
)
from tests.rollouts.formats.independent.not_compared import find_reason
from tests.rollouts.formats.independent.rows import SKIP, Rows

__all__ = ["SKIP", "find_reason", "has_reader", "read_rows"]

# The end of a path below tests/data, and its reader.
READERS: list[tuple[str, Callable[[Path], Rows]]] = [
    *verl.READERS, *trl.READERS, *slime.READERS, *roll.READERS, *cure.READERS, *nemo.READERS, *skyrl.READERS,
    *episodes.READERS, *tinker.READERS, *tables.READERS,
    *any_table.READERS, *evaluations.READERS,
]  # fmt: skip


def read_rows(path: Path) -> Rows | None:
    reader = next((reader for pattern, reader in READERS if re.search(pattern, str(path))), None)
    return None if reader is None else reader(path)


def has_reader(path: Path) -> bool:
    return any(re.search(pattern, str(path)) for pattern, _ in READERS)
