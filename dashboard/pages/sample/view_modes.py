"""The ways to read a response: raw as written, with math and Markdown, as turns, compared, as tokens, as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import render_markdown
from dashboard.pages.sample import diff_partners, fields_view, text_view, token_view, turns_view
from rollouts.errors import StorageUnavailableError
from rollouts.indexing import build_tokenizer_command
from rollouts.models import Sample
from rollouts.samples import load_bodies

MAX_DIFF_CHARS = 400_000  # characters of each text


@dataclass(frozen=True, slots=True)
class ViewTab:
    name: str
    key: str


@dataclass(frozen=True, slots=True)
class ViewInput:
    """What a view may need beside the body: the group, the step that had the prompt before, the words to mark."""

    request: HttpRequest
    sample: Sample
    siblings: list[Sample]
    before: int | None
    words: list[str]

    def told(self, name: str) -> str:
        return self.request.GET.get(name, "")[:200]


def find_available_views(body: Any) -> list[ViewTab]:
    """The views that this sample has data for."""
    text = [] if body.textless else [ViewTab(N_("math"), "m"), ViewTab(N_("diff"), "d")]
    talk = [ViewTab(N_("turns"), "T")] if turns_view.has_turns(body) else []
    tokens = [ViewTab(N_("tokens"), "t")] if body.response_ids else []
    return [ViewTab(N_("raw"), "r"), *text, *talk, *tokens, ViewTab(N_("json"), "i")]


def build_view_context(body: Any, wanted: str, asked: ViewInput) -> dict[str, Any]:
    """What the template of the wanted view needs; raw where the sample has no data for it."""
    views = find_available_views(body)
    view = wanted if any(one.name == wanted for one in views) else "raw"
    template = "sample/tokens_only.html" if view == "raw" and body.textless else f"sample/{view}.html"
    return {"views": views, "view": view, "response_template": template, **MAX_PALETTE_RUNS[view](body, asked)}


def build_raw_context(body: Any, asked: ViewInput) -> dict[str, Any]:
    if body.textless:
        return {"command": build_tokenizer_command(asked.sample.step.run)}
    response = text_view.build_text_view(body.response, asked.words)
    return {"response": response, "deferred": response.deferred, "landmarks": response.landmarks}


def build_math_context(body: Any, asked: ViewInput) -> dict[str, Any]:
    return {"rendered": render_markdown(body.response)}


def build_turns_context(body: Any, asked: ViewInput) -> dict[str, Any]:
    return {"turns": turns_view.build_turns(body)}


def build_diff_context(body: Any, asked: ViewInput) -> dict[str, Any]:
    """Both texts whole; the page's script draws what differs."""
    found = diff_partners.find_diff_partners(asked.request, asked.sample, asked.siblings, asked.before)
    other = diff_partners.choose_diff_partner(found, asked.told("vs"))
    if other is None:
        return {"partners": []}
    try:
        theirs = load_bodies([other.sample]).get(other.sample.pk)
    except StorageUnavailableError:
        theirs = None
    there = theirs.response if theirs and not theirs.textless else None
    return {
        "lost": there is None,
        "partners": found,
        "partner": other,
        "partner_after": diff_partners.find_next_partner(found, other),
        "there": (there or "")[:MAX_DIFF_CHARS],
        "here": body.response[:MAX_DIFF_CHARS],
        "cut": MAX_DIFF_CHARS if max(len(there or ""), len(body.response)) > MAX_DIFF_CHARS else 0,
    }


def build_tokens_context(body: Any, asked: ViewInput) -> dict[str, Any]:
    window = token_view.build_token_window(body, asked.told("at"), asked.told("by"), asked.sample.step.run)
    table = asked.told("as") == "table"
    return {
        "tokens": window,
        "token_spans": "" if table else mark_safe("".join(token_view.render_token_spans(window))),
        "token_values": "" if table else token_view.serialize_token_values(window),
        "token_rows": token_view.build_token_rows(window) if table else None,
    }


def build_fields_context(body: Any, asked: ViewInput) -> dict[str, Any]:
    return {"entries": fields_view.build_field_entries(body)}


MAX_PALETTE_RUNS = {
    "raw": build_raw_context,
    "math": build_math_context,
    "turns": build_turns_context,
    "diff": build_diff_context,
    "tokens": build_tokens_context,
    "json": build_fields_context,
}
