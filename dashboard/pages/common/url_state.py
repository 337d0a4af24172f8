"""The state of a page in its URL. Links leave out default values, so URLs stay short and readable."""

from dataclasses import dataclass, fields, replace
from typing import Self
from urllib.parse import quote_plus

from django.http import QueryDict

from rolloutdeck.protocol import SPLITS
from rollouts.errors import InvalidInputError
from rollouts.lib import MAX_INT64, parse_integer
from rollouts.query import split_terms

VIEWS = ("raw", "math", "turns", "diff", "tokens", "json")
SORTS = ("score", "len", "tokens", "group", "adv", "source", "n", "step", "staleness", "duration")
MAX_QUERY = 4001  # one more than the limit of a query, so that a longer query is refused and not cut
MAX_ROW_OFFSET = 10**8


@dataclass(frozen=True, slots=True)
class UrlState:
    """Each field is a URL parameter. An empty `split` means the first split of the run."""

    split: str = ""

    @classmethod
    def from_query(cls, query: QueryDict) -> Self:
        """Unknown values fall back to the default, so that old links still open."""
        values = {field.name: clean_param(query.get(field.name, "")) for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if value and cls.is_valid(name, value)})

    @classmethod
    def is_valid(cls, name: str, value: str) -> bool:
        return name != "split" or value in SPLITS

    def link(self, **changes: str) -> str:
        """`?…` of this state with some changes; empty if all values are defaults."""
        state = replace(self, **changes)
        values = [(field.name, getattr(state, field.name), field.default) for field in fields(state)]
        params = [f"{name}={quote_plus(value, safe=':<>=*|/,')}" for name, value, default in values if value != default]
        return "?" * bool(params) + "&".join(params)


@dataclass(frozen=True, slots=True)
class StepUrlState(UrlState):
    """The pages of a step. `sort` is a column, with `-` in front for descending order; empty for the default order
    (lowest score first in a step, newest first in all steps). `parts` are the shown reward parts, separated by commas,
    `-` for none, empty for those that vary. `top` is `alike` if the templates are in the place of the
    figures. `sel` is a sample id."""

    q: str = ""
    sort: str = ""
    parts: str = ""
    top: str = ""
    sel: str = ""
    view: str = "raw"
    attempt: str = ""

    @classmethod
    def is_valid(cls, name: str, value: str) -> bool:
        match name:
            case "sort":
                column = value.removeprefix("-")
                prefix, _, key = column.partition(":")
                return column in SORTS or (prefix in ("part", "rescore") and key != "")
            case "top":
                return value == "alike"
            case "view":
                return value in VIEWS
            case _:
                return UrlState.is_valid(name, value)

    @property
    def without_sample(self) -> str:
        """The link for another step: no sample is selected."""
        return self.link(sel="")

    def sort_link(self, sort: str, default: str) -> str:
        return self.link(sort="" if sort == default else sort, sel="")

    def column_link(self, column: str, default: str) -> str:
        """The link of a column header: sorts by the column, or reverses its order."""
        return self.sort_link(f"-{column}" if (self.sort or default) == column else column, default)

    def toggle_link(self, term: str) -> str:
        """Adds the term to the query, or removes it."""
        return self.link(q=split_terms(self.q).toggle(term), sel="")

    def range_link(self, term: str, *keys: str) -> str:
        """Replaces the query's terms about these keys by `term`."""
        return self.link(q=split_terms(self.query_without(*keys)).add(term), sel="")

    def query_without(self, *keys: str) -> str:
        """The query without its terms about these keys. A term can be appended to it."""
        return split_terms(split_terms(self.q).remove_keys(*keys)).add("")

    def has_term(self, term: str) -> bool:
        return split_terms(self.q).contains(term)


def clean_param(value: str) -> str:
    """The value without NUL and lone surrogates, which no database accepts."""
    return value[:MAX_QUERY].replace("\0", "").encode("utf-8", "ignore").decode()


def parse_integer_param(value: str, *, minimum: int = 0, maximum: int = MAX_INT64) -> int | None:
    """None if the value is not an integer in this range."""
    try:
        return parse_integer(value, "", minimum=minimum, maximum=maximum)
    except InvalidInputError:
        return None


def parse_step_number(value: str) -> int | None:
    """Trainers may number steps from below 0."""
    return parse_integer_param(value, minimum=-MAX_INT64)


def parse_row_offset(value: str) -> int:
    """The parameter `start=`; 0 if it is invalid."""
    return parse_integer_param(value, maximum=MAX_ROW_OFFSET) or 0
