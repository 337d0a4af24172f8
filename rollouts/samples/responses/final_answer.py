"""Extracts the final answer of a response. It is used to group equal answers, never to evaluate correctness.

Order of preference: the answer that the reward function logged (`pred`, `extracted_answer`), the last `\\boxed{…}`,
the last `Answer: …`, the last `#### …`. `####` is last because it also starts a Markdown heading.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

LOGGED: Final = ("pred", "extracted_answer")
NO_ANSWER: Final = ("", "[INVALID]", "None")  # math_dapo logs `[INVALID]` if it finds no answer
MAX_ANSWER_CHARS: Final = 200
BOXED: Final = "\\boxed{"
BRACE = re.compile("[{}]")
WORDED_ANSWER = re.compile(r"answer[ \t]*[:：][ \t]*([^\n]{0,400})", re.IGNORECASE)
END_TOKEN = re.compile(r"(?:<\|[^|<>\s]{1,40}\|>|</s>|<eos>)\Z")  # an end-of-turn token as text
MAX_END_TOKEN_CHARS: Final = 44
THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")


def extract_final_answer(response: str, logged: Mapping[str, Any]) -> str:
    """Returns the normalized answer, empty if there is none. `logged`: the keys of the reward function."""
    for name in LOGGED:
        answer = logged.get(name)
        if isinstance(answer, str | int | float):
            return normalize_answer(f"{answer:g}" if isinstance(answer, float) else str(answer))
    return normalize_answer(find_boxed_answer(response) or find_worded_answer(response) or find_marked_answer(response))


def find_boxed_answer(response: str) -> str:
    """Returns the content of the last `\\boxed{}` with balanced braces that closes within 400 characters."""
    start = response.rfind(BOXED) + len(BOXED)
    if start < len(BOXED):
        return ""
    depth = 1
    for brace in BRACE.finditer(response, start, start + 2 * MAX_ANSWER_CHARS):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return response[start : brace.start()]
    return ""


def find_worded_answer(response: str) -> str:
    last_line = response[response.rfind("\n", 0, max(0, response.rfind("nswer"))) + 1 :]
    for text in (last_line, response):  # the last line with the word usually has it, and a search takes long
        if matches := WORDED_ANSWER.findall(text):
            return str(matches[-1])
    return ""


def find_marked_answer(response: str) -> str:
    _, marker, rest = response.rpartition("####")
    return rest[: 2 * MAX_ANSWER_CHARS].partition("\n")[0] if marker else ""


def normalize_answer(answer: str) -> str:
    """Removes end-of-turn tokens, outer white space, `$`, a final full stop and thousands separators."""
    bare = strip_end_tokens(answer.lstrip()[: 4 * MAX_ANSWER_CHARS]).replace("\\$", "")
    bare = " ".join(bare.strip(" \t\r\n$*`").rstrip(".").strip(" $*`").split())
    if THOUSANDS.fullmatch(bare):
        bare = bare.replace(",", "")
    return "" if bare in NO_ANSWER else bare[:MAX_ANSWER_CHARS]


def strip_end_tokens(answer: str) -> str:
    """Removes all end-of-turn tokens at the end: a reward function may log a full response."""
    bare = answer.rstrip()
    while match := END_TOKEN.search(bare, max(0, len(bare) - MAX_END_TOKEN_CHARS)):
        bare = bare[: match.start()].rstrip()
    return bare
