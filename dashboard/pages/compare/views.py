"""The comparison of steps: outcomes of prompts, statistics by data source, differences of the configs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from django.contrib.auth.decorators import login_required
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponseBase, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import (
    clean_param,
    load_blind_queues,
    parse_row_offset,
    render_page_or_panel,
)
from dashboard.pages.compare import prompt_detail, table, unpaired
from rolloutdeck.protocol import SPLITS
from rollouts.compare import (
    TARGET_LETTERS,
    Comparison,
    ComparisonRow,
    ComparisonTarget,
    UnpairedComparison,
    build_empty_comparison,
    compare_all_samples,
    compare_steps,
    find_config_differences,
    load_comparison_targets,
)
from rollouts.errors import InvalidInputError, TooLargeError
from rollouts.models import BlindQueues, Run, Step

PANELS = {"compare": "compare/result.html"}
MAX_OFFERED_RUNS = 60
MAX_PARTNERS = 8
ROWS = 50

PickerField = tuple[str, Run | None, str]  # letter, run, step


@dataclass(frozen=True, slots=True)
class CompareUrlState:
    """`of=run@step,…`, `split`, the outcome to list (`only`) from row `start`, the open prompt (`sel`), its response
    (`nth`), and whether it is shown as a `diff`. `view` (`as=`) is paired, all or mix; `by` the parts of the score's
    charts; `table` shows the charts as tables."""

    of: str
    split: str = ""
    only: str = ""
    start: int = 0
    sel: str = ""
    nth: int = 0
    diff: bool = False
    view: str = ""
    by: str = ""
    table: bool = False

    @classmethod
    def from_params(cls, params: QueryDict) -> CompareUrlState:
        names = ("of", "split", "only", "start", "sel", "nth", "diff", "as", "by", "table")
        of, split, only, start, sel, nth, diff, view, by, table_ = (clean_param(params.get(name, "")) for name in names)
        split = split if split in SPLITS else ""
        view = view if view in unpaired.VIEWS else ""
        by = by if by in unpaired.BREAKDOWNS else ""
        rows = parse_row_offset(start), sel, parse_row_offset(nth)
        return cls(of, split, only, *rows, diff == "1", view, by, table_ == "1")

    def link(self, **changes: str | int) -> str:
        """This URL with changes and without an open prompt."""
        shown = {"as": self.view, "by": self.by, "table": "1" if self.table else ""}
        state: dict[str, str | int] = {"of": self.of, "split": self.split, "only": self.only, **shown, **changes}
        pairs = [f"{name}={quote(str(value), safe='@,')}" for name, value in state.items() if value]
        return "?" + "&".join(pairs)


@login_required
@require_safe
def compare_page(request: HttpRequest) -> HttpResponseBase:
    """The picker sends `run=` and `step=` for each target; they are redirected to `of=run@step,run@step`."""
    state = CompareUrlState.from_params(request.GET)
    if "run" in request.GET:
        return redirect(reverse("compare") + CompareUrlState(parse_picker(request), state.split).link())
    targets: list[ComparisonTarget] = []
    error, too_large, result, all_samples = "", "", None, None
    try:
        targets = load_comparison_targets(permissions.visible_runs(request), state.of, state.split)
        if len(targets) > 1:
            all_samples = compare_all_samples(targets)
            result, too_large = find_pairs(targets)
    except InvalidInputError as problem:
        error = str(problem)
    versions = [(target.run.version, target.run.project.correct, target.step.pk) for target in targets]
    writable = find_writable_projects(request, targets) if state.sel else set()
    may_share = can_share(request, targets)
    blind = load_blind_queues(request)
    offered = list(list_offered_runs(request).values_list("pk", "name")) if result else []
    etag_state = (versions, error, sorted(writable), may_share, blind.queues, offered) if result else ()

    def build_context(panel: str) -> dict[str, Any]:
        context = {"url_state": state, "targets": targets, "error": error, "writable": writable}
        context |= build_picker_context(request, targets, state)
        if result is None or all_samples is None:
            return context
        share_query = state.link(only="", table="", split=targets[0].step.split)
        context |= {"too_large": too_large, "may_share": may_share, "share_query": share_query}
        return context | build_result_context(state, targets, result, all_samples, blind)

    return render_page_or_panel(request, "compare/page.html", PANELS, build_context, *etag_state)


def build_result_context(
    state: CompareUrlState,
    targets: Sequence[ComparisonTarget],
    result: Comparison,
    all_samples: UnpairedComparison,
    blind: BlindQueues,
) -> dict[str, Any]:
    left = len(result.list_unpaired_rows())
    view = unpaired.choose_view(state.view, all_samples, len(result.pairs), left)
    context = build_comparison_context(state, targets, result, blind)
    return context | unpaired.build_unpaired_context(all_samples, targets, view, len(result.pairs), left, state)


def build_shareable_context(
    request: HttpRequest, params: QueryDict
) -> tuple[list[ComparisonTarget], dict[str, Any], str]:
    """The targets, the context of their figures, and the query of the page. Raises InvalidInputError and
    NotFoundError."""
    state = CompareUrlState.from_params(params)
    targets = load_comparison_targets(permissions.visible_runs(request), state.of, state.split)
    if len(targets) < 2:
        raise InvalidInputError(_("A comparison needs at least two steps."), "of")
    result, _too_large = find_pairs(targets)
    context = build_result_context(state, targets, result, compare_all_samples(targets), load_blind_queues(request))
    return targets, {"targets": targets, **context}, state.link()


def can_share(request: HttpRequest, targets: Sequence[ComparisonTarget]) -> bool:
    """Owners share; a shared comparison belongs to one project."""
    projects = {target.run.project for target in targets}
    return len(projects) == 1 and permissions.role_allows(projects.pop().role_of(request.user), "owner")


def find_pairs(targets: Sequence[ComparisonTarget]) -> tuple[Comparison, str]:
    """The paired prompts; none, and the reason, if the steps have too many samples."""
    try:
        return compare_steps(targets), ""
    except TooLargeError as error:
        return build_empty_comparison(len(targets)), str(error)


def find_writable_projects(request: HttpRequest, targets: Sequence[ComparisonTarget]) -> set[int]:
    """The ids of the projects to whose findings the user may add an open answer."""
    projects = {target.run.project_id: target.run.project for target in targets}
    return {
        pk for pk, project in projects.items() if permissions.role_allows(project.role_of(request.user), "annotator")
    }


def parse_picker(request: HttpRequest) -> str:
    """The picker's fields as the parameter `of`."""
    runs, steps = request.GET.getlist("run"), request.GET.getlist("step")
    pairs = zip(runs, [*steps, *[""] * len(runs)], strict=False)
    return ",".join(f"{clean_param(run)}@{clean_param(step).strip() or 'latest'}" for run, step in pairs if run.strip())


