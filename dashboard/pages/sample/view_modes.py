"""The ways to read a response: raw as written, with math and Markdown, as turns, compared, as tokens, as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common.markdown import rendered
from dashboard.pages.sample import diff_partners, fields_view, text_view, token_view, turns_view
from rollouts.errors import StorageUnavailable
from rollouts.indexing import detokenize
from rollouts.models import Sample
from rollouts.samples import bodies

MOST_COMPARED = 400_000  # characters of each text


@dataclass(frozen=True, slots=True)
class View:
    name: str
    key: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What a view may need beside the body: the group, the step that had the prompt before, the words to mark."""

    request: HttpRequest
    sample: Sample
    siblings: list[Sample]
    before: int | None
    words: list[str]

    def told(self, name: str) -> str:
        return self.request.GET.get(name, "")[:200]


def offered(body: Any) -> list[View]:
    """The views that this sample has data for."""
    text = [] if body.textless else [View(N_("math"), "m"), View(N_("diff"), "d")]
    talk = [View(N_("turns"), "T")] if turns_view.are_there(body) else []
    tokens = [View(N_("tokens"), "t")] if body.response_ids else []
    return [View(N_("raw"), "r"), *text, *talk, *tokens, View(N_("json"), "i")]


def shown(body: Any, wanted: str, asked: Reading) -> dict[str, Any]:
    """What the template of the wanted view needs; raw where the sample has no data for it."""
    views = offered(body)
    view = wanted if any(one.name == wanted for one in views) else "raw"
    template = "sample/tokens_only.html" if view == "raw" and body.textless else f"sample/{view}.html"
    return {"views": views, "view": view, "response_template": template, **SHOWN[view](body, asked)}


def raw(body: Any, asked: Reading) -> dict[str, Any]:
    if body.textless:
        return {"command": detokenize.command_for(asked.sample.step.run)}
    response = text_view.dressed(body.response, asked.words)
    return {"response": response, "late": response.late, "landmarks": response.landmarks}


def math(body: Any, asked: Reading) -> dict[str, Any]:
    return {"rendered": rendered(body.response)}


def talk(body: Any, asked: Reading) -> dict[str, Any]:
    return {"turns": turns_view.of(body)}


def diff(body: Any, asked: Reading) -> dict[str, Any]:
    """Both texts whole; the page's script draws what differs."""
    found = diff_partners.of(asked.request, asked.sample, asked.siblings, asked.before)
    other = diff_partners.chosen(found, asked.told("vs"))
    if other is None:
        return {"partners": []}
    try:
        theirs = bodies.read([other.sample]).get(other.sample.pk)
    except StorageUnavailable:
        theirs = None
    there = theirs.response if theirs and not theirs.textless else None
    return {
        "lost": there is None,
        "partners": found,
        "partner": other,
        "partner_after": diff_partners.after(found, other),
        "there": (there or "")[:MOST_COMPARED],
        "here": body.response[:MOST_COMPARED],
        "cut": MOST_COMPARED if max(len(there or ""), len(body.response)) > MOST_COMPARED else 0,
    }


def tokens(body: Any, asked: Reading) -> dict[str, Any]:
    window = token_view.of(body, asked.told("at"), asked.told("by"), asked.sample.step.run)
    table = asked.told("as") == "table"
    return {
        "tokens": window,
        "token_spans": "" if table else mark_safe("".join(token_view.spans(window))),
        "token_values": "" if table else token_view.told(window),
        "token_rows": token_view.rows(window) if table else None,
    }


def everything(body: Any, asked: Reading) -> dict[str, Any]:
    return {"entries": fields_view.entries(body)}


SHOWN = {"raw": raw, "math": math, "turns": talk, "diff": diff, "tokens": tokens, "json": everything}
