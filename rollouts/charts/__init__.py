"""Charts of a run's overview that need more than its metrics: a project's arrangement, queries over steps.

Depends on: metrics, query and samples.
Invariant: a project's arrangement changes nothing but the order, size and place of charts.
"""

from rollouts.charts.arrangement import Arrangement, load_arrangement, save_arrangement
from rollouts.charts.query_curves import MEASURES, ChartQuery, QueryCurveResult, load_query_curve

__all__ = [
    "Arrangement", "ChartQuery", "MEASURES", "QueryCurveResult", "load_arrangement", "load_query_curve",
    "save_arrangement",
]  # fmt: skip
