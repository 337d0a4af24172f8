"""The answer that a response ends in, as reward functions look for it: to put equal answers together, never to judge.

What a reward function itself logged (`pred`) comes first; else the last `\\boxed{…}`, the last
`Answer: …`, the last `#### …`. A heading in Markdown may begin with `####` too, so that marker comes last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

LOGGED: Final = ("pred", "extracted_answer")
NOTHING: Final = ("", "[INVALID]", "None")  # `[INVALID]` is what math_dapo logs where it found no answer
MOST: Final = 200
BOXED: Final = "\\boxed{"
AFTER_WORD = re.compile(r"answer[ \t]*[:：][ \t]*([^\n]{0,400})", re.IGNORECASE)
ENDING = re.compile(r"(?:<\|[^|<>\s]{1,40}\|>|</s>|<eos>)\Z")  # a token that ends a turn, as some trainers print it
LONGEST: Final = 44  # characters of such a token
THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")


def extract_final_answer(response: str, logged: Mapping[str, Any]) -> str:
    """The answer in the form in which equal ones are equal; empty where there is none. `logged`: the reward
    function's own keys."""
    for name in LOGGED:
        told = logged.get(name)
        if isinstance(told, str | int | float):
            return comparable(f"{told:g}" if isinstance(told, float) else str(told))
    return comparable(boxed(response) or after_word(response) or after_marker(response))


def boxed(response: str) -> str:
    """What the last `\\boxed{}` holds, braces in it paired; empty where it is not closed soon."""
    start = response.rfind(BOXED) + len(BOXED)
    if start < len(BOXED):
        return ""
    depth = 1
    for at in range(start, min(len(response), start + 2 * MOST)):
        depth += {"{": 1, "}": -1}.get(response[at], 0)
        if not depth:
            return response[start:at]
    return ""


def after_word(response: str) -> str:
    *_, last = ["", *AFTER_WORD.findall(response)]
    return str(last)


def after_marker(response: str) -> str:
    _, marker, rest = response.rpartition("####")
    return rest[: 2 * MOST].partition("\n")[0] if marker else ""


def comparable(answer: str) -> str:
    """Without what does not change an answer: what ends the turn, outer space, `$`, a full stop, commas between
    thousands."""
    bare = unended(answer.lstrip()[: 4 * MOST]).replace("\\$", "").strip(" \t\r\n$*`").rstrip(".").strip(" $*`")
    bare = " ".join(bare.split())
    if THOUSANDS.fullmatch(bare):
        bare = bare.replace(",", "")
    return "" if bare in NOTHING else bare[:MOST]


def unended(answer: str) -> str:
    """Without the tokens that end the turn, one after the other: a reward function may log a whole response."""
    bare = answer.rstrip()
    while found := ENDING.search(bare, max(0, len(bare) - LONGEST)):
        bare = bare[: found.start()].rstrip()
    return bare
