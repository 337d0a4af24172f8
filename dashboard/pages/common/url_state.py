"""What a page's URL asks for. Defaults are left out of links, so that URLs stay readable and short."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self
from urllib.parse import quote_plus

from django.http import QueryDict

from rolloutdeck.protocol import SPLITS
from rollouts.errors import InvalidInputError
from rollouts.lib import MAX_INT64, parse_integer
from rollouts.query import split_terms

VIEWS = ("raw", "math", "turns", "diff", "tokens", "json")
SORTS = ("score", "len", "tokens", "group", "adv", "source", "n", "step")
MAX_QUERY = 4001  # one more than is read of a query, so that a longer one is refused and not cut


@dataclass(frozen=True, slots=True)
class UrlState:
    """The state of a page as its URL says it, a word for each field. `split` empty means the run's first."""

    split: str = ""

    @classmethod
    def of(cls, query: QueryDict) -> Self:
        """Unknown words fall back to the default: an old link still opens."""
        given = {field.name: clean_param(query.get(field.name, "")) for field in fields(cls)}
        return cls(**{name: word for name, word in given.items() if word and cls.knows(name, word)})

    @classmethod
    def knows(cls, name: str, word: str) -> bool:
        """Whether the page knows what this word of this field asks for."""
        return name != "split" or word in SPLITS

    def link(self, **changes: str) -> str:
        """`?…` of this state with some of it changed; empty when all is default."""
        state = replace(self, **changes)
        told = [(field.name, getattr(state, field.name), field.default) for field in fields(state)]
        pairs = [f"{name}={quote_plus(word, safe=':<>=*|/,')}" for name, word, default in told if word != default]
        return "?" * bool(pairs) + "&".join(pairs)


@dataclass(frozen=True, slots=True)
class StepUrlState(UrlState):
    """Of the pages of a step. `sort` is a column, `-` before it turns it round, and empty for the usual
    order (the worst score of a step, the newest of all steps first); `sel` a sample's id."""

    q: str = ""
    sort: str = ""
    sel: str = ""
    view: str = "raw"
    attempt: str = ""

    @classmethod
    def knows(cls, name: str, word: str) -> bool:
        match name:
            case "sort":
                return word.removeprefix("-") in SORTS
            case "view":
                return word in VIEWS
            case _:
                return UrlState.knows(name, word)

    @property
    def kept(self) -> str:
        """What stays when the step changes: all but the selected sample."""
        return self.link(sel="")

    def sorted_by(self, sort: str, usual: str) -> str:
        """The link of another order."""
        return self.link(sort="" if sort == usual else sort, sel="")

    def turned(self, column: str, usual: str) -> str:
        """The link of a column's header: sort by it, or turn its order round."""
        return self.sorted_by(f"-{column}" if (self.sort or usual) == column else column, usual)

    def toggled(self, term: str) -> str:
        """The link of a chip: the query with `term` added, or without it."""
        return self.link(q=split_terms(self.q).toggle(term), sel="")

    def brushed(self, term: str, *keys: str) -> str:
        """The link of a part of a chart: `term` in place of what the query says of these numbers."""
        return self.link(q=split_terms(self.rest(*keys)).add(term), sel="")

    def rest(self, *keys: str) -> str:
        """The query without its terms about these numbers, ready for others to follow."""
        return split_terms(split_terms(self.q).remove_keys(*keys)).add("")

    def has(self, term: str) -> bool:
        return split_terms(self.q).contains(term)


def clean_param(value: str) -> str:
    """A parameter without NUL and half surrogates, which no database takes."""
    return value[:MAX_QUERY].replace("\0", "").encode("utf-8", "ignore").decode()


def parse_integer_param(word: str, *, least: int = 0, most: int = MAX_INT64) -> int | None:
    """A whole number as an address writes it; None for anything else."""
    try:
        return parse_integer(word, "", least=least, most=most)
    except InvalidInputError:
        return None


def parse_step_number(word: str) -> int | None:
    """As `whole`, for a step: trainers may count from below 0."""
    return parse_integer_param(word, least=-MAX_INT64)