def list_offered_runs(request: HttpRequest) -> QuerySet[Run]:
    """The newest runs."""
    return permissions.visible_runs(request).select_related("project").order_by("-seen_at")[:MAX_OFFERED_RUNS]


def build_picker_context(
    request: HttpRequest, targets: Sequence[ComparisonTarget], state: CompareUrlState
) -> dict[str, Any]:
    """A field for each target, at least two, and one more."""
    visible = permissions.visible_runs(request).select_related("project").order_by("-seen_at")
    runs = list(list_offered_runs(request))
    runs += [run for run in dict.fromkeys(target.run for target in targets) if run not in runs]
    fields: list[PickerField] = [(target.letter, target.run, target.requested_step) for target in targets]
    if len(fields) == 1:
        fields.append(("B", choose_partner_run(targets[0].run, runs), ""))
    elif not fields and state.of:
        fields = build_unresolved_fields(runs, state.of)
    elif not fields:
        with_samples = list(visible.filter(Exists(Step.objects.filter(run=OuterRef("pk"))))[:MAX_OFFERED_RUNS])
        newest = next(iter([*with_samples, *runs]), None)
        fields = [("A", newest, ""), ("B", newest and choose_partner_run(newest, [*with_samples, *runs]), "")]
    elif len(fields) < len(TARGET_LETTERS):
        fields.append((TARGET_LETTERS[len(fields)], None, ""))
    several_projects = len({run.project_id for run in runs}) > 1
    partners = list_partners(targets[0], runs, state) if len(targets) == 1 else []
    return {"runs": runs, "fields": fields, "several_projects": several_projects, "partners": partners}


def choose_partner_run(run: Run, runs: Sequence[Run]) -> Run:
    """The newest other run of the project, else of all projects."""
    others = [other for other in runs if other != run]
    return next((other for other in others if other.project_id == run.project_id), others[0] if others else run)


