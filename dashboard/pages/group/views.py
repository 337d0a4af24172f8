"""The group view: the responses to one prompt in one step, lowest score first, and their unit tests."""

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponseBase
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.sample import parse_highlight_words
from dashboard.pages.step import StepQueryResult, find_requested_step, load_query_result
from rollouts.lib import CacheSize, cached
from rollouts.models import BlindQueues, Run, Sample
from rollouts.prompts import GroupResponse, GroupView, find_group_step, find_highest_scored, load_group_view
from rollouts.review import load_viewer_state
from rollouts.samples import UnitTestCase, UnitTestResults

PANELS = {"board": "group/board.html", "strip": "common/strip.html", "alive": "common/last_update.html"}
SHORT_ID_CHARS = 8  # of a sample id in `whole=`
MAX_EXPANDED = 64


@dataclass(frozen=True, slots=True)
class UnitTestRow:
    """`cells` has the length of the longest row; None if the test with this number was not run."""

    sample: Sample
    results: UnitTestResults
    cells: list[UnitTestCase | None]


@dataclass(frozen=True, slots=True)
class UnitTestMatrix:
    """`head` has the cases of the longest row. Columns that are not tests are programs that were tested."""

    head: tuple[UnitTestCase, ...]
    columns_are_tests: bool
    rows: list[UnitTestRow]

    @property
    def given(self) -> int:
        return sum(case.given for case in self.head)

    @property
    def total(self) -> int:
        return max(row.results.total for row in self.rows)

    @property
    def ragged(self) -> bool:
        return any(None in row.cells for row in self.rows)


@login_required
@require_safe
def group_page(request: HttpRequest, uid: str, step: str, group: str) -> HttpResponseBase:
    """`step` is a number or `latest`. `whole=all`, or a list of id prefixes, names the responses to expand; `only` is
    `right` or `wrong`; `diff=1` shows the differences from the best; `name` is the group if it cannot be a part of a
    path."""
    run = permissions.run_or_404(request, uid)
    role, status = run.project.role_of(request.user), run.status
    name = request.GET.get("name", "") if group == common.GROUP_NAME_PLACEHOLDER and "name" in request.GET else group
    common_context = {"status": status, "may_flag": permissions.role_allows(role, "annotator")}
    return common.render_page_or_panel(
        request,
        "group/page.html",
        PANELS,
        lambda panel: build_group_context(request, run, step, common.clean_param(name)) | common_context,
        *(
            run.version,
            status,
            role,
            run.project.reasons,
            load_viewer_state(run, request.user.pk, common.load_blind_queues(request)),
        ),
    )


def build_group_context(request: HttpRequest, run: Run, requested_step: str, name: str) -> dict[str, Any]:
    url_state = common.StepUrlState.from_query(request.GET)
    attempt = common.attempt_or_404(run, url_state.attempt)
    split = url_state.split or common.find_default_split(run)
    row = find_requested_step(run, split, requested_step, attempt, common.get_shown_step(request))
    if row is None:
        raise Http404(_("The step of a group must be a number or latest."))
    row = find_group_step(run, row, name, attempt)
    row.run = run
    only, diff = request.GET.get("only", ""), request.GET.get("diff") == "1"
    expanded = "all" if diff else request.GET.get("whole", "")
    id_prefixes = tuple(part for part in expanded.split(",") if len(part) >= SHORT_ID_CHARS)[:MAX_EXPANDED]
    group = load_group_view(row, name, expanded=id_prefixes, expand_all=expanded == "all", for_diff=diff)
    if group is None:
        message = _("{split} step {step} of this run has no group {group}.")
        raise Http404(message.format(split=split, step=row.step, group=name[:80]))
    view = group.filter_responses(only)
    best = find_highest_scored(response.sample for response in view.responses).pk if view.responses else ""
    neighbours = build_neighbour_links(request, run, split, group, url_state)
    words = parse_highlight_words(url_state.q)
    blind = common.load_blind_queues(request)
    dimmed = 0 if diff or words else view.shared_prefix_chars  # a highlighted word may cross the end of the prefix
    return {
        "run": run, "project": run.project, "url_state": url_state, "split": split, "row": row, "current": row.step,
        "word": requested_step,
        "tab": "samples", "strip": common.load_step_strip(run, split, attempt), "group_view": view,
        "columns": build_response_columns(view, dimmed, blind),
        "answer_groups": build_answer_groups(view, dimmed, blind),
        "chips": build_correctness_chips(group, only, neighbours["base_link"]), "diff": diff,
        "reasons": run.project.reasons, "expanded": expanded, "best": best[:SHORT_ID_CHARS],
        "back": url_state.link(sel=group.responses[0].sample.pk), "words": words,
        "matrices": build_unit_test_matrices(view.responses), **neighbours,
        "prompt_images": common.build_shown_images(group.prompt_images, group.responses[0].sample.pk),
        "base_link": neighbours["base_link"] + (f"only={only}&" if view is not group else ""),
    }  # fmt: skip


