"""A number with its 95 % interval, or the reason why it is not defined."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

MIN_INTERVAL_ITEMS = 20  # with fewer items there is a value, but no interval
MIN_LABELLED = 20  # with fewer labelled samples there are only counts


class Reason(StrEnum):
    """Why an estimate has no value, or a value without an interval. The values are part of the API."""

    NO_PAIRS = "no-pairs"
    ONE_ITEM = "one-item"
    ONE_VALUE = "one-value"
    UNEQUAL_ANSWERS = "unequal-answers"
    NOT_NOMINAL = "not-nominal"
    FREE_TEXT = "free-text"
    NO_MARKS = "no-marks"
    ALL_EQUAL = "all-equal"
    NO_ANSWERS = "no-answers"
    FEW_ITEMS = "few-items"
    RARE_VALUES = "rare-values"
    FEW_SAMPLES = "few-samples"


TEXTS = {
    Reason.NO_PAIRS: N_("Not defined: no item has answers of two people."),
    Reason.ONE_ITEM: N_("Not defined: only one item has answers of two people."),
    Reason.ONE_VALUE: N_("Not defined: all answers are the same, so chance alone would agree too."),
    Reason.UNEQUAL_ANSWERS: N_("Not defined: items have different numbers of answers. Use Krippendorff's alpha."),
    Reason.NOT_NOMINAL: N_("Not defined: it is for questions with one choice. Use Krippendorff's alpha."),
    Reason.FREE_TEXT: N_("Not defined: free text has no agreement."),
    Reason.NO_MARKS: N_("Not defined: nobody marked a range in an item of two people."),
    Reason.ALL_EQUAL: N_("Not defined: someone finds all responses equal."),
    Reason.NO_ANSWERS: N_("Not defined: no gold item was answered."),
    Reason.FEW_ITEMS: N_("No interval: fewer than 20 items have answers of two people."),
    Reason.RARE_VALUES: N_("No interval: nearly all answers are the same, so it would say nothing."),
    Reason.FEW_SAMPLES: N_("Counts only: fewer than 20 labelled samples."),
}


@dataclass(frozen=True, slots=True)
class Estimate:
    """`value` is None if it is not defined, `low` and `high` are None if there is no interval; `reason` says why.
    `size` is the number of items or labelled samples behind it. No field is ever NaN."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    size: int = 0
    reason: Reason | None = None

    @property
    def has_interval(self) -> bool:
        return self.low is not None and self.high is not None

    @property
    def explanation(self) -> str:
        """The reason as a sentence in the user's language; empty without one."""
        return _(TEXTS[self.reason]) if self.reason else ""
