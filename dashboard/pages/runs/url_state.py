"""What the address of the run list asks for: filter, columns, order, groups, page."""

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
    """`show` is `archived` or `bin` for the runs that are out of the way; `group` and `sort` are columns."""

    name: str = ""
    project: str = ""
    show: str = ""
    sort: str = DEFAULT_SORT
    group: str = ""
    col: tuple[str, ...] = ()
    start: int = 0

    @classmethod
    def of(cls, query: QueryDict) -> RunsUrlState:
        """Unknown words fall back to the default: an old link still opens."""
        given = {key: clean_param(query.get(key, "")).strip() for key in ("name", "project", "show", "sort", "group")}
        return cls(
            given["name"],
            given["project"],
            given["show"] if given["show"] in SHOWS else "",
            given["sort"] if run_columns.find_column(given["sort"].removeprefix("-")) else DEFAULT_SORT,
            given["group"] if run_columns.find_column(given["group"]) else "",
            parse_column_keys(query.getlist("col")),
            parse_row_offset(clean_param(query.get("start", ""))),
        )

    def link(self, **changes: Any) -> str:
        state = replace(self, **changes)
        usual = RunsUrlState()
        names = ("project", "name", "show", "group", "sort")
        pairs = [(key, getattr(state, key)) for key in names if getattr(state, key) != getattr(usual, key)]
        pairs += [("col", one) for one in state.col]
        pairs += [("start", str(state.start))] if state.start else []
        return "?" + "&".join(f"{key}={quote(value, safe=':/@=.,')}" for key, value in pairs)

    def turned(self, key: str) -> str:
        """The link of a column's header: sort by it, best first, or turn its order round."""
        down = f"-{key}"
        return self.link(sort=key if self.sort == down else down, start=0)

    @property
    def order(self) -> run_columns.RunColumn:
        found = run_columns.find_column(self.sort.removeprefix("-"))
        assert found is not None  # `of` lets nothing else in
        return found

    @property
    def down(self) -> bool:
        return self.sort.startswith("-")

    def needs(self, prefix: str) -> list[str]:
        """The config keys or metrics that the shown columns, the order and the groups ask for."""
        keys = dict.fromkeys([*self.col, self.group, self.sort.removeprefix("-")])
        return [key.removeprefix(prefix) for key in keys if key.startswith(prefix) and key != prefix]


def parse_column_keys(words: list[str]) -> tuple[str, ...]:
    found = [clean_param(word)[:MAX_COLUMN_KEY_CHARS] for word in words]
    return tuple(dict.fromkeys(word for word in found if run_columns.find_column(word)))[: run_columns.MAX_COLUMNS]


def parse_columns_cookie(request: HttpRequest) -> tuple[str, ...]:
    """The columns that this browser chose last."""
    return parse_column_keys(QueryDict(request.COOKIES.get(COLUMNS_COOKIE, "")[:4000]).getlist("col"))


def serialize_columns_cookie(columns: tuple[str, ...]) -> str:
    return "&".join(f"col={quote(one, safe=':/@.')}" for one in columns)
