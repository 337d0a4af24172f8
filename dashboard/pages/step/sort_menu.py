"""The sort menu: by what the table can be ordered, both ways, in words."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import StepUrlState
from dashboard.pages.step import query_result
from rollouts.models import Step

# Name in the address, what it is called, what comes first, what comes first when turned round.
ORDERS = (
    ("score", N_("score"), N_("lowest first"), N_("highest first")),
    ("len", N_("length"), N_("shortest first"), N_("longest first")),
    ("tokens", N_("tokens"), N_("fewest first"), N_("most first")),
    ("adv", N_("advantage"), N_("lowest first"), N_("highest first")),
    ("group", N_("group"), N_("first to last"), N_("last to first")),
    ("n", N_("index in the group"), N_("first to last"), N_("last to first")),
    ("source", N_("source"), N_("A to Z"), N_("Z to A")),
    ("step", N_("step"), N_("oldest first"), N_("newest first")),
)


@dataclass(frozen=True, slots=True)
class SortOption:
    """One entry of the menu."""

    name: str
    said: str
    link: str
    on: bool


def build_sort_menu(ask: StepUrlState, row: Step | None, result: query_result.StepQueryResult) -> list[SortOption]:
    """Those that this place has data for."""
    now, usual = query_result.choose_order(ask, row), query_result.choose_default_order(row)
    known = [one for one in ORDERS if (one[0] != "step" or row is None) and has_sort_values(one[0], result)]
    return [
        SortOption(_(called), _(said), ask.sort_link(sort, usual) or "?", sort == now)
        for name, called, up, down in known
        for sort, said in ((name, up), (f"-{name}", down))
    ]


def has_sort_values(name: str, result: query_result.StepQueryResult) -> bool:
    """Whether any sample has what would be sorted by."""
    match name:
        case "tokens":
            return bool(result.place.axes().in_tokens)
        case "adv":
            return bool(result.place.axes().advantages)
        case "source":
            return len(result.figures().sources) > 1
        case _:
            return True
