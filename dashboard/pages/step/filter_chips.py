"""The chips of a step: properties of its samples that the query can ask for, and how many it would leave."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import StepUrlState
from dashboard.pages.step import query_result
from rollouts.models import Step
from rollouts.samples import PROPERTY_CATALOG

OTHERS = (
    ("score<=0", N_("Score ≤ 0"), N_("score of 0 or below")),
    ("is:flagged", N_("Flagged"), N_("flagged by a user")),
)
OWN = ("is:unseen", N_("Not viewed"), N_("not viewed by you"))
CHIP_TERMS = (OTHERS[0], *((one.term, one.title, one.about) for one in PROPERTY_CATALOG), OTHERS[1], OWN)


@dataclass(frozen=True, slots=True)
class FilterChip:
    name: str
    about: str
    count: int
    on: bool
    link: str


def build_result_chips(ask: StepUrlState, row: Step | None, result: query_result.StepQueryResult) -> list[FilterChip]:
    """Returns the chips of a query result, with how many of its samples each would leave."""
    counts = (
        collect_recorded_counts(row, result.figures().zero_or_less) if row and not result.narrowed else result.facets()
    )
    return build_filter_chips(ask, {**counts, "is:unseen": count_not_viewed(result)})


def count_not_viewed(result: query_result.StepQueryResult) -> int:
    """How many of what was found the person has not looked at; 0 while they have looked at none, and nothing is new."""
    if not result.marked:
        return 0
    looked = result.found.samples.order_by().filter(result.found.build_term_condition("is:seen")).count()
    return result.total - looked if looked else 0


def build_filter_chips(ask: StepUrlState, counts: dict[str, int]) -> list[FilterChip]:
    """Those that leave something, and those that are on."""
    return [
        FilterChip(_(name), _(about), counts.get(term, 0), ask.has_term(term), ask.toggle_link(term) or "?")
        for term, name, about in CHIP_TERMS
        if ask.has_term(term) or (counts.get(term) and not is_duplicate_chip(term, counts))
    ]


def is_duplicate_chip(term: str, counts: dict[str, int]) -> bool:
    """Truncation is offered once where all of it was recorded, or all inferred."""
    inferred, all_of_it = counts.get("is:trunc?", 0), counts.get("is:truncated", 0)
    return term == "is:truncated" and inferred == all_of_it


def collect_recorded_counts(row: Step, zero_or_less: int) -> dict[str, int]:
    """Counts that the step's row already holds."""
    facets = {name: int(count) for name, count in row.facets.items()}
    own = {
        "truncated": (row.truncated or 0) + facets.get("trunc?", 0),
        "zerovar": row.zero_variance_groups,
    }
    counts = {one.term: own.get(one.name, facets.get(one.name, 0)) for one in PROPERTY_CATALOG}
    return {**counts, "score<=0": zero_or_less, "is:flagged": row.flags}
