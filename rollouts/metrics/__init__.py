"""Metrics of runs: stores points as rows, compacts them into blocks, and returns curves and chart layouts.

Depends on: the models, and the points that samples defines.
Invariant: the order is attempt, step, arrival, never a client's clock. A NaN is stored as null and not dropped.
"""

from rollouts.metrics.blocks import MIN_ROWS_TO_COMPACT, compact_metric_rows
from rollouts.metrics.chart_layout import ChartLayout, arrange_charts
from rollouts.metrics.downsample import downsample_points
from rollouts.metrics.guided_steps import find_step_guidance, parse_step_guidance
from rollouts.metrics.sample_curves import RESCORE_METRICS, load_sparklines, select_readable_metrics, sum_properties
from rollouts.metrics.series import (
    Curve,
    add_time_axis,
    append_points,
    find_generated_count,
    list_metric_names,
    list_recent_metric_names,
    load_curves,
    load_last_values,
)
from rollouts.metrics.step_times import StepTimes, TimeBin, bin_step_times, load_step_times
from rollouts.metrics.template_shares import load_template_shares

__all__ = [
    "ChartLayout", "Curve", "MIN_ROWS_TO_COMPACT", "RESCORE_METRICS", "StepTimes", "TimeBin", "add_time_axis",
    "append_points", "arrange_charts", "bin_step_times", "compact_metric_rows", "downsample_points",
    "find_generated_count", "find_step_guidance", "list_metric_names", "list_recent_metric_names", "load_curves",
    "load_last_values", "load_sparklines", "load_step_times", "load_template_shares", "parse_step_guidance",
    "select_readable_metrics", "sum_properties",
]  # fmt: skip
