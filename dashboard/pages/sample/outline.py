"""Places in a response that a reader jumps to: turns, the end of the reasoning, tool calls, code, the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import formatting
from dashboard.pages.sample import chat_roles

MOST = 40
MARK = re.compile(r"(?P<thought></think(?:ing)?>)|(?P<tool><tool_call>)|^(?P<code>```\w*)(?!\w)[^`\n]*$", re.MULTILINE)
MOST_LABEL = 20
# Looking for these is ten times faster than for MARK, and for what they begin with faster again.
SIGNS = {"<": ("</think", "<tool_call>"), "`": ("```",)}
NAMES = {"thought": N_("end of reasoning"), "tool": N_("tool call"), "code": N_("code")}


@dataclass(frozen=True, slots=True)
class Landmark:
    """`at` in characters from the start of the response; `name` is the id of its place on the page."""

    at: int
    kind: str
    label: str
    name: str


def of(response: str, name: str) -> list[Landmark]:
    """In the order of the text, at most `MOST`; the answer, the last of those marked, is always among them."""
    found = sorted({*turns(response), *marks(response)}, key=order)
    answer = last_answer(response)
    found = [*found[: MOST - 1], *([(answer, "answer", _("answer"))] if answer is not None else [])]
    return [
        Landmark(at, kind, label, f"{name}{place}") for place, (at, kind, label) in enumerate(sorted(found, key=order))
    ]


def order(place: tuple[int, str, str]) -> tuple[int, bool]:
    at, kind, _ = place
    return at, kind != "turn"


def turns(response: str) -> Iterator[tuple[int, str, str]]:
    for role, start, _end in chat_roles.split(response, "assistant")[1:]:
        yield start, "turn", chat_roles.called(role)


def marks(response: str) -> Iterator[tuple[int, str, str]]:
    """A fence that closes a block of code begins none."""
    inside = False
    there = any(first in response and any(sign in response for sign in signs) for first, signs in SIGNS.items())
    for found in MARK.finditer(response) if there else ():
        kind = str(found.lastgroup)
        if kind == "code":
            inside = not inside
            if not inside:
                continue
        language = found["code"][3:][:MOST_LABEL] if kind == "code" else ""
        language = "" if language[:1].isdigit() else language  # what stands on the fence's line is data
        yield found.start(), kind, language or _(NAMES[kind])


def last_answer(response: str) -> int | None:
    """Where the answer that counts is: the last of those in the last `text.MOST_MARKED` characters."""
    starts = [found.start() for found in formatting.answers(response, max(0, len(response) - formatting.MOST_MARKED))]
    return starts[-1] if starts else None
