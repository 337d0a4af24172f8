"""Templates: openings and endings that many responses of a step share, without the numbers and names that vary.

The edges of a response are its first and its last 64 characters, masked and cut between words (24 in
a text without spaces, such as Chinese). The masks stand for a
number, with all its digits, separators and decimals, and for a name: a word that begins with one capital letter inside
of a sentence. A short response has only an opening. An edge that at least five responses of three groups have is a
template. A template has the same key in every step and run.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MIN_RESPONSES: Final = 5
MIN_GROUPS: Final = 3
MIN_LETTERS: Final = 8  # that are not masked: `Answer: #` is no template
MAX_TEMPLATES: Final = 24  # of a step, the largest
EDGE_CHARS: Final = 64
READ_CHARS: Final = 120  # that are read for an edge: masks are shorter than what they stand for
MIN_CUT_CHARS: Final = 40  # an edge is cut between words if that leaves so much
UNSPACED_CHARS: Final = 24  # of an edge without spaces between its words, such as Chinese
NUMBER_MASK, NAME_MASK = "\x01", "\x02"

NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
NAME = re.compile(r"[A-Z](?<=[^.!?:] [A-Z])[a-z]+")
# Of ASCII: each digit becomes a mask, white space and control characters, which could be taken for masks, a space.
MASKED_BYTES = bytes(32 if byte < 33 else 1 if chr(byte).isdigit() else byte for byte in range(128)) + bytes(128)


@dataclass(frozen=True, slots=True)
class Template:
    """`kind` is `opening` or `ending`, `text` has the masks, `members` are the rows of the responses."""

    kind: str
    text: str
    members: tuple[int, ...]
    groups: int
    score_mean: float | None

    @property
    def key(self) -> int:
        """A number of 40 bits."""
        return int.from_bytes(hashlib.sha256(f"{self.kind}\n{self.text}".encode()).digest()[:5], "big")


@dataclass(slots=True)
class StepTemplates:
    """The templates of a step, the largest first, and the template of the opening and of the ending of each row."""

    templates: list[Template]
    openings: list[int | None]
    endings: list[int | None]


def mask_edges(response: str) -> tuple[str, str]:
    """Returns the opening and the ending."""
    opening = mask_text(response[:READ_CHARS])
    if len(opening) <= EDGE_CHARS and len(response) <= READ_CHARS:
        return opening, ""
    opening, ending = opening[:EDGE_CHARS], mask_text(response[-READ_CHARS:])[-EDGE_CHARS:]
    end, start = opening.rfind(" "), ending.find(" ") + 1
    is_spaced = 0 < start <= EDGE_CHARS - MIN_CUT_CHARS
    return opening[: end if end >= MIN_CUT_CHARS else UNSPACED_CHARS], ending[start if is_spaced else -UNSPACED_CHARS :]


def mask_text(text: str) -> str:
    """Masks numbers and names, and replaces white space by single spaces."""
    if text.isascii():
        text = text.encode().translate(MASKED_BYTES).decode()
        if "\x01" in text:
            text = collapse_numbers(text)
        while "  " in text:
            text = text.replace("  ", " ")
        text = text.strip()
    else:
        text = NUMBER.sub(NUMBER_MASK, " ".join(text.split()))
    return text if text[1:].islower() else NAME.sub(NAME_MASK, text)


def collapse_numbers(text: str) -> str:
    """Joins the masks of the digits of a number. Without a regular expression, which takes longer."""
    for digits in ("\x01\x01", "\x01,\x01", "\x01.\x01"):
        while digits in text:
            text = text.replace(digits, NUMBER_MASK)
    return text


def find_templates(
    openings: Sequence[str], endings: Sequence[str], groups: Sequence[str], scores: Sequence[float | None]
) -> StepTemplates:
    """Finds the templates of a step from the edges of its responses. An ending that only responses with one opening
    have is not a template of its own."""
    members_by_opening = find_members(openings, groups)
    members_by_ending = {
        text: members
        for text, members in find_members(endings, groups).items()
        if len({openings[row] for row in members}) > 1 or openings[members[0]] not in members_by_opening
    }
    found: list[Template] = []
    for kind, members_by_text in (("opening", members_by_opening), ("ending", members_by_ending)):
        for text, members in members_by_text.items():
            known = [score for row in members if (score := scores[row]) is not None]
            mean = sum(known) / len(known) if known else None
            found.append(Template(kind, text, tuple(members), len({groups[row] for row in members}), mean))
    found.sort(key=lambda template: (-len(template.members), template.kind, template.text))
    result = StepTemplates(found[:MAX_TEMPLATES], [None] * len(openings), [None] * len(openings))
    for template in result.templates:
        keys, key = result.openings if template.kind == "opening" else result.endings, template.key
        for row in template.members:
            keys[row] = key
    return result


def find_members(edges: Sequence[str], groups: Sequence[str]) -> dict[str, list[int]]:
    """Returns the rows of each edge that enough responses and groups have."""
    if len(edges) < MIN_RESPONSES:
        return {}
    frequent = {text for text, count in Counter(edges).items() if count >= MIN_RESPONSES and is_distinctive(text)}
    members: dict[str, list[int]] = defaultdict(list)
    if frequent:
        for row, text in enumerate(edges):
            if text in frequent:
                members[text].append(row)
    return {text: rows for text, rows in members.items() if len({groups[row] for row in rows}) >= MIN_GROUPS}


def is_distinctive(edge: str) -> bool:
    return sum(map(str.isalpha, edge)) >= MIN_LETTERS