def list_partners(target: ComparisonTarget, runs: Sequence[Run], state: CompareUrlState) -> list[tuple[str, str, str]]:
    """[(run, step, link)] of usual partners of one step: the first step of its run, and the latest steps of the same
    split in the project's newest runs."""
    split = target.step.split
    steps = Step.objects.current().filter(split=split)
    others = [run for run in runs if run.project_id == target.run.project_id and run != target.run]
    with_split = set(steps.filter(run__in=others).values_list("run_id", flat=True).distinct())
    partners = [(run, "latest") for run in others if run.pk in with_split][:MAX_PARTNERS]
    first = steps.filter(run=target.run).order_by("step").values_list("step", flat=True).first()
    if first is not None and first != target.step.step:
        partners.insert(0, (target.run, str(first)))
    of = f"{target.run.uid}@{target.requested_step}"
    return [(run.name, step, state.link(of=f"{of},{run.uid}@{step}", split=split)) for run, step in partners]


def build_unresolved_fields(runs: Sequence[Run], of: str) -> list[PickerField]:
    """Fields that keep what was requested, as far as it can be selected."""
    words = [word.strip().rpartition("@") for word in of.split(",")][: len(TARGET_LETTERS)]
    words += [("", "", "")] * (2 - len(words))
    by_name = {name: run for run in runs for name in (run.name, run.uid)}
    return [
        (letter, by_name.get(run or step), step if run else "")
        for letter, (run, _, step) in zip(TARGET_LETTERS, words, strict=False)
    ]


def build_comparison_context(
    state: CompareUrlState, targets: Sequence[ComparisonTarget], result: Comparison, blind: BlindQueues
) -> dict[str, Any]:
    only = state.only if state.only in {*result.outcomes, "unjudged", "unpaired"} else ""
    rows = result.list_rows(only)
    open_at = prompt_detail.find_row_position(rows, state.sel)
    start = state.start if open_at is None else open_at // ROWS * ROWS
    end = start + ROWS
    split = targets[0].step.split
    context = {
        "result": result,
        "split": split,
        "topics": " ".join(f"run:{uid}" for uid in dict.fromkeys(target.run.uid for target in targets)),
        "chips": table.build_outcome_chips(result, targets, only, state.link),
        "splits": [(name, state.link(split=name, only=""), name == split) for name in SPLITS],
        "measures": table.find_measures(result),
        "has_majority": any(mean.value is not None for mean in result.sources[0].statistics.get("maj@n", ())),
        "statistics": table.build_statistics_rows(result),
        "rows": table.build_prompt_rows(rows[start:end], targets),
        "count": len(rows),
        "first": start + 1,
        "last": min(end, len(rows)),
        "before": state.link(only=only, start=max(0, start - ROWS)) if start else "",
        "after": state.link(only=only, start=end) if end < len(rows) else "",
        "config_differences": [
            (key, [(value, value != values[0]) for value in values]) for key, values in find_config_differences(targets)
        ],
        "badges": table.build_letter_classes(targets),
        "resolved": ",".join(f"{target.run.uid}@{target.step.step}" for target in targets),
        "row_link": state.link(only=only, diff="1" if state.diff else "") + "&sel=",
        "one_run": len({target.run.pk for target in targets}) == 1,
        "rules": table.render_correctness_rules({target.run.project.correct for target in targets}),
        "unpaired_link": state.link(only="unpaired", start=0),
        "all_link": state.link(only="", start=0),
        "unpaired": [(target, len(rest)) for target, rest in zip(targets, result.unpaired_prompts, strict=True)],
    }
    if open_at is None:
        return context
    return context | build_open_prompt_context(state, only, rows, open_at, targets, blind)


def build_open_prompt_context(
    state: CompareUrlState,
    only: str,
    rows: Sequence[ComparisonRow],
    at: int,
    targets: Sequence[ComparisonTarget],
    blind: BlindQueues,
) -> dict[str, Any]:
    diff = "1" if state.diff else ""
    link = partial(state.link, only=only, diff=diff)
    opened = prompt_detail.build_prompt_detail(rows, at, state.nth, targets, link, blind)
    return {
        "opened": opened,
        "diff": state.diff,
        "diff_link": state.link(only=only, sel=opened.key, nth=state.nth, diff="" if diff else "1"),
        "close_link": state.link(only=only, start=at // ROWS * ROWS),
    }
