"""The group board: the responses of one prompt in one step side by side, lowest score first."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponseBase
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import (
    GROUP_NAME_PLACEHOLDER,
    GroupLinks,
    SampleRow,
    StepUrlState,
    attempt_or_404,
    build_sample_rows,
    clean_param,
    find_default_split,
    load_step_strip,
    render_page_or_panel,
    role_allows,
)
from dashboard.pages.group import test_matrix
from dashboard.pages.sample import parse_highlight_words
from dashboard.pages.step import StepQueryResult, find_requested_step, load_query_result
from rollouts.lib import MAX_GROUP_ORDERS, cached
from rollouts.models import Run
from rollouts.prompts import GroupResponse, GroupView, find_group_step, find_highest_scored, load_group_view
from rollouts.review import load_viewer_state

PANELS = {"board": "group/board.html", "strip": "common/strip.html", "alive": "common/last_update.html"}
SHORT_ID_CHARS = 8  # characters of a sample's id that name it in `whole=`
MAX_EXPANDED = 64


@login_required
@require_safe
def group_page(request: HttpRequest, uid: str, step: str, group: str) -> HttpResponseBase:
    """`step` is a number or `latest`. `whole=all`, or beginnings of ids, names the responses to show whole; `only` is
    `right` or `wrong`; `diff=1` shows what each says differently than the best; `name` is the group where it cannot be
    a part of an address."""
    run = permissions.run_or_404(request, uid)
    role, status = run.project.role_of(request.user), run.status
    name = request.GET.get("name", "") if group == GROUP_NAME_PLACEHOLDER and "name" in request.GET else group
    return render_page_or_panel(
        request,
        "group/page.html",
        PANELS,
        lambda panel: (
            build_group_context(request, run, step, clean_param(name))
            | {"status": status, "may_flag": role_allows(role, "annotator")}
        ),
        *(run.version, status, role, run.project.reasons, load_viewer_state(run, request.user.pk)),
    )


def build_group_context(request: HttpRequest, run: Run, word: str, name: str) -> dict[str, Any]:
    ask = StepUrlState.from_query(request.GET)
    attempt = attempt_or_404(run, ask.attempt)
    split = ask.split or find_default_split(run)
    row = find_requested_step(run, split, word, attempt)
    if row is None:
        raise Http404(_("The step of a group must be a number or latest."))
    row = find_group_step(run, row, name, attempt)
    row.run = run
    only, diff = request.GET.get("only", ""), request.GET.get("diff") == "1"
    wanted = "all" if diff else request.GET.get("whole", "")
    begun = tuple(part for part in wanted.split(",") if len(part) >= SHORT_ID_CHARS)[:MAX_EXPANDED]
    found = load_group_view(row, name, expanded=begun, expand_all=wanted == "all", for_diff=diff)
    if found is None:
        said = _("{split} step {step} of this run has no group {group}.")
        raise Http404(said.format(split=split, step=row.step, group=name[:80]))
    shown = found.filter_responses(only)
    way = build_neighbour_links(request, run, split, found, ask)
    words = parse_highlight_words(ask.q)
    dim = 0 if diff or words else shown.shared_prefix_chars  # a hit may lie across the end of what is dimmed
    return {
        "run": run, "project": run.project, "url_state": ask, "split": split, "row": row, "current": row.step,
        "tab": "samples", "strip": load_step_strip(run, split, attempt), "board": shown,
        "columns": build_response_columns(shown, dim),
        "folds": build_identical_groups(shown, dim), "chips": build_correctness_chips(found, only, way["here"]),
        "diff": diff,
        "reasons": run.project.reasons, "wanted": wanted, "back": ask.link(sel=found.responses[0].sample.pk),
        "best": find_highest_scored(one.sample for one in shown.responses).pk[:SHORT_ID_CHARS]
        if shown.responses
        else "",
        "matrices": test_matrix.build_unit_test_matrices(shown.responses), "words": words, **way,
        "here": way["here"] + (f"only={only}&" if shown is not found else ""),
    }  # fmt: skip


def build_correctness_chips(found: GroupView, only: str, here: str) -> list[tuple[str, int, str, bool]]:
    """[(name, count, link, on)] of all responses, the right ones and the wrong; none where one of these is empty."""
    if not found.correct_count or not found.wrong_count:
        return []
    named = (
        ("", _("All"), len(found.samples)),
        ("right", _("Correct"), found.correct_count),
        ("wrong", _("Wrong"), found.wrong_count),
    )
    return [(name, count, f"{here}only={key}" if key else here[:-1], key == only) for key, name, count in named]


def build_response_columns(found: GroupView, dim: int) -> list[dict[str, Any]]:
    """Of a board that is not folded, the first eight with a key."""
    if found.collapsed:
        return []
    return [
        build_response_column(*pair, dim, key=str(at)) for at, pair in enumerate(pair_with_rows(found.responses), 1)
    ]


def build_identical_groups(found: GroupView, dim: int) -> list[dict[str, Any]]:
    every = found.group_by_answer()
    if not found.collapsed:
        return [{"fold": fold} for fold in every]
    heads = dict(pair_with_rows(found.responses))
    return [
        {"fold": fold, "columns": [build_response_column(one, heads[one], dim) for one in fold.responses]}
        for fold in every
    ]


def pair_with_rows(responses: list[GroupResponse]) -> list[tuple[GroupResponse, SampleRow]]:
    return list(zip(responses, build_sample_rows(one.sample for one in responses), strict=True))


def build_response_column(one: GroupResponse, head: SampleRow, dim: int, key: str = "") -> dict[str, Any]:
    """`same`: how all responses begin, where this one is shown from its beginning; `text`: what follows."""
    text = one.text or ""
    cut = dim if one.expanded or not one.is_long else 0
    return {
        "one": one,
        "head": head,
        "key": key,
        "begun": one.sample.pk[:SHORT_ID_CHARS],
        "same": text[:cut],
        "text": text[cut:],
    }


def build_neighbour_links(
    request: HttpRequest, run: Run, split: str, found: GroupView, ask: StepUrlState
) -> dict[str, Any]:
    """The groups before and after this one in the result of the page's query; both ends where it is not in it."""
    result = load_query_result(run, split, found.step, ask, reader=load_viewer_state(run, request.user.pk))
    names = find_group_order(result)
    links = GroupLinks(run, ask)
    here = links.of(found.step, found.group)
    at = names.index(found.group) if found.group in names else None
    before, after = (at - 1, at + 1) if at is not None else (-1, 0)
    return {
        "result": result, "groups": len(names), "at": None if at is None else at + 1,
        "here": here + ("&" if "?" in here else "?"),
        "before": links.of(found.step, names[before]) if 0 <= before < len(names) else "",
        "after": links.of(found.step, names[after]) if after < len(names) else "",
    }  # fmt: skip


@cached(MAX_GROUP_ORDERS)
def find_group_order(result: StepQueryResult) -> list[str]:
    """The groups of a result, each at the place of its first sample."""
    return list(dict.fromkeys(result.found.samples.values_list("group", flat=True)))
