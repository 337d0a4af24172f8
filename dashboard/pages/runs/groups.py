"""The groups of the run list: by the same configuration but for the seed, or by columns, one inside the other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2s
from os.path import commonprefix
from statistics import fmean
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import format_number, format_run_status
from dashboard.pages.runs import columns as run_columns
from dashboard.pages.runs.columns import RunColumn, RunRow
from rollouts.runs import format_config_value, list_differing_settings

SAME_CONFIG: Final = "same"
NO_GROUPS: Final = "none"
MAX_LEVELS: Final = 3
MAX_TITLE_VALUES: Final = 2
MIN_TITLE_CHARS: Final = 3
GROUP_NAMES: Final = {
    SAME_CONFIG: N_("by configuration, all seeds"),
    "model,same": N_("by model, then configuration"),
    "model,algorithm": N_("by model, then algorithm"),
    NO_GROUPS: N_("no grouping"),
}
SEED_END: Final = re.compile(r"(?:[-_. ]+(?:s|seed|run|r)?[-_. ]*\d*)$", re.IGNORECASE)


@dataclass
class RunRowGroup:
    """Runs with one value. `children` are groups or rows. `key` names the group in the URL."""

    key: str
    label: str
    title: str
    rows: list[RunRow]
    children: list[RunRowGroup | RunRow] = field(default_factory=list)
    level: int = 0
    points: str = ""

    @cached_property
    def uids(self) -> str:
        return ",".join(row.run.uid for row in self.rows)

    @property
    def swatch(self) -> int:
        return self.rows[0].run.colour


def parse_group_keys(text: str) -> tuple[str, ...]:
    """The keys of a `group=` parameter, the outer level first. Unknown keys are left out."""
    if text == NO_GROUPS:
        return (NO_GROUPS,)
    keys = dict.fromkeys(key.strip() for key in text.split(","))
    return tuple(key for key in keys if key == SAME_CONFIG or run_columns.find_column(key))[:MAX_LEVELS]


def build_groups(
    rows: Sequence[RunRow], keys: Sequence[str], order: RunColumn, *, descending: bool, level: int = 0, path: str = ""
) -> list[RunRowGroup | RunRow]:
    """The sorted rows in groups. A group with the same configuration has two runs at least; others are single rows."""
    if not keys or keys[0] == NO_GROUPS:
        return list(rows)
    column = None if keys[0] == SAME_CONFIG else run_columns.find_column(keys[0])
    members: dict[Any, list[RunRow]] = {}
    for row in rows:
        members.setdefault(find_config_group(row) if column is None else (column.value(row),), []).append(row)
    entries: list[RunRowGroup | RunRow] = []
    for value, own in members.items():
        if column is None and len(own) < 2:
            entries += own
            continue
        key = blake2s(f"{path}|{keys[0]}|{value!r}".encode("utf-8", "replace"), digest_size=5).hexdigest()
        group = RunRowGroup(key, column.label if column else "", "", own, level=level)
        group.title = format_group_title(value[0], column) if column else ""
        group.children = build_groups(
            own, keys[1:], order, descending=descending, level=level + 1, path=f"{path}|{key}"
        )
        entries.append(group)
    if column is None:
        name_config_groups([entry for entry in entries if isinstance(entry, RunRowGroup)])
    return sort_entries(entries, order, descending=descending)


def find_config_group(row: RunRow) -> tuple[object, ...]:
    """Runs without a config are alone: nothing says that they are the same."""
    signature = row.config.signature
    return (row.run.project_id, row.run.framework, signature) if signature else (row.run.pk,)


def format_group_title(value: Any, by: RunColumn) -> str:
    if value is None:
        return _("not reported")
    if by.key == "status":
        return format_run_status(value)
    return format_number(value, 4) if isinstance(value, float) else str(value)


def name_config_groups(groups: Sequence[RunRowGroup]) -> None:
    """The common start of the runs' names. If several groups have the same, also the settings in which they differ."""
    by_name: dict[str, list[RunRowGroup]] = {}
    for group in groups:
        name = SEED_END.sub("", commonprefix([row.run.name for row in group.rows]))
        by_name.setdefault(name if len(name) >= MIN_TITLE_CHARS else "", []).append(group)
    for name, alike in by_name.items():
        settings = list_differing_settings([group.rows[0].config for group in alike])[:MAX_TITLE_VALUES]
        for group in alike:
            config = group.rows[0].config
            values = [f"{key.rpartition('.')[2]} {format_config_value(config.get(key))}"[:40] for key in settings]
            group.title = ", ".join(filter(None, [name, *values])) or group.rows[0].run.name


def sort_entries(
    entries: list[RunRowGroup | RunRow], order: RunColumn, *, descending: bool
) -> list[RunRowGroup | RunRow]:
    """Groups are sorted by the mean of numbers, else by their first run in the order of the list."""

    def get_value(entry: RunRowGroup | RunRow) -> Any:
        if isinstance(entry, RunRow):
            return order.value(entry)
        if order is run_columns.NAME_COLUMN:
            return entry.title.lower()
        values = [value for row in entry.rows if (value := order.value(row)) is not None]
        numbers = [value for value in values if isinstance(value, int | float) and abs(value) < run_columns.MAX_NUMBER]
        if values and len(numbers) == len(values):
            return fmean(values)
        return values[0] if values else None

    keyed = [(run_columns.build_column_sort_key(get_value(entry)), entry) for entry in entries]
    known = [(key, entry) for key, entry in keyed if key is not None]
    known.sort(key=lambda pair: pair[0], reverse=descending)
    return [entry for _, entry in known] + [entry for key, entry in keyed if key is None]


def iter_visible_lines(entries: Sequence[RunRowGroup | RunRow], is_open: Any) -> Iterator[RunRowGroup | RunRow]:
    """Yields groups, and what is in the open ones."""
    for entry in entries:
        yield entry
        if isinstance(entry, RunRowGroup) and is_open(entry):
            yield from iter_visible_lines(entry.children, is_open)


def count_groups(entries: Sequence[RunRowGroup | RunRow]) -> int:
    """The number of outer groups."""
    return sum(isinstance(entry, RunRowGroup) for entry in entries)
