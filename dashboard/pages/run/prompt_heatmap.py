"""The map of a run's prompts over its steps: who was solved when. A cell leads to the samples it was made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import clean_param, find_step_kind, format_number, parse_row_offset
from rolloutdeck.protocol import SPLITS
from rollouts.errors import StorageUnavailableError
from rollouts.models import Run, Sample
from rollouts.prompts import HEATMAP_KINDS, HEATMAP_ORDERS, HeatmapRow, PromptHeatmap, load_prompt_heatmap
from rollouts.samples import load_bodies

ROWS = 40
MAX_PROMPT_CHARS = 160
KIND_NAMES = {
    "all": N_("all"),
    "never": N_("never solved"),
    "regressed": N_("regressed"),
    "mixed": N_("learned or unstable"),
    "always": N_("always solved"),
}
ORDER_NAMES = {
    "hardest": N_("hardest"),
    "easiest": N_("easiest"),
    "regressed": N_("regressed"),
    "first solved": N_("first solved"),
}


@dataclass(frozen=True, slots=True)
class HeatmapDisplayCell:
    grade: str
    text: str
    link: str
    said: str


@dataclass(frozen=True, slots=True)
class HeatmapDisplayRow:
    line: HeatmapRow
    text: str
    first: int | None
    cells: list[HeatmapDisplayCell | None]


def build_heatmap_context(request: HttpRequest, run: Run) -> dict[str, Any]:
    """`?show=prompts&split=&only=&order=&start=`; the evaluations where there are any."""
    told = {name: clean_param(request.GET.get(name, "")) for name in ("split", "only", "order", "start")}
    splits = [split for split in reversed(SPLITS) if find_step_kind(run, split)]
    split = told["split"] if told["split"] in splits else (splits or [""])[0]
    only = told["only"] if told["only"] in HEATMAP_KINDS else "all"
    order = told["order"] if told["order"] in HEATMAP_ORDERS else HEATMAP_ORDERS[0]
    found = load_prompt_heatmap(run, split, find_step_kind(run, split))
    lines = found.select_rows(only, order)
    start = min(parse_row_offset(told["start"]), len(lines))
    link = HeatmapUrlState(run, split, only, order)
    return {
        "heat": found,
        "heat_split": split,
        "heat_rows": build_heatmap_rows(run, split, found, lines[start : start + ROWS]),
        "heat_kinds": [
            (_(KIND_NAMES[kind]), count, link.to(only=kind), kind == only)
            for kind, count in found.count_kinds().items()
        ],
        "heat_orders": [(_(ORDER_NAMES[one]), link.to(order=one), one == order) for one in HEATMAP_ORDERS],
        "heat_splits": [(one, link.to(split=one, only="all"), one == split) for one in splits],
        "heat_before": link.to(start=max(0, start - ROWS)) if start else "",
        "heat_after": link.to(start=start + ROWS) if start + ROWS < len(lines) else "",
        "heat_span": (start + 1, min(start + ROWS, len(lines)), len(lines)),
    }


@dataclass(frozen=True, slots=True)
class HeatmapUrlState:
    run: Run
    split: str
    only: str
    order: str

    def to(self, **changes: str | int) -> str:
        state = {"split": self.split, "only": self.only, "order": self.order, "start": 0} | changes
        usual = {"only": "all", "order": HEATMAP_ORDERS[0], "start": 0}
        pairs = {name: value for name, value in state.items() if value and usual.get(name) != value}
        return f"?{urlencode({'show': 'prompts', **pairs})}"


def build_heatmap_rows(run: Run, split: str, found: PromptHeatmap, lines: list[HeatmapRow]) -> list[HeatmapDisplayRow]:
    texts = load_prompt_texts(lines)
    return [
        HeatmapDisplayRow(
            line,
            texts.get(line.sample, ""),
            None if line.first_solved is None else found.steps[line.first_solved],
            [build_heatmap_cell(run, split, found, line, at) for at in range(len(found.steps))],
        )
        for line in lines
    ]


def build_heatmap_cell(
    run: Run, split: str, found: PromptHeatmap, line: HeatmapRow, at: int
) -> HeatmapDisplayCell | None:
    value = line.values[at]
    if value is None:
        return None
    step = found.steps[at]
    query = urlencode({"split": split, "q": f"prompt:{line.key}"}, safe=":")
    text = format_number(round(value, 2), 0 if value in (0, 1) else 2).replace("-", "−").removeprefix("0")
    said = _("step {step}: {value} correct") if found.evaluated else _("step {step}: {value} mean score")
    said = said.format(step=step, value=format_number(value))
    return HeatmapDisplayCell(grade_cell(value), text or "0", f"{reverse('step', args=[run.uid, step])}?{query}", said)


def grade_cell(value: float) -> str:
    """The class of a cell: h0 where nothing is solved to h3 where all is."""
    return "h0" if value <= 0 else "h1" if value < 0.5 else "h2" if value < 1 else "h3"


def load_prompt_texts(lines: list[HeatmapRow]) -> dict[str, str]:
    """What each prompt asks, in a line, by sample id."""
    samples = list(Sample.objects.filter(pk__in=[line.sample for line in lines]))
    try:
        found = load_bodies(samples)
    except StorageUnavailableError:
        return {}
    return {pk: extract_question(body.prompt) for pk, body in found.items()}


def extract_question(prompt: object) -> str:
    """The person's last words where a trainer has flattened the roles into the text, else its beginning."""
    text = prompt if isinstance(prompt, str) else ""
    last = text.rpartition("\nuser\n")[2] if "\nuser\n" in text else text.removeprefix("user\n")
    return last.removesuffix("\nassistant\n").removesuffix("\nassistant").strip()[:MAX_PROMPT_CHARS]
