"""The step page: rows, counts, histograms and scatter plot of a query. Start in `views.py`, then `query_result.py`.

Depends on: `dashboard.pages.common`, the pages `pins` and `sample`; query, metrics, review and samples.
Invariant: the page only reads. Rows, counts and charts are of the same query.
"""

from dashboard.pages.step.histograms import REWARD_BINS
from dashboard.pages.step.query_result import StepQueryResult, load_query_result, search_step
from dashboard.pages.step.views import find_requested_step

__all__ = ["REWARD_BINS", "StepQueryResult", "find_requested_step", "load_query_result", "search_step"]
