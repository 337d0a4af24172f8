"""Charts of a run's overview that need more than its metrics: a project's arrangement, queries over steps, run groups.

Depends on: metrics, query and samples.
Invariant: a project's arrangement changes nothing but the order, size and place of charts.
"""

from rollouts.charts.arrangement import Arrangement, load_arrangement, save_arrangement
from rollouts.charts.query_curves import MEASURES, ChartQuery, QueryCurveResult, load_query_curve
from rollouts.charts.run_groups import (
    MAX_GROUP_RUNS,
    RunGroup,
    average_curves,
    compute_group_curves,
    find_run_group,
    list_group_names,
)

__all__ = [
    "Arrangement", "ChartQuery", "MAX_GROUP_RUNS", "MEASURES", "QueryCurveResult", "RunGroup", "average_curves",
    "compute_group_curves", "find_run_group", "list_group_names", "load_arrangement", "load_query_curve",
    "save_arrangement",
]  # fmt: skip
