"""The columns of the run list that are shown if none were chosen: those in which the runs differ."""

from collections.abc import Sequence
from typing import Final

from dashboard.pages.runs.columns import BUILT_IN_COLUMNS, CONFIG_PREFIX, RunColumn, RunRow, find_column
from rollouts.runs import list_differing_settings

ALWAYS_SHOWN: Final = ("status", "step", "score", "best", "curve")
SHOWN_IF_FILLED: Final = ("trunc", "flagged")
SHOWN_IF_DIFFERENT: Final = ("model", "algorithm")
SHOWN_LAST_IF_DIFFERENT: Final = ("seed", "owner", "framework", "project")
MAX_COMPARED_RUNS: Final = 500
MAX_CONFIG_COLUMNS: Final = 5


def find_default_columns(rows: Sequence[RunRow]) -> list[RunColumn]:
    compared = rows[:MAX_COMPARED_RUNS]

    def select(keys: Sequence[str], *, min_values: int) -> list[RunColumn]:
        columns = [BUILT_IN_COLUMNS[key] for key in keys]
        return [column for column in columns if count_values(column, compared) >= min_values]

    tags = [BUILT_IN_COLUMNS["tags"]] if any(row.run.tags for row in compared) else []
    return [
        *(BUILT_IN_COLUMNS[key] for key in ALWAYS_SHOWN),
        *select(SHOWN_IF_FILLED, min_values=1),
        *select(SHOWN_IF_DIFFERENT, min_values=2),
        *find_differing_config_columns(compared),
        *select(SHOWN_LAST_IF_DIFFERENT, min_values=2),
        *tags,
        BUILT_IN_COLUMNS["updated"],
    ]


def count_values(column: RunColumn, rows: Sequence[RunRow]) -> int:
    """The number of different values, without 0 flags."""
    return len({column.value(row) for row in rows} - ({None, 0} if column.key == "flagged" else {None}))


def find_differing_config_columns(rows: Sequence[RunRow]) -> list[RunColumn]:
    fields = {row.config.shape.field_keys[name] for row in rows for name in ("model", "algorithm")}
    keys = [key for key in list_differing_settings(row.config for row in rows) if key not in fields]
    columns = [find_column(CONFIG_PREFIX + key) for key in keys[:MAX_CONFIG_COLUMNS]]
    return [column for column in columns if column]
