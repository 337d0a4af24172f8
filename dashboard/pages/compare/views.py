"""Steps of runs side by side: who solves which prompt, figures per data source, and what the runs were told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import clean_param, parse_row_offset, render_page_or_panel, role_allows
from dashboard.pages.compare import prompt_detail, table
from rolloutdeck.protocol import SPLITS
from rollouts.compare import (
    TARGET_LETTERS,
    Comparison,
    ComparisonRow,
    ComparisonTarget,
    compare_steps,
    find_config_differences,
    load_comparison_targets,
)
from rollouts.errors import InvalidInputError
from rollouts.models import Run, Step

PANELS = {"compare": "compare/result.html"}
MAX_OFFERED_RUNS = 60
MAX_PARTNERS = 8
ROWS = 50
NAMES = ("of", "split", "only", "start", "sel", "nth", "diff")


@dataclass(frozen=True, slots=True)
class CompareUrlState:
    """The address: `of=run@step,…`, `split`, which prompts to list, which of them is open (`sel`), at which of its
    responses (`nth`), and whether as a `diff`."""

    of: str
    split: str
    only: str
    start: int
    sel: str = ""
    nth: int = 0
    diff: bool = False

    @classmethod
    def by(cls, request: HttpRequest) -> CompareUrlState:
        told = {name: clean_param(request.GET.get(name, "")) for name in NAMES}
        split = told["split"] if told["split"] in SPLITS else ""
        start, nth = parse_row_offset(told["start"]), parse_row_offset(told["nth"])
        return cls(told["of"], split, told["only"], start, told["sel"], nth, told["diff"] == "1")

    def link(self, **changes: str | int) -> str:
        """This address with changes; another list of prompts has none open."""
        state: dict[str, str | int] = {"of": self.of, "split": self.split, "only": self.only, **changes}
        pairs = [f"{name}={quote(str(value), safe='@,')}" for name, value in state.items() if value]
        return "?" + "&".join(pairs)


@login_required
@require_safe
def compare_page(request: HttpRequest) -> HttpResponseBase:
    """`?of=run@step,run@step&split=&only=`; `run=` and `step=`, as the picker sends them, become `of`."""
    asked = CompareUrlState.by(request)
    if "run" in request.GET:
        return redirect(reverse("compare") + CompareUrlState(parse_picker(request), asked.split, "", 0).link())
    runs = permissions.visible_runs(request)
    found: list[ComparisonTarget] = []
    said = ""
    try:
        found = load_comparison_targets(runs, asked.of, asked.split)
        result = compare_steps(found) if len(found) > 1 else None
    except InvalidInputError as problem:
        said, result = str(problem), None
    state = [(cell.run.version, cell.run.project.correct, cell.step.pk) for cell in found]
    writable = writable_by(request, found) if asked.sel else set()
    keep = (state, said, sorted(writable)) if result else ()

    def context(panel: str) -> dict[str, Any]:
        frame = {
            "asked": asked,
            "cells": found,
            "said": said,
            "writable": writable,
            **build_picker_context(request, found, asked),
        }
        return frame | (build_comparison_context(asked, found, result) if result else {})

    return render_page_or_panel(request, "compare/page.html", PANELS, context, *keep)


def writable_by(request: HttpRequest, found: Sequence[ComparisonTarget]) -> set[int]:
    """The projects, by id, whose findings the person may add an open answer to."""
    projects = {cell.run.project_id: cell.run.project for cell in found}
    return {pk for pk, one in projects.items() if role_allows(one.role_of(request.user), "annotator")}


def parse_picker(request: HttpRequest) -> str:
    """What the picker's fields name, as `of`."""
    runs, steps = request.GET.getlist("run"), request.GET.getlist("step")
    pairs = zip(runs, [*steps, *[""] * len(runs)], strict=False)
    return ",".join(f"{clean_param(run)}@{clean_param(step).strip() or 'latest'}" for run, step in pairs if run.strip())


def build_picker_context(
    request: HttpRequest, found: Sequence[ComparisonTarget], asked: CompareUrlState
) -> dict[str, Any]:
    """Fields for the cells that there are, two at least, and one more."""
    runs = list(permissions.visible_runs(request).select_related("project").order_by("-seen_at")[:MAX_OFFERED_RUNS])
    runs += [run for run in dict.fromkeys(cell.run for cell in found) if run not in runs]
    fields: list[tuple[str, Run | None, str]] = [(cell.letter, cell.run, cell.requested_step) for cell in found]
    if len(fields) == 1:
        fields.append(("B", choose_partner_run(found[0].run, runs), ""))
    elif not fields and asked.of:
        fields = build_unresolved_fields(runs, asked.of)
    elif not fields:
        newest = runs[0] if runs else None
        fields = [("A", newest, ""), ("B", newest and choose_partner_run(newest, runs), "")]
    elif len(fields) < len(TARGET_LETTERS):
        fields.append((TARGET_LETTERS[len(fields)], None, ""))
    several = len({run.project_id for run in runs}) > 1
    return {"runs": runs, "fields": fields, "several": several, "partners": partners(found, runs, asked)}


def choose_partner_run(one: Run, runs: Sequence[Run]) -> Run:
    """What a run is most likely compared with: the newest other one of its project, else of all."""
    others = [run for run in runs if run != one]
    return next((run for run in others if run.project_id == one.project_id), others[0] if others else one)


