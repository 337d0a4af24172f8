"""The step page: one query gives rows, counts, histograms and the scatter plot."""

from dashboard.pages.step.histograms import REWARD_BINS
from dashboard.pages.step.query_result import StepQueryResult, load_query_result, search_step
from dashboard.pages.step.views import find_requested_step

__all__ = ["REWARD_BINS", "StepQueryResult", "find_requested_step", "load_query_result", "search_step"]
