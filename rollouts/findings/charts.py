"""Snapshots of charts: metrics and queries over steps, of runs and of groups of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.utils.translation import gettext as _

from rollouts.charts import ChartQuery, load_query_curve
from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.findings.snapshots import serialize_run
from rollouts.metrics import Curve, load_curves, select_readable_metrics
from rollouts.models import Queue, Run
from rollouts.runs import RunGroup, average_curves, compute_group_curves

MAX_CURVES: Final = 64
MAX_POINTS: Final = 500
QUERY_PREFIX: Final = "query:"  # of the name of a chart that counts a query
COUNTING_SECONDS: Final = 4.0  # of one run; what is counted is stored, so a second try goes on
COLOURS: Final = 8


def snapshot_charts(
    runs: Sequence[Run],
    names: Sequence[str],
    attempt: str = "current",
    *,
    groups: Sequence[RunGroup] = (),
    reader: int | None = None,
    **view: Any,
) -> dict[str, Any]:
    """Returns the points of metrics and of charts of queries (`query:measure|split|among|q`), downsampled. A group is
    one curve, the mean of its runs, with `low` and `high`. `view` says how the chart is drawn: `log` and `zoom`, a
    range of steps. `reader` is the user who asks, who may not see labels and re-scores. Raises InvalidInputError,
    NotFoundError if no run has any of them."""
    charts = list(dict.fromkeys(names))
    if reader is not None:
        charts = select_readable_metrics(charts, Queue.objects.blind_for(reader))
        check_queries(charts, runs, reader)
    count = len(charts) * (len(runs) + len(groups))
    if not charts or count > MAX_CURVES:
        message = _("A chart can have 1 to {limit} curves, not {count}.")
        raise InvalidInputError(message.format(limit=MAX_CURVES, count=count), "names")
    curves = [
        {"run": source, "name": name, **curve}
        for source, by_name in load_sources(runs, groups, charts, attempt)
        for name in charts
        for curve in by_name.get(name, [])
        if curve["steps"]
    ]
    if not curves:
        message = _("{run} has no metric called {name}.")
        source = runs[0].name if runs else groups[0].name
        raise NotFoundError(message.format(run=source, name=charts[0][:80]), "names")
    sources = [serialize_run(run) for run in runs] + [describe_group(group) for group in groups]
    return {
        "names": charts,
        "runs": sources,
        "curves": curves,
        **{name: value for name, value in view.items() if value},
    }


def check_queries(charts: Sequence[str], runs: Sequence[Run], reader: int) -> None:
    """Raises InvalidInputError for a chart of what the user may not see while a blind queue is open."""
    for name in charts:
        if name.startswith(QUERY_PREFIX):
            query = ChartQuery.parse(name.removeprefix(QUERY_PREFIX))
            for run in runs:
                query.check_reader(reader, run)


def load_sources(
    runs: Sequence[Run], groups: Sequence[RunGroup], charts: Sequence[str], attempt: str
) -> list[tuple[dict[str, Any], dict[str, list[Any]]]]:
    """[(run or group with its colour, {name: curves})]"""
    metrics = [name for name in charts if not name.startswith(QUERY_PREFIX)]
    queries = {name: ChartQuery.parse(name.removeprefix(QUERY_PREFIX)) for name in charts if name not in metrics}
    loaded: dict[str, dict[str, list[Curve]]] = (
        load_curves(list(runs), metrics, max_points=MAX_POINTS, attempt=attempt) if metrics else {}
    )
    sources: list[tuple[dict[str, Any], dict[str, list[Any]]]] = []
    for run in runs:
        counted: dict[str, list[Any]] = {name: [count_query(run, query)] for name, query in queries.items()}
        sources.append(({**serialize_run(run), "colour": run.colour}, {**loaded.get(run.uid, {}), **counted}))
    used = {run.colour for run in runs}
    for group in groups:
        colour = next((colour for colour in range(1, COLOURS + 1) if colour not in used), COLOURS)
        used.add(colour)
        means: dict[str, list[dict[str, Any]]] = compute_group_curves(group.runs, metrics, MAX_POINTS)
        for name, query in queries.items():
            counted_runs = [count_query(run, query, max_points=0) for run in group.runs]
            known = [curve for curve in counted_runs if curve["steps"]]
            means[name] = [average_curves(known[0]["step_kind"], known, MAX_POINTS)] if known else []
        sources.append(({**describe_group(group), "colour": colour}, means))
    return sources


def count_query(run: Run, query: ChartQuery, max_points: int = MAX_POINTS) -> Curve:
    """Raises InvalidInputError while the steps are not counted."""
    result = load_query_curve(run, query, seconds=COUNTING_SECONDS, max_points=max_points)
    if not result.complete:
        message = _("The steps of {run} are still counted ({done} of {total}). Try again in a moment.")
        raise InvalidInputError(message.format(run=run.name, done=result.done, total=result.total), "names")
    return Curve(attempt="", number=0, step_kind=result.step_kind, steps=result.steps, values=result.values)


def describe_group(group: RunGroup) -> dict[str, str]:
    name = _("{name}, mean of {count}").format(name=group.name, count=len(group.runs))
    return {"uid": group.key, "name": name}
