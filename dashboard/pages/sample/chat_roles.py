"""Roles that a trainer flattened into text: `system\\n…\\nuser\\n…\\nassistant\\n…`, or in a template's marks."""

from __future__ import annotations

import re

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

NAMES = ("system", "user", "assistant", "tool")
ROLE_NAMES = {
    "prompt": N_("prompt"), "system": N_("system"), "user": N_("user"), "assistant": N_("assistant"),
    "tool": N_("tool"),
}  # fmt: skip
# Llama's marks stand one behind the other, with no line between the end of a turn and the next one's role.
ROLE_LINE_PATTERN = re.compile(
    r"(?:^|(?<=<\|begin_of_text\|>)|(?<=<\|eot_id\|>))(?:<\|im_start\|>|<\|start_header_id\|>)?"
    r"(?P<role>system|user|assistant|tool)(?:<\|end_header_id\|>)?[ \t]*(?:\n|\Z)",
    re.MULTILINE,
)
NEXT_ROLES = {"system": ("user", "assistant"), "user": ("assistant",), "tool": ("assistant", "user", "tool")}
ENDINGS = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>")
BEGINNING = "<|begin_of_text|>"
HEADED = "<|end_header_id|>"

TurnSpan = tuple[str, int, int]


def format_role_name(role: str) -> str:
    """A role's name for a reader; one that only a trainer knows is as it was logged."""
    return _(ROLE_NAMES[role]) if role in ROLE_NAMES else role


def split_turns(text: str, first: str = "") -> list[TurnSpan]:
    """[(role, start, end)] of the turns' own text. `first` is the role of what stands before any role's line; without
    it that must be empty, or the text has no roles. A line that says only `user` inside a turn is a turn only where an
    answer or a tool's result follows."""
    lines = ROLE_LINE_PATTERN.finditer(text) if may_have_turns(text, first) else ()
    found = [(str(line["role"]), line.start(), line.end()) for line in lines]
    if not first and (not found or text[: found[0][1]].removeprefix(BEGINNING).strip()):
        return []
    turns: list[TurnSpan] = [(first, 0, 0)] if first else []
    for place, (role, start, end) in enumerate(found):
        later = found[place + 1][0] if place + 1 < len(found) else ""
        if turns and not begins_turn(turns[-1][0], role, later, text[end : end + 40]):
            continue
        if turns:
            turns[-1] = (turns[-1][0], turns[-1][1], start)
        turns.append((role, end, end))
    if turns:
        turns[-1] = (turns[-1][0], turns[-1][1], len(text))
    return [turn for place, turn in enumerate(turns) if place or not first or turn[2] > turn[1]] or turns


def may_have_turns(text: str, first: str) -> bool:
    """Whether it is worth looking for lines: in megabytes words are found much faster. See `begins` for what must
    follow an assistant."""
    marked = "<" in text
    if first == "assistant" and "assistant" not in text and not (marked and "<tool_response>" in text):
        return False
    return any(f"{name}\n" in text for name in NAMES) or text.endswith(NAMES) or (marked and HEADED in text)


def begins_turn(before: str, role: str, later: str, following: str) -> bool:
    """Whether a line that says `role` after a turn of `before` begins a turn."""
    if before == "assistant":
        return role in ("user", "tool") and (later == "assistant" or following.lstrip().startswith("<tool_response>"))
    return role in NEXT_ROLES.get(before, ())


def trim_turn_text(text: str) -> str:
    """A turn's text without what the template puts around it."""
    text = text.strip("\n")
    for ending in ENDINGS:
        text = text.removesuffix(ending)
    return text.strip("\n")
