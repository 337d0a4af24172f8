"""The URL of the run list: query, columns, order, groups, page."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from django.http import HttpRequest, QueryDict

from dashboard.pages.common import clean_param, parse_row_offset
from dashboard.pages.runs import columns as run_columns
from dashboard.pages.runs.groups import NO_GROUPS, parse_group_keys

SHOW_VALUES: Final = ("", "archived", "bin")
DEFAULT_SORT: Final = "-updated"
COLUMNS_COOKIE: Final = "run-columns"
MAX_COLUMN_KEY_CHARS: Final = 320
MAX_FOLDED_GROUPS: Final = 100


@dataclass(frozen=True, slots=True)
class RunsUrlState:
    """`show` is empty for active runs, `archived`, or `bin` for runs in the trash. `sort` is a column, `group` one or
    more columns or `same`; empty for the default. Groups named in `open` and `shut` are not as they usually are."""

    q: str = ""
    project: str = ""
    show: str = ""
    sort: str = DEFAULT_SORT
    group: str = ""
    col: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    shut: tuple[str, ...] = ()
    start: int = 0

    @classmethod
    def from_query(cls, query: QueryDict) -> RunsUrlState:
        """Unknown values fall back to the default, so that old links still open. `name` is the old name of `q`."""
        names = ("q", "name", "project", "show", "sort", "group")
        q, name, project, show, sort, group = (clean_param(query.get(key, "")).strip() for key in names)
        return cls(
            q or name,
            project,
            show if show in SHOW_VALUES else "",
            sort if run_columns.find_column(sort.removeprefix("-")) else DEFAULT_SORT,
            ",".join(parse_group_keys(group)),
            parse_column_keys(query.getlist("col")),
            parse_keys(query.get("open", "")),
            parse_keys(query.get("shut", "")),
            parse_row_offset(clean_param(query.get("start", ""))),
        )

    def link(self, **changes: Any) -> str:
        """`?…` of this state with some changes."""
        state, default = replace(self, **changes), RunsUrlState()
        names = ("project", "q", "show", "group", "sort")
        pairs = [(name, getattr(state, name)) for name in names if getattr(state, name) != getattr(default, name)]
        pairs += [("col", key) for key in state.col]
        pairs += [(name, ",".join(keys)) for name, keys in (("open", state.open), ("shut", state.shut)) if keys]
        pairs += [("start", str(state.start))] if state.start else []
        return "?" + "&".join(f"{name}={quote(value, safe=':/@=.,<>')}" for name, value in pairs)

    def column_link(self, key: str) -> str:
        """The link of a column header: sorts by the column, descending first, or reverses its order."""
        descending = f"-{key}"
        return self.link(sort=key if self.sort == descending else descending, start=0)

    def fold_link(self, key: str, *, is_open: bool, usually_open: bool) -> str:
        """The link that folds an open group, or unfolds it."""
        opened, shut = (tuple(other for other in keys if other != key) for keys in (self.open, self.shut))
        if is_open and usually_open:
            shut = (*shut, key)[-MAX_FOLDED_GROUPS:]
        if not is_open and not usually_open:
            opened = (*opened, key)[-MAX_FOLDED_GROUPS:]
        return self.link(open=opened, shut=shut)

    @property
    def group_keys(self) -> tuple[str, ...]:
        """Runs in the trash are not in groups by default."""
        return parse_group_keys(self.group or (NO_GROUPS if self.show == "bin" else "same"))

    @property
    def order(self) -> run_columns.RunColumn:
        column = run_columns.find_column(self.sort.removeprefix("-"))
        assert column is not None  # checked by `from_query`
        return column

    @property
    def descending(self) -> bool:
        return self.sort.startswith("-")


def parse_keys(text: str) -> tuple[str, ...]:
    keys = [key for key in clean_param(text).split(",") if key.isalnum() and len(key) <= 16]
    return tuple(dict.fromkeys(keys))[:MAX_FOLDED_GROUPS]


def parse_column_keys(values: list[str]) -> tuple[str, ...]:
    keys = [clean_param(value)[:MAX_COLUMN_KEY_CHARS] for value in values]
    return tuple(dict.fromkeys(key for key in keys if run_columns.find_column(key)))[: run_columns.MAX_COLUMNS]


def parse_columns_cookie(request: HttpRequest) -> tuple[str, ...]:
    """The columns that were last chosen in this browser."""
    return parse_column_keys(QueryDict(request.COOKIES.get(COLUMNS_COOKIE, "")[:4000]).getlist("col"))


def serialize_columns_cookie(columns: tuple[str, ...]) -> str:
    return "&".join(f"col={quote(key, safe=':/@.')}" for key in columns)
