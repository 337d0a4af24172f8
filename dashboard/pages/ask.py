"""What a page's URL asks for. Defaults are left out of links, so that URLs stay readable and short."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from urllib.parse import quote_plus

from django.http import QueryDict

from rolloutdeck import wire
from rollouts import terms

VIEWS = ("raw", "math", "turns", "diff", "tokens", "json")
SORTS = ("score", "len", "group", "adv", "source", "n")
MAX_QUERY = 1000


@dataclass(frozen=True, slots=True)
class Ask:
    """`split` empty means the run's first; `sort` is a column, `-` before it turns it round; `sel` a sample's id."""

    split: str = ""
    q: str = ""
    sort: str = "score"
    sel: str = ""
    view: str = "raw"
    attempt: str = ""

    @classmethod
    def of(cls, query: QueryDict) -> Ask:
        """Unknown words fall back to the default: an old link still opens."""
        given = {field.name: clean(query.get(field.name, "")) for field in fields(cls)}
        known = {
            "split": given["split"] in wire.SPLITS,
            "sort": given["sort"].removeprefix("-") in SORTS,
            "view": given["view"] in VIEWS,
        }
        return cls(**{name: value for name, value in given.items() if value and known.get(name, True)})

    def link(self, **changes: str) -> str:
        """`?…` of this state with some of it changed; empty when all is default."""
        state = replace(self, **changes)
        pairs = [
            (field.name, getattr(state, field.name))
            for field in fields(state)
            if getattr(state, field.name) != field.default
        ]
        return "?" * bool(pairs) + "&".join(f"{name}={quote_plus(value, safe=':<>=*|/')}" for name, value in pairs)

    @property
    def kept(self) -> str:
        """What stays when the step changes: all but the selected sample."""
        return self.link(sel="")

    def turned(self, column: str) -> str:
        """The link of a column's header: sort by it, or turn its order round."""
        return self.link(sort=f"-{column}" if self.sort == column else column, sel="")

    def toggled(self, term: str) -> str:
        """The link of a chip: the query with `term` added, or without it."""
        return self.link(q=terms.of(self.q).toggled(term), sel="")

    def has(self, term: str) -> bool:
        return terms.of(self.q).holds(term)


def clean(value: str) -> str:
    """A parameter without NUL and half surrogates, which no database takes."""
    return value[:MAX_QUERY].replace("\0", "").encode("utf-8", "ignore").decode()
