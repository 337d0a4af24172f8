"""Landmarks of a response: turns, the end of the reasoning, tool calls, code, the answer."""

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
# {character: substrings}. Substrings are found ten times faster than the pattern, single characters faster still.
LANDMARK_SUBSTRINGS = {"<": ("</think", "<tool_call>"), "`": ("```",)}
KIND_NAMES = {"thought": N_("end of reasoning"), "tool": N_("tool call"), "code": N_("code")}

Position = tuple[int, str, str]  # characters from the start, kind, label


@dataclass(frozen=True, slots=True)
class Landmark:
    """`at` is counted in characters from the start of the response; `name` is the id of its element on the page."""

    at: int
    kind: str
    label: str
    name: str


def find_landmarks(response: str, name: str) -> list[Landmark]:
    """At most `MAX_LANDMARKS`, in the order of the text; the last marked answer is always among them."""
    positions = sorted({*find_turn_starts(response), *find_marked_positions(response)}, key=get_sort_key)
    answers = list(find_answers(response, max(0, len(response) - MAX_MARKED_CHARS)))
    positions = [*positions[: MAX_LANDMARKS - 1], *((match.start(), "answer", _("answer")) for match in answers[-1:])]
    positions.sort(key=get_sort_key)
    return [Landmark(*position, f"{name}{number}") for number, position in enumerate(positions)]


def get_sort_key(position: Position) -> tuple[int, bool]:
    return position[0], position[1] != "turn"


def find_turn_starts(response: str) -> Iterator[Position]:
    for role, start, _end in chat_roles.split_turns(response, "assistant")[1:]:
        yield start, "turn", chat_roles.format_role_name(role)


def find_marked_positions(response: str) -> Iterator[Position]:
    has_marks = any(
        character in response and any(substring in response for substring in substrings)
        for character, substrings in LANDMARK_SUBSTRINGS.items()
    )
    in_code = False
    for match in LANDMARK_PATTERN.finditer(response) if has_marks else ():
        kind = str(match.lastgroup)
        language = ""
        if kind == "code":
            in_code = not in_code
            if not in_code:  # the fence that closes a block
                continue
            language = match["code"][3:][:MAX_LABEL_CHARS]
        yield match.start(), kind, language if language and not language[0].isdigit() else _(KIND_NAMES[kind])
