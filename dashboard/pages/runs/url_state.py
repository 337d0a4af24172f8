"""What the address of the run list asks for: filter, columns, order, groups, page."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from django.http import HttpRequest, QueryDict

from dashboard.pages.common.query_messages import start_of
from dashboard.pages.common.url_state import clean
from dashboard.pages.runs import columns as run_columns

SHOWS: Final = ("", "archived", "bin")
USUAL_SORT: Final = "-updated"
COOKIE: Final = "run-columns"
LONGEST: Final = 320


@dataclass(frozen=True, slots=True)
class RunsAsked:
    """`show` is `archived` or `bin` for the runs that are out of the way; `group` and `sort` are columns."""

    name: str = ""
    project: str = ""
    show: str = ""
    sort: str = USUAL_SORT
    group: str = ""
    col: tuple[str, ...] = ()
    start: int = 0

    @classmethod
    def of(cls, query: QueryDict) -> RunsAsked:
        """Unknown words fall back to the default: an old link still opens."""
        given = {key: clean(query.get(key, "")).strip() for key in ("name", "project", "show", "sort", "group")}
        return cls(
            given["name"],
            given["project"],
            given["show"] if given["show"] in SHOWS else "",
            given["sort"] if run_columns.column(given["sort"].removeprefix("-")) else USUAL_SORT,
            given["group"] if run_columns.column(given["group"]) else "",
            columns_of(query.getlist("col")),
            start_of(clean(query.get("start", ""))),
        )

    def link(self, **changes: Any) -> str:
        state = replace(self, **changes)
        usual = RunsAsked()
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
    def order(self) -> run_columns.Column:
        found = run_columns.column(self.sort.removeprefix("-"))
        assert found is not None  # `of` lets nothing else in
        return found

    @property
    def down(self) -> bool:
        return self.sort.startswith("-")

    def needs(self, prefix: str) -> list[str]:
        """The config keys or metrics that the shown columns, the order and the groups ask for."""
        keys = dict.fromkeys([*self.col, self.group, self.sort.removeprefix("-")])
        return [key.removeprefix(prefix) for key in keys if key.startswith(prefix) and key != prefix]


def columns_of(words: list[str]) -> tuple[str, ...]:
    found = [clean(word)[:LONGEST] for word in words]
    return tuple(dict.fromkeys(word for word in found if run_columns.column(word)))[: run_columns.MOST]


def remembered(request: HttpRequest) -> tuple[str, ...]:
    """The columns that this browser chose last."""
    return columns_of(QueryDict(request.COOKIES.get(COOKIE, "")[:4000]).getlist("col"))


def to_remember(columns: tuple[str, ...]) -> str:
    return "&".join(f"col={quote(one, safe=':/@.')}" for one in columns)
