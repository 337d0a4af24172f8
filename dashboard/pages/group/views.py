"""The group board: the responses of one prompt in one step side by side, lowest score first."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponseBase
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import lookups, panels, sample_rows, step_strip
from dashboard.pages.common.group_links import APART, Boards
from dashboard.pages.common.url_state import Ask, clean
from dashboard.pages.group import test_matrix
from dashboard.pages.sample import pane
from dashboard.pages.step import query_result
from dashboard.pages.step import views as step_page
from rollouts.lib.cache import MAX_GROUP_ORDERS, cached
from rollouts.models import Run
from rollouts.prompts import groups
from rollouts.prompts.groups import Board, Response
from rollouts.review import viewed

PANELS = {"board": "group/board.html", "strip": "common/strip.html", "alive": "common/last_update.html"}
BEGINNING = 8  # characters of a sample's id that name it in `whole=`
MOST_WHOLE = 64


@login_required
@require_safe
def group(request: HttpRequest, uid: str, step: str, group: str) -> HttpResponseBase:
    """`step` is a number or `latest`. `whole=all`, or beginnings of ids, names the responses to show whole; `only` is
    `right` or `wrong`; `diff=1` shows what each says differently than the best; `name` is the group where it cannot be
    a part of an address."""
    run = permissions.run_or_404(request, uid)
    role, status = run.project.role_of(request.user), run.status
    name = request.GET.get("name", "") if group == APART and "name" in request.GET else group
    return panels.answer(
        request,
        "group/page.html",
        PANELS,
        lambda: (
            context(request, run, step, clean(name)) | {"status": status, "may_flag": lookups.may(role, "annotator")}
        ),
        *(run.version, status, role, run.project.reasons, viewed.reader(run, request.user.pk)),
    )


def context(request: HttpRequest, run: Run, word: str, name: str) -> dict[str, Any]:
    ask = Ask.of(request.GET)
    attempt = lookups.attempt_of(run, ask.attempt)
    split = ask.split or step_strip.first_split(run)
    row = step_page.wanted(run, split, word, attempt)
    if row is None:
        raise Http404(_("A group is of one step: a number, or latest."))
    row = groups.home(run, row, name, attempt)
    row.run = run
    only, diff = request.GET.get("only", ""), request.GET.get("diff") == "1"
    wanted = "all" if diff else request.GET.get("whole", "")
    begun = tuple(part for part in wanted.split(",") if len(part) >= BEGINNING)[:MOST_WHOLE]
    found = groups.board(row, name, whole=begun, every=wanted == "all", compared=diff)
    if found is None:
        said = _("The {split} step {step} of this run has no group {group}.")
        raise Http404(said.format(split=split, step=row.step, group=name[:80]))
    shown = found.only(only)
    way = walk(request, run, split, found, ask)
    words = pane.words_of(ask.q)
    dim = 0 if diff or words else shown.shared  # a hit may lie across the end of what is dimmed
    return {
        "run": run, "project": run.project, "ask": ask, "split": split, "row": row, "current": row.step,
        "tab": "samples", "strip": step_strip.of(run, split, attempt), "board": shown, "columns": columns(shown, dim),
        "folds": folds(shown, dim), "chips": chips(found, only, way["here"]), "diff": diff,
        "reasons": run.project.reasons, "wanted": wanted, "back": ask.link(sel=found.responses[0].sample.pk),
        "best": groups.best_of(one.sample for one in shown.responses).pk[:BEGINNING] if shown.responses else "",
        "matrices": test_matrix.matrices(shown.responses), "words": words, **way,
        "here": way["here"] + (f"only={only}&" if shown is not found else ""),
    }  # fmt: skip


def chips(found: Board, only: str, here: str) -> list[tuple[str, int, str, bool]]:
    """[(name, count, link, on)] of all responses, the right ones and the wrong; none where one of these is empty."""
    if not found.right or not found.wrong:
        return []
    named = (("", _("All"), len(found.samples)), ("right", _("Right"), found.right), ("wrong", _("Wrong"), found.wrong))
    return [(name, count, f"{here}only={key}" if key else here[:-1], key == only) for key, name, count in named]


def columns(found: Board, dim: int) -> list[dict[str, Any]]:
    """Of a board that is not folded, the first eight with a key."""
    if found.folded:
        return []
    return [column(*pair, dim, key=str(at)) for at, pair in enumerate(paired(found.responses), 1)]


def folds(found: Board, dim: int) -> list[dict[str, Any]]:
    every = found.folds()
    if not found.folded:
        return [{"fold": fold} for fold in every]
    heads = dict(paired(found.responses))
    return [{"fold": fold, "columns": [column(one, heads[one], dim) for one in fold.responses]} for fold in every]


def paired(responses: list[Response]) -> list[tuple[Response, sample_rows.Row]]:
    return list(zip(responses, sample_rows.rows(one.sample for one in responses), strict=True))


def column(one: Response, head: sample_rows.Row, dim: int, key: str = "") -> dict[str, Any]:
    """`same`: how all responses begin, where this one is shown from its beginning; `text`: what follows."""
    text = one.text or ""
    cut = dim if one.whole or not one.cut else 0
    return {
        "one": one,
        "head": head,
        "key": key,
        "begun": one.sample.pk[:BEGINNING],
        "same": text[:cut],
        "text": text[cut:],
    }


def walk(request: HttpRequest, run: Run, split: str, found: Board, ask: Ask) -> dict[str, Any]:
    """The groups before and after this one in the result of the page's query; both ends where it is not in it."""
    result = query_result.find(run, split, found.step, ask, reader=viewed.reader(run, request.user.pk))
    names = in_order(result)
    links = Boards(run, ask)
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
def in_order(result: query_result.Result) -> list[str]:
    """The groups of a result, each at the place of its first sample."""
    return list(dict.fromkeys(result.found.samples.values_list("group", flat=True)))
