"""The saved views of the run list as chips, with the number of runs that each one shows."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import QueryDict

from dashboard.pages.runs.url_state import RunsUrlState
from dashboard.pages.saved_views import build_view_url
from rollouts.models import SavedView
from rollouts.runs import RunResult, count_matches

MAX_CHIPS = 12


@dataclass(frozen=True, slots=True)
class ViewChip:
    """`count` is None where the list on this page does not have the runs of the view."""

    name: str
    link: str
    count: int | None
    is_current: bool


def build_view_chips(views: Sequence[SavedView], result: RunResult, url_state: RunsUrlState) -> list[ViewChip]:
    chips: list[ViewChip] = []
    for view in views[:MAX_CHIPS]:
        state = RunsUrlState.from_query(QueryDict(view.params))
        is_counted = state.show == url_state.show == "" and url_state.project in ("", state.project)
        runs = [run for run in result.table.runs if state.project in ("", run.project.slug)]
        count = count_matches(result.table, runs, state.q) if is_counted else None
        is_current = state.link(start=0) == url_state.link(start=0, open=(), shut=())
        chips.append(ViewChip(view.name, build_view_url(view, None), count, is_current))
    return chips
