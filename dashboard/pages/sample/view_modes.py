"""The views of a response: raw, math (rendered Markdown), turns, diff, tokens, json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpRequest
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import needs_blocks, render_markdown
from dashboard.pages.sample import diff_partners, fields_view, text_view, token_view, turns_view
from rollouts.errors import StorageUnavailableError
from rollouts.indexing import build_tokenizer_command
from rollouts.models import Sample
from rollouts.samples import load_bodies

MAX_DIFF_CHARS = 400_000  # of each text


@dataclass(frozen=True, slots=True)
class ViewTab:
    name: str
    key: str


@dataclass(frozen=True, slots=True)
class ViewInput:
    """What a view may need besides the body. `earlier` is the previous step with the same prompt, `words` are to be
    highlighted, `labels` name the response from a position on."""

    request: HttpRequest
    sample: Sample
    siblings: list[Sample]
    earlier: int | None
    words: Sequence[str]
    labels: Mapping[int, str] = field(default_factory=dict)

    def get_param(self, name: str) -> str:
        return self.request.GET.get(name, "")[:200]


def find_available_views(body: Any) -> list[ViewTab]:
    """The views for which this sample has data."""
    text = [] if body.textless else [ViewTab(N_("math"), "m"), ViewTab(N_("diff"), "d")]
    turns = [ViewTab(N_("turns"), "T")] if turns_view.has_turns(body) else []
    tokens = [ViewTab(N_("tokens"), "t")] if body.response_ids else []
    return [ViewTab(N_("raw"), "r"), *text, *turns, *tokens, ViewTab(N_("json"), "i")]


def build_view_context(body: Any, requested: str, view_input: ViewInput) -> dict[str, Any]:
    """The context of the requested view; of raw if the sample has no data for it."""
    views = find_available_views(body)
    view = requested if any(tab.name == requested for tab in views) else "raw"
    template = "sample/tokens_only.html" if view == "raw" and body.textless else f"sample/{view}.html"
    return {"views": views, "view": view, "response_template": template, **VIEWS[view](body, view_input)}


def build_raw_context(body: Any, view_input: ViewInput) -> dict[str, Any]:
    if body.textless:
        has_tokens = bool(body.response_ids)
        command = build_tokenizer_command(view_input.sample.step.run) if has_tokens else ""
        return {"command": command, "has_tokens": has_tokens, "response_hits": 0}
    response = text_view.build_text_view(body.response, view_input.words, labels=view_input.labels)
    return {
        "response": response,
        "response_hits": response.hits,
        "deferred": response.deferred,
        "landmarks": response.landmarks,
    }


def build_math_context(body: Any, view_input: ViewInput) -> dict[str, Any]:
    return {"rendered": render_markdown(body.response), "long": needs_blocks(body.response)}


def build_turns_context(body: Any, view_input: ViewInput) -> dict[str, Any]:
    return {"turns": turns_view.build_turns(body, view_input.sample.pk)}


def build_diff_context(body: Any, view_input: ViewInput) -> dict[str, Any]:
    """Both texts; the page's script computes and shows the diff."""
    sample, siblings, earlier = view_input.sample, view_input.siblings, view_input.earlier
    partners = diff_partners.find_diff_partners(view_input.request, sample, siblings, earlier)
    if not partners:
        return {"partners": []}
    name = view_input.get_param("vs")
    position = next((at for at, partner in enumerate(partners) if partner.name == name), 0)
    partner = partners[position]
    try:
        other = load_bodies([partner.sample]).get(partner.sample.pk)
    except StorageUnavailableError:
        other = None
    other_text = other.response if other and not other.textless else None
    return {
        "text_missing": other_text is None,
        "partners": partners,
        "partner": partner,
        "next_partner": partners[(position + 1) % len(partners)],
        "other_text": (other_text or "")[:MAX_DIFF_CHARS],
        "own_text": body.response[:MAX_DIFF_CHARS],
        "cut": MAX_DIFF_CHARS if max(len(other_text or ""), len(body.response)) > MAX_DIFF_CHARS else 0,
    }


def build_tokens_context(body: Any, view_input: ViewInput) -> dict[str, Any]:
    at, metric = view_input.get_param("at"), view_input.get_param("by")
    window = token_view.build_token_window(body, at, metric, view_input.sample.step.run)
    table = view_input.get_param("as") == "table"
    return {
        "tokens": window,
        "token_spans": "" if table else mark_safe("".join(token_view.render_token_spans(window))),
        "token_values": "" if table else token_view.serialize_token_values(window),
        "token_rows": token_view.build_token_rows(window) if table else None,
    }


def build_fields_context(body: Any, view_input: ViewInput) -> dict[str, Any]:
    return {"entries": fields_view.build_field_entries(body)}


VIEWS = {
    "raw": build_raw_context,
    "math": build_math_context,
    "turns": build_turns_context,
    "diff": build_diff_context,
    "tokens": build_tokens_context,
    "json": build_fields_context,
}
