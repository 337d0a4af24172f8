"""The heatmap of a run's prompts over its steps. A cell links to its samples."""

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

PAGE_ROWS = 40
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


def build_heatmap_context(request: HttpRequest, run: Run) -> dict[str, Any]:
    """`?show=prompts&split=&only=&order=&start=`. The default split is eval, if the run has it."""
    params = {name: clean_param(request.GET.get(name, "")) for name in ("split", "only", "order", "start")}
    splits = [split for split in reversed(SPLITS) if find_step_kind(run, split)]
    split = params["split"] if params["split"] in splits else (splits or [""])[0]
    only = params["only"] if params["only"] in HEATMAP_KINDS else "all"
    order = params["order"] if params["order"] in HEATMAP_ORDERS else HEATMAP_ORDERS[0]

    def link(**changes: str | int) -> str:
        defaults = {"only": "all", "order": HEATMAP_ORDERS[0], "start": 0}
        values = {"split": split, "only": only, "order": order, "start": 0} | changes
        pairs = {name: value for name, value in values.items() if value and defaults.get(name) != value}
        return f"?{urlencode({'show': 'prompts', **pairs})}"

    heatmap = load_prompt_heatmap(run, split, find_step_kind(run, split))
    rows = heatmap.select_rows(only, order)
    start = min(parse_row_offset(params["start"]), len(rows))
    end = start + PAGE_ROWS
    return {
        "heatmap": heatmap,
        "heatmap_split": split,
        "heatmap_rows": build_heatmap_rows(run, split, heatmap, rows[start:end]),
        "heatmap_kinds": [
            (_(KIND_NAMES[kind]), count, link(only=kind), kind == only) for kind, count in heatmap.count_kinds().items()
        ],
        "heatmap_orders": [(_(ORDER_NAMES[name]), link(order=name), name == order) for name in HEATMAP_ORDERS],
        "heatmap_splits": [(name, link(split=name, only="all"), name == split) for name in splits],
        "heatmap_before": link(start=max(0, start - PAGE_ROWS)) if start else "",
        "heatmap_after": link(start=end) if end < len(rows) else "",
        "heatmap_span": (start + 1, min(end, len(rows)), len(rows)),
    }


def build_heatmap_rows(run: Run, split: str, heatmap: PromptHeatmap, rows: list[HeatmapRow]) -> list[dict[str, Any]]:
    texts = load_prompt_texts(rows)
    return [
        {
            "prompt": row,
            "text": texts.get(row.sample, ""),
            "first_solved": None if row.first_solved is None else heatmap.steps[row.first_solved],
            "cells": [
                None if value is None else build_heatmap_cell(run, split, heatmap, row.key, step, value)
                for step, value in zip(heatmap.steps, row.values, strict=True)
            ],
        }
        for row in rows
    ]


def build_heatmap_cell(
    run: Run, split: str, heatmap: PromptHeatmap, key: str, step: int, value: float
) -> dict[str, str]:
    query = urlencode({"split": split, "q": f"prompt:{key}"}, safe=":")
    text = format_number(round(value, 2), 0 if value in (0, 1) else 2).replace("-", "−").removeprefix("0")
    title = _("step {step}: {value} correct") if heatmap.evaluated else _("step {step}: {value} mean score")
    return {
        "grade": "h0" if value <= 0 else "h1" if value < 0.5 else "h2" if value < 1 else "h3",
        "text": text or "0",
        "link": f"{reverse('step', args=[run.uid, step])}?{query}",
        "title": title.format(step=step, value=format_number(value)),
    }


def load_prompt_texts(rows: list[HeatmapRow]) -> dict[str, str]:
    """The start of each prompt, by sample id."""
    samples = list(Sample.objects.filter(pk__in=[row.sample for row in rows]))
    try:
        return {pk: extract_question(body.prompt) for pk, body in load_bodies(samples).items()}
    except StorageUnavailableError:
        return {}


def extract_question(prompt: object) -> str:
    """The last user turn, if the prompt contains roles as lines of text; else the start of the prompt."""
    text = prompt if isinstance(prompt, str) else ""
    last = text.rpartition("\nuser\n")[2] if "\nuser\n" in text else text.removeprefix("user\n")
    return last.removesuffix("\nassistant\n").removesuffix("\nassistant").strip()[:MAX_PROMPT_CHARS]