def build_correctness_chips(group: GroupView, only: str, base_link: str) -> list[tuple[str, int, str, bool]]:
    """[(name, count, link, on)] of all, correct and wrong responses; empty if there are no correct or no wrong ones."""
    if not group.correct_count or not group.wrong_count:
        return []
    chips = (
        ("", _("All"), len(group.samples)),
        ("right", _("Correct"), group.correct_count),
        ("wrong", _("Wrong"), group.wrong_count),
    )
    return [
        (name, count, f"{base_link}only={value}" if value else base_link[:-1], value == only)
        for value, name, count in chips
    ]


def build_response_columns(view: GroupView, dimmed: int, blind: BlindQueues) -> list[dict[str, Any]]:
    """The columns of a view that is not collapsed."""
    pairs = [] if view.collapsed else pair_with_rows(view.responses, blind)
    return [build_response_column(*pair, dimmed, key=str(number)) for number, pair in enumerate(pairs, 1)]


def build_answer_groups(view: GroupView, dimmed: int, blind: BlindQueues) -> list[dict[str, Any]]:
    """The responses by answer; with their columns if the view is collapsed."""
    if not view.collapsed:
        return [{"answers": answers} for answers in view.group_by_answer()]
    heads = dict(pair_with_rows(view.responses, blind))
    return [
        {
            "answers": answers,
            "columns": [build_response_column(response, heads[response], dimmed) for response in answers.responses],
        }
        for answers in view.group_by_answer()
    ]


def pair_with_rows(responses: list[GroupResponse], blind: BlindQueues) -> list[tuple[GroupResponse, common.SampleRow]]:
    heads = common.build_sample_rows((response.sample for response in responses), blind)
    return list(zip(responses, heads, strict=True))


def build_response_column(
    response: GroupResponse, head: common.SampleRow, dimmed: int, key: str = ""
) -> dict[str, Any]:
    """`prefix` is what all responses begin with, if this one is shown from its start; `text` is the rest."""
    text = response.text or ""
    cut = dimmed if response.expanded or not response.is_long else 0
    return {
        "response": response,
        "head": head,
        "key": key,
        "id_prefix": response.sample.pk[:SHORT_ID_CHARS],
        "prefix": text[:cut],
        "images": common.build_shown_images(response.images, response.sample.pk),
        "text": text[cut:],
    }


def build_neighbour_links(
    request: HttpRequest, run: Run, split: str, group: GroupView, url_state: common.StepUrlState
) -> dict[str, Any]:
    """The previous and the next group in the result of the page's query; the last and the first if this group is not
    in the result. `base_link` is this page without its own parameters."""
    result = load_query_result(
        run,
        split,
        group.step,
        url_state,
        reader=load_viewer_state(run, request.user.pk, common.load_blind_queues(request)),
    )
    names = find_group_order(result)
    links = common.GroupLinks(run, url_state)
    link = links.build_link(group.step, group.group)
    at = names.index(group.group) if group.group in names else None
    before, after = (at - 1, at + 1) if at is not None else (-1, 0)
    return {
        "result": result, "groups": len(names), "at": None if at is None else at + 1,
        "base_link": link + ("&" if "?" in link else "?"),
        "before": links.build_link(group.step, names[before]) if 0 <= before < len(names) else "",
        "after": links.build_link(group.step, names[after]) if after < len(names) else "",
    }  # fmt: skip


@cached(CacheSize.GROUP_ORDERS)
def find_group_order(result: StepQueryResult) -> list[str]:
    """The groups of a result, in the order of their first samples."""
    return list(dict.fromkeys(result.matches.samples.values_list("group", flat=True)))


def build_unit_test_matrices(responses: list[GroupResponse]) -> list[UnitTestMatrix]:
    """One of tests and one of programs, if the group has such results. The rows are in the trainer's order."""
    tested = [(response.sample, response.unit_tests) for response in responses if response.unit_tests]
    tested.sort(key=lambda pair: (pair[0].index is None, pair[0].index or 0, pair[0].ordinal))
    kinds = [[pair for pair in tested if pair[1].is_program is is_program] for is_program in (True, False)]
    return [build_unit_test_matrix(tested) for tested in kinds if tested]


def build_unit_test_matrix(tested: list[tuple[Sample, UnitTestResults]]) -> UnitTestMatrix:
    head = max((results.cases for _, results in tested), key=len)
    padding = [None] * len(head)
    rows = [UnitTestRow(sample, own, [*own.cases, *padding[len(own.cases) :]]) for sample, own in tested]
    return UnitTestMatrix(head, tested[0][1].is_program, rows)
