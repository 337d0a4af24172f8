"""The sort menu: by what the table can be ordered, both ways, in words."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.pages import asking
from dashboard.pages.ask import Ask
from rollouts.models import Step

# Name in the address, what it is called, what comes first, what comes first when turned round.
ORDERS = (
    ("score", "score", "lowest first", "highest first"),
    ("len", "length", "shortest first", "longest first"),
    ("tokens", "tokens", "fewest first", "most first"),
    ("adv", "advantage", "lowest first", "highest first"),
    ("group", "group", "first to last", "last to first"),
    ("n", "n in the group", "first to last", "last to first"),
    ("source", "source", "a to z", "z to a"),
    ("step", "step", "oldest first", "newest first"),
)


@dataclass(frozen=True, slots=True)
class Way:
    """One entry of the menu."""

    name: str
    said: str
    link: str
    on: bool


def offered(ask: Ask, row: Step | None, result: asking.Result) -> list[Way]:
    """Those that this place has data for."""
    now, usual = asking.order(ask, row), asking.usual(row)
    known = [one for one in ORDERS if (one[0] != "step" or row is None) and there(one[0], result)]
    return [
        Way(called, said, ask.sorted_by(sort, usual) or "?", sort == now)
        for name, called, up, down in known
        for sort, said in ((name, up), (f"-{name}", down))
    ]


def there(name: str, result: asking.Result) -> bool:
    """Whether any sample has what would be sorted by."""
    match name:
        case "tokens":
            return bool(result.frame().in_tokens)
        case "adv":
            return bool(result.frame().advantages)
        case "source":
            return len(result.figures().sources) > 1
        case _:
            return True