def partners(
    found: Sequence[ComparisonTarget], runs: Sequence[Run], asked: CompareUrlState
) -> list[tuple[str, str, str]]:
    """(run, step, link) of what one step is mostly compared with: the latest steps of the project's newest runs that
    have its split, and the first step of its own run."""
    if len(found) != 1:
        return []
    [cell] = found
    here, split = f"{cell.run.uid}@{cell.requested_step}", cell.step.split
    steps = Step.objects.filter(split=split, superseded=False)
    others = [run for run in runs if run.project_id == cell.run.project_id and run != cell.run]
    having = set(steps.filter(run__in=others).values_list("run_id", flat=True).distinct())
    words = [(run, "latest") for run in others if run.pk in having][:MAX_PARTNERS]
    first = steps.filter(run=cell.run).order_by("step").values_list("step", flat=True).first()
    if first is not None and first != cell.step.step:
        words.insert(0, (cell.run, str(first)))
    return [(run.name, step, asked.link(of=f"{here},{run.uid}@{step}", split=split)) for run, step in words]


def build_unresolved_fields(runs: Sequence[Run], of: str) -> list[tuple[str, Run | None, str]]:
    """Fields that keep what was asked for, as far as it can be chosen."""
    words = [word.strip().rpartition("@") for word in of.split(",")][: len(TARGET_LETTERS)]
    words += [("", "", "")] * (2 - len(words))
    known = {name: run for run in runs for name in (run.name, run.uid)}
    return [
        (letter, known.get(run or step), step if run else "")
        for letter, (run, _, step) in zip(TARGET_LETTERS, words, strict=False)
    ]


def build_comparison_context(
    asked: CompareUrlState, found: Sequence[ComparisonTarget], result: Comparison
) -> dict[str, Any]:
    known = {**result.outcomes, "unjudged": 1, "unpaired": 1}
    only = asked.only if asked.only in known else ""
    rows = result.list_rows(only)
    open_at = prompt_detail.find_row_position(rows, asked.sel)
    projects = {cell.run.project.slug: cell.run.project for cell in found}
    split = found[0].step.split
    return {
        "result": result,
        "only": only,
        "split": split,
        "topics": " ".join(f"run:{uid}" for uid in dict.fromkeys(cell.run.uid for cell in found)),
        "chips": table.build_outcome_chips(result, found, only, asked.link),
        "splits": [(one, asked.link(split=one, only=""), one == split) for one in SPLITS],
        "measures": table.find_measures(result),
        "votes": any(one.value is not None for one in result.sources[0].statistics["maj@n"]),
        "lines": table.build_statistics_rows(result),
        **build_rows_context(asked, only, rows, asked.start if open_at is None else open_at // ROWS * ROWS, found),
        "settings": settings(found),
        "badges": table.build_letter_classes(found),
        "now": ",".join(f"{cell.run.uid}@{cell.step.step}" for cell in found),
        "row_link": asked.link(only=only, diff="1" if asked.diff else "") + "&sel=",
        "one_run": len({cell.run.pk for cell in found}) == 1,
        "rules": table.render_correctness_rules({project.correct for project in projects.values()}),
        "unpaired_link": asked.link(only="unpaired", start=0),
        "all_link": asked.link(only="", start=0),
        "left": [(cell, len(left)) for cell, left in zip(found, result.unpaired_prompts, strict=True)],
        **(build_open_prompt_context(asked, only, rows, open_at, found) if open_at is not None else {}),
    }


def build_rows_context(
    asked: CompareUrlState,
    only: str,
    rows: Sequence[ComparisonRow],
    start: int,
    found: Sequence[ComparisonTarget],
) -> dict[str, Any]:
    """One page of prompts, from the row `start`, with links to the pages before and after it."""
    end = start + ROWS
    return {
        "rows": table.build_prompt_rows(rows[start:end], found),
        "count": len(rows),
        "first": start + 1,
        "last": min(end, len(rows)),
        "before": asked.link(only=only, start=max(0, start - ROWS)) if start else "",
        "after": asked.link(only=only, start=end) if end < len(rows) else "",
    }


def build_open_prompt_context(
    asked: CompareUrlState,
    only: str,
    rows: Sequence[ComparisonRow],
    at: int,
    found: Sequence[ComparisonTarget],
) -> dict[str, Any]:
    """The open prompt; its links keep which list it is of, and whether it is shown as a diff."""
    diff = "1" if asked.diff else ""
    shown = prompt_detail.build_prompt_detail(rows, at, asked.nth, found, partial(asked.link, only=only, diff=diff))
    turned = asked.link(only=only, sel=shown.key, nth=asked.nth, diff="" if diff else "1")
    return {
        "opened": shown,
        "diff": asked.diff,
        "diff_link": turned,
        "closed": asked.link(only=only, start=at // ROWS * ROWS),
    }


def settings(found: Sequence[ComparisonTarget]) -> list[tuple[str, list[tuple[str, bool]]]]:
    """[(key, [(value in each cell, whether it is another than the first's)])]."""
    return [(key, [(one, one != values[0]) for one in values]) for key, values in find_config_differences(found)]
