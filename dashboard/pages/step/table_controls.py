"""The controls over the table of a step: filter chips with counts, and the sort menu."""

from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import StepUrlState
from dashboard.pages.step.query_result import StepQueryResult
from rollouts.models import StepTotals
from rollouts.samples import PROPERTY_CATALOG

CHIP_TERMS = (
    ("score<=0", N_("Score ≤ 0"), N_("score of 0 or below")),
    *((entry.term, entry.title, entry.about) for entry in PROPERTY_CATALOG),
    ("is:flagged", N_("Flagged"), N_("flagged by a user")),
    ("is:unseen", N_("Not viewed"), N_("not viewed by you")),
)
# Value of `sort`, label, label of the ascending order, label of the descending order.
ORDERS = (
    ("score", N_("score"), N_("lowest first"), N_("highest first")),
    ("len", N_("length"), N_("shortest first"), N_("longest first")),
    ("tokens", N_("tokens"), N_("fewest first"), N_("most first")),
    ("adv", N_("advantage"), N_("lowest first"), N_("highest first")),
    ("staleness", N_("staleness"), N_("newest policy first"), N_("oldest policy first")),
    ("duration", N_("time"), N_("fastest first"), N_("slowest first")),
    ("group", N_("group"), N_("first to last"), N_("last to first")),
    ("n", N_("index in the group"), N_("first to last"), N_("last to first")),
    ("source", N_("source"), N_("A to Z"), N_("Z to A")),
    ("step", N_("step"), N_("oldest first"), N_("newest first")),
)


@dataclass(frozen=True, slots=True)
class FilterChip:
    name: str
    description: str
    count: int
    on: bool
    link: str


@dataclass(frozen=True, slots=True)
class SortOption:
    name: str
    order: str
    link: str
    on: bool


def build_result_chips(result: StepQueryResult) -> list[FilterChip]:
    """The chips, each with how many samples of the result it would leave."""
    if result.totals and not result.filtered:
        counts = collect_recorded_counts(result.totals, result.statistics().zero_or_less)
    else:
        counts = result.property_counts()
    return build_filter_chips(result.url_state, {**counts, "is:unseen": count_not_viewed(result)})


def count_not_viewed(result: StepQueryResult) -> int:
    """How many samples of the result the user has not viewed; 0 if the user has viewed none of them."""
    if not result.has_viewed:
        return 0
    viewed = result.matches.samples.order_by().filter(result.matches.build_term_condition("is:seen")).count()
    return result.total - viewed if viewed else 0


def build_filter_chips(url_state: StepUrlState, counts: dict[str, int]) -> list[FilterChip]:
    """The chips that leave samples, and those that are on."""
    return [
        FilterChip(
            _(name), _(description), counts.get(term, 0), url_state.has_term(term), url_state.toggle_link(term) or "?"
        )
        for term, name, description in CHIP_TERMS
        if url_state.has_term(term) or (counts.get(term) and not is_duplicate_chip(term, counts))
    ]


def is_duplicate_chip(term: str, counts: dict[str, int]) -> bool:
    """Truncation has one chip if all of it was recorded, or all inferred."""
    return term == "is:truncated" and counts.get("is:trunc?", 0) == counts.get("is:truncated", 0)


def collect_recorded_counts(totals: StepTotals, zero_or_less: int) -> dict[str, int]:
    """The counts that are stored with the step."""
    facets = totals.facets
    columns = {"truncated": (totals.truncated or 0) + facets["trunc?"], "zerovar": totals.zero_variance_groups}
    counts = {entry.term: columns.get(entry.name, facets[entry.name]) for entry in PROPERTY_CATALOG}
    return {**counts, "score<=0": zero_or_less, "is:flagged": totals.flags}


def build_sort_menu(result: StepQueryResult) -> list[SortOption]:
    """The options that the samples have values for."""
    return [
        SortOption(
            _(name), _(order), result.url_state.sort_link(sort, result.default_order) or "?", sort == result.order
        )
        for column, name, ascending, descending in ORDERS
        if has_sort_values(column, result)
        for sort, order in ((column, ascending), (f"-{column}", descending))
    ]


def has_sort_values(column: str, result: StepQueryResult) -> bool:
    match column:
        case "tokens":
            return bool(result.scope.axes().in_tokens)
        case "adv":
            return bool(result.scope.axes().advantages)
        case "staleness":
            return bool(result.scope.axes().staleness)
        case "duration":
            return bool(result.scope.axes().durations)
        case "source":
            return len(result.statistics().sources) > 1
        case "step":
            return result.row is None
        case _:
            return True
