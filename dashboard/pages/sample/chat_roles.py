"""Splits flat text into turns: `system\\n…\\nuser\\n…\\nassistant\\n…`, or with the markers of a chat template."""

import re

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

ROLES = ("system", "user", "assistant", "tool")
ROLE_NAMES = {
    "prompt": N_("prompt"), "system": N_("system"), "user": N_("user"), "assistant": N_("assistant"),
    "tool": N_("tool"),
}  # fmt: skip
# In Llama's template there is no line break between the end of a turn and the role of the next turn.
ROLE_LINE_PATTERN = re.compile(
    r"(?:^|(?<=<\|begin_of_text\|>)|(?<=<\|eot_id\|>))(?:<\|im_start\|>|<\|start_header_id\|>)?"
    r"(?P<role>system|user|assistant|tool)(?:<\|end_header_id\|>)?[ \t]*(?:\n|\Z)",
    re.MULTILINE,
)
NEXT_ROLES = {"system": ("user", "assistant"), "user": ("assistant",), "tool": ("assistant", "user", "tool")}
END_MARKERS = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>")
START_MARKER = "<|begin_of_text|>"
HEADER_MARKER = "<|end_header_id|>"

TurnSpan = tuple[str, int, int]


def format_role_name(role: str) -> str:
    """The translated name of a known role; any other role as it was logged."""
    return _(ROLE_NAMES[role]) if role in ROLE_NAMES else role


def split_turns(text: str, first: str = "") -> list[TurnSpan]:
    """[(role, start, end)] of the turns' own text. `first` is the role of the text before the first role line; without
    `first` that text must be empty, otherwise the result is empty. A role line inside a turn starts a new turn only if
    an answer or a tool result follows."""
    matches = ROLE_LINE_PATTERN.finditer(text) if may_have_turns(text, first) else ()
    lines = [(str(match["role"]), match.start(), match.end()) for match in matches]
    if not first and (not lines or text[: lines[0][1]].removeprefix(START_MARKER).strip()):
        return []
    starts = [(first, 0, 0)] if first else []  # role, start of its line, start of its text
    for position, (role, start, end) in enumerate(lines):
        next_role = lines[position + 1][0] if position + 1 < len(lines) else ""
        if not starts or starts_turn(starts[-1][0], role, next_role, text[end : end + 40]):
            starts.append((role, start, end))
    ends = [*(start for _role, start, _end in starts[1:]), len(text)]
    turns = [(role, start, end) for (role, _line, start), end in zip(starts, ends, strict=True)]
    return turns[1:] if first and len(turns) > 1 and not turns[0][2] else turns


def may_have_turns(text: str, first: str) -> bool:
    """Whether the text can have role lines: a substring search is much faster than the pattern. `starts_turn` says what
    must follow an assistant."""
    has_markers = "<" in text
    if first == "assistant" and "assistant" not in text and not (has_markers and "<tool_response>" in text):
        return False
    return any(f"{role}\n" in text for role in ROLES) or text.endswith(ROLES) or (has_markers and HEADER_MARKER in text)


def starts_turn(previous: str, role: str, next_role: str, text: str) -> bool:
    """Whether a line with `role` and `text` after it, in a turn of `previous`, starts a turn."""
    if previous == "assistant":
        return role in ("user", "tool") and (next_role == "assistant" or text.lstrip().startswith("<tool_response>"))
    return role in NEXT_ROLES.get(previous, ())


def trim_turn_text(text: str) -> str:
    """Removes what the chat template adds around a turn."""
    text = text.strip("\n")
    for marker in END_MARKERS:
        text = text.removesuffix(marker)
    return text.strip("\n")
