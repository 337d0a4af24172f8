"""The mean scores over steps of the runs that the list shows, on one scale."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from statistics import fmean

from dashboard.pages.common import build_scaled_points
from dashboard.pages.runs.columns import RunRow
from dashboard.pages.runs.groups import RunRowGroup
from rollouts.lib import CacheSize, NewestCache
from rollouts.metrics import load_sparklines
from rollouts.models import Run
from rollouts.runs import RunId, map_versions

MAX_GROUP_RUNS = 400  # in all groups of a page; of a larger group the first runs
cache: NewestCache[RunId, list[float]] = NewestCache(CacheSize.SPARKLINES)


def load_run_scores(runs: Sequence[Run]) -> dict[int, list[float]]:
    """By run id. Only runs that changed are queried, all in two queries."""
    ids = {(run.pk, run.created_at): run for run in runs}

    def load(missing: Sequence[RunId]) -> Mapping[RunId, list[float]]:
        changed = {run: ids[run] for run in missing}
        scores = load_sparklines(list(changed.values()))
        return {key: scores[run.uid] for key, run in changed.items()}

    return {pk: scores for (pk, _), scores in cache.load_many(map_versions(runs), load).items()}


def add_sparklines(lines: Sequence[RunRowGroup | RunRow]) -> list[RunRowGroup | RunRow]:
    """Returns the lines with the points of their sparklines: of a group, the mean of its runs. Groups are changed in
    place."""
    groups = [line for line in lines if isinstance(line, RunRowGroup)]
    share = max(1, MAX_GROUP_RUNS // max(1, len(groups)))
    members = {group.key: group.rows[:share] for group in groups}
    rows = [line for line in lines if isinstance(line, RunRow)]
    runs = {row.run.pk: row.run for row in [*rows, *(row for own in members.values() for row in own)]}
    scores = load_run_scores(list(runs.values()))
    curves = [
        average_curves([scores[row.run.pk] for row in members[line.key]]) if isinstance(line, RunRowGroup)
        else scores[line.run.pk]
        for line in lines
    ]  # fmt: skip
    values = [value for curve in curves for value in curve]
    low, high = min(0.0, *values) if values else 0.0, max(values, default=0.0)
    shown: list[RunRowGroup | RunRow] = []
    for line, curve in zip(lines, curves, strict=True):
        points = build_scaled_points(curve, low, max(high, 0.0))
        if isinstance(line, RunRowGroup):
            line.points = points
            shown.append(line)
        else:
            shown.append(replace(line, points=points))
    return shown


def average_curves(curves: Sequence[list[float]]) -> list[float]:
    """The mean of the curves that still go on."""
    return [fmean([value for value in values if value is not None]) for values in zip_longest(*curves)]
