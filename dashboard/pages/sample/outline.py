"""Places in a response that a reader jumps to: turns, the end of the reasoning, tool calls, code, the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import MAX_MARKED_CHARS, find_answers
from dashboard.pages.sample import chat_roles

MAX_LANDMARKS = 40
LANDMARK_PATTERN = re.compile(
    r"(?P<thought></think(?:ing)?>)|(?P<tool><tool_call>)|^(?P<code>```\w*)(?!\w)[^`\n]*$", re.MULTILINE
)
MAX_LABEL_CHARS = 20
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


def find_landmarks(response: str, name: str) -> list[Landmark]:
    """In the order of the text, at most `MOST`; the answer, the last of those marked, is always among them."""
    found = sorted({*find_turn_starts(response), *find_marked_places(response)}, key=build_landmark_key)
    answer = find_last_answer(response)
    found = [*found[: MAX_LANDMARKS - 1], *([(answer, "answer", _("answer"))] if answer is not None else [])]
    return [
        Landmark(at, kind, label, f"{name}{place}")
        for place, (at, kind, label) in enumerate(sorted(found, key=build_landmark_key))
    ]


def build_landmark_key(place: tuple[int, str, str]) -> tuple[int, bool]:
    at, kind, _ = place
    return at, kind != "turn"


def find_turn_starts(response: str) -> Iterator[tuple[int, str, str]]:
    for role, start, _end in chat_roles.split_turns(response, "assistant")[1:]:
        yield start, "turn", chat_roles.format_role_name(role)


def find_marked_places(response: str) -> Iterator[tuple[int, str, str]]:
    """A fence that closes a block of code begins none."""
    inside = False
    there = any(first in response and any(sign in response for sign in signs) for first, signs in SIGNS.items())
    for found in LANDMARK_PATTERN.finditer(response) if there else ():
        kind = str(found.lastgroup)
        if kind == "code":
            inside = not inside
            if not inside:
                continue
        language = found["code"][3:][:MAX_LABEL_CHARS] if kind == "code" else ""
        language = "" if language[:1].isdigit() else language  # what stands on the fence's line is data
        yield found.start(), kind, language or _(NAMES[kind])


def find_last_answer(response: str) -> int | None:
    """Where the answer that counts is: the last of those in the last `text.MOST_MARKED` characters."""
    starts = [found.start() for found in find_answers(response, max(0, len(response) - MAX_MARKED_CHARS))]
    return starts[-1] if starts else None
