"""The URL of the run list: filter, columns, order, groups, page."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from django.http import HttpRequest, QueryDict

from dashboard.pages.common import clean_param, parse_row_offset
from dashboard.pages.runs import columns as run_columns

SHOWS: Final = ("", "archived", "bin")
DEFAULT_SORT: Final = "-updated"
COLUMNS_COOKIE: Final = "run-columns"
MAX_COLUMN_KEY_CHARS: Final = 320


@dataclass(frozen=True, slots=True)
class RunsUrlState:
    """`show` is empty for active runs, `archived`, or `bin` for runs in the trash. `group` and `sort` are columns."""

    name: str = ""
    project: str = ""
    show: str = ""
    sort: str = DEFAULT_SORT
    group: str = ""
    col: tuple[str, ...] = ()
    start: int = 0

    @classmethod
    def from_query(cls, query: QueryDict) -> RunsUrlState:
        """Unknown values fall back to the default, so that old links still open."""
        names = ("name", "project", "show", "sort", "group")
        name, project, show, sort, group = (clean_param(query.get(key, "")).strip() for key in names)
        return cls(
            name,
            project,
            show if show in SHOWS else "",
            sort if run_columns.find_column(sort.removeprefix("-")) else DEFAULT_SORT,
            group if run_columns.find_column(group) else "",
            parse_column_keys(query.getlist("col")),
            parse_row_offset(clean_param(query.get("start", ""))),
        )

    def link(self, **changes: Any) -> str:
        """`?…` of this state with some changes."""
        state, default = replace(self, **changes), RunsUrlState()
        names = ("project", "name", "show", "group", "sort")
        pairs = [(name, getattr(state, name)) for name in names if getattr(state, name) != getattr(default, name)]
        pairs += [("col", key) for key in state.col]
        pairs += [("start", str(state.start))] if state.start else []
        return "?" + "&".join(f"{name}={quote(value, safe=':/@=.,')}" for name, value in pairs)

    def column_link(self, key: str) -> str:
        """The link of a column header: sorts by the column, descending first, or reverses its order."""
        descending = f"-{key}"
        return self.link(sort=key if self.sort == descending else descending, start=0)

    @property
    def order(self) -> run_columns.RunColumn:
        column = run_columns.find_column(self.sort.removeprefix("-"))
        assert column is not None  # checked by `from_query`
        return column

    @property
    def descending(self) -> bool:
        return self.sort.startswith("-")

    def find_names(self, prefix: str) -> list[str]:
        """The config keys or metrics that the columns, the order and the groups need."""
        keys = dict.fromkeys([*self.col, self.group, self.sort.removeprefix("-")])
        return [key.removeprefix(prefix) for key in keys if key.startswith(prefix) and key != prefix]


def parse_column_keys(values: list[str]) -> tuple[str, ...]:
    keys = [clean_param(value)[:MAX_COLUMN_KEY_CHARS] for value in values]
    return tuple(dict.fromkeys(key for key in keys if run_columns.find_column(key)))[: run_columns.MAX_COLUMNS]


def parse_columns_cookie(request: HttpRequest) -> tuple[str, ...]:
    """The columns that were last chosen in this browser."""
    return parse_column_keys(QueryDict(request.COOKIES.get(COLUMNS_COOKIE, "")[:4000]).getlist("col"))


def serialize_columns_cookie(columns: tuple[str, ...]) -> str:
    return "&".join(f"col={quote(key, safe=':/@.')}" for key in columns)
