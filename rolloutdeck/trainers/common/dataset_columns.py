"""Columns of a data set as keys of a row for `Run.log_samples`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rolloutdeck.protocol import GUIDANCE_FIELD, SAMPLE_KEYS

RESERVED_COLUMNS = frozenset((*SAMPLE_KEYS, GUIDANCE_FIELD)) - {"ground_truth", "data_source", "tools"}


def add_columns(
    row: dict[str, Any], columns: Mapping[Any, Any], skipped: Collection[str], prefix: str = "dataset_"
) -> None:
    """Adds the columns that are not skipped and have a value.

    One whose name has a meaning for a sample, or is in the row already, gets the prefix: `dataset_index`.
    """
    for name, value in columns.items():
        if name not in skipped and value is not None:
            row[f"{prefix}{name}" if name in RESERVED_COLUMNS or name in row else str(name)] = value
