"""Properties of samples that lists filter by, found at indexing from the first and last 8 KB of each response.

All are careful rather than complete: a facet that is shown should be true.

trunc?        nobody logged why generation ended, and the response looks cut off (`looks_cut`)
repetition    the response ends in four or more equal pieces of text, 64 characters or more in all, or 32 characters
              from its end or from the middle of its beginning come back eight times
language-mix  eight letters or more, in the first and last 1 KB, of a script other than Latin and Greek that the prompt
              does not use
empty         nothing but white space
duplicate     the same text as another response of its group
no-marker     no answer marker (`####`, `\\boxed`, `Answer:`) in the last 2 KB, where 80 % of the step have one
tool          it calls a tool: in its messages, or in its text as trainers flatten calls and results
tokens        its token ids were recorded
no-text       nothing but its tokens was recorded
filtered      its trainer says (`filtered`) that it dropped the sample and did not train on it
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from django.utils.translation import gettext_noop as N_

TEXT_PROPERTY_BITS: dict[str, int] = {
    "trunc?": 1,
    "repetition": 2,
    "language-mix": 4,
    "empty": 8,
    "duplicate": 16,
    "no-marker": 32,
    "tokens": 64,
    "no-text": 128,
    "tool": 256,
    "filtered": 512,
}


class PropertyDescription(NamedTuple):
    """One property as pages offer it: `name` in a step's counts, the `term` of the query language that finds it, what
    its chip is called, whether `samples` or `groups` are counted, and what it says in full."""

    name: str
    term: str
    title: str
    about: str
    of: str = "samples"


PROPERTY_CATALOG: Final[tuple[PropertyDescription, ...]] = (
    PropertyDescription(
        "truncated",
        "is:truncated",
        N_("Truncated"),
        N_("stopped by the length limit (recorded or inferred)"),
    ),
    PropertyDescription(
        "trunc?", "is:trunc?", N_("Truncated?"), N_("looks cut off; the run does not record why generation ended")
    ),
    PropertyDescription(
        "no-marker",
        "no:marker",
        N_("No answer marker"),
        N_("no answer marker, although most samples of this step have one"),
    ),
    PropertyDescription("repetition", "is:repetition", N_("Repetition"), N_("ends in repetition")),
    PropertyDescription(
        "language-mix", "is:language-mix", N_("Language mix"), N_("uses a writing system that the prompt does not use")
    ),
    PropertyDescription("empty", "is:empty", N_("Empty"), N_("only white space")),
    PropertyDescription("tool", "is:tool", N_("Tool calls"), N_("calls a tool")),
    PropertyDescription(
        "filtered", "is:filtered", N_("Filtered"), N_("dropped by the trainer's filter, not trained on")
    ),
    PropertyDescription("duplicate", "is:duplicate", N_("Duplicate"), N_("same text as another response in the group")),
    PropertyDescription(
        "zerovar",
        "is:zerovar",
        N_("Zero-variance groups"),
        N_("all responses have the same score: no gradient"),
        "groups",
    ),
    PropertyDescription(
        "solve-all", "is:solve-all", N_("Solved by all"), N_("every response of the group is correct"), "groups"
    ),
    PropertyDescription(
        "solve-none", "is:solve-none", N_("Solved by none"), N_("no response of the group is correct"), "groups"
    ),
)

# Found by looking at the other responses of a step.
COMPARED: Final = TEXT_PROPERTY_BITS["trunc?"] | TEXT_PROPERTY_BITS["duplicate"] | TEXT_PROPERTY_BITS["no-marker"]
EDGE = 8192  # characters looked at from each end
SCRIPT_EDGE = 1024  # characters from each end in which scripts are told apart
ANSWER_EDGE = 2048  # characters from the end in which an answer is looked for
NEEDLE = 32
MOST = 0.8  # share of a step's responses that makes a habit
MANY = 8  # responses in a step before habits are spoken of
FOREIGN_LETTERS = 8
ENDS = re.compile(r"""[.!?…。！？)\]}>"'`*|$\d」』）】]\s*\Z""")

PropertyBits = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]

# Scripts by the first byte of a UTF-8 letter; symbols, Greek, punctuation and emoji have none.
HAN, KANA, HANGUL, CYRILLIC, SEMITIC, INDIC = range(1, 7)
SCRIPTS = np.zeros(256, dtype=np.uint8)
SCRIPTS[0xE4:0xEA] = HAN
SCRIPTS[0xEA:0xEE] = HANGUL
SCRIPTS[0xD0:0xD4] = CYRILLIC
SCRIPTS[0xD6:0xDC] = SEMITIC
SCRIPTS[0xE0] = INDIC
KANA_SECOND = (0x81, 0x82, 0x83)


@dataclass(slots=True)
class ResponseScan:
    """What samples show by themselves; `settled` draws the conclusions once all are known. One entry per sample."""

    bits: PropertyBits
    marked: Flags
    ended: Flags
    chars: npt.NDArray[np.int64]


def scan_responses(prompts: Sequence[str], responses: Sequence[str]) -> ResponseScan:
    """Per-response facets of one batch."""
    tails = [response if len(response) <= EDGE else response[-EDGE:] for response in responses]
    heads = [response if len(response) <= EDGE else response[:EDGE] for response in responses]
    bits = TEXT_PROPERTY_BITS["repetition"] * np.fromiter(map(repeats, heads, tails), np.uint32, len(tails))
    bits |= TEXT_PROPERTY_BITS["empty"] * np.fromiter(
        (not tail or tail.isspace() for tail in tails), np.uint32, len(tails)
    )
    bits |= TEXT_PROPERTY_BITS["language-mix"] * mixed(prompts, heads, tails)
    marked = [has_marker(tail[-ANSWER_EDGE:]) for tail in tails]
    ended = [ENDS.search(tail, max(0, len(tail) - 8)) is not None for tail in tails]
    chars = np.fromiter(map(len, responses), np.int64, len(responses))
    return ResponseScan(bits.astype(np.uint32), np.array(marked, np.bool_), np.array(ended, np.bool_), chars)


def repeats(head: str, tail: str) -> bool:
    """True when the text goes round in circles."""
    end = len(tail)
    if end < 64:
        return False
    needle = tail[-NEEDLE:]
    if needle.isspace():
        return False
    before = tail.rfind(needle, 0, end - 1)
    if before >= 0:
        period = end - NEEDLE - before
        span = max(4 * period, 64)
        if span <= end and tail[end - span + period :] == tail[end - span : end - period]:
            return True
        if tail.count(needle) >= 8:
            return True
    middle = head[len(head) // 2 :][:NEEDLE]
    return not middle.isspace() and head.count(middle) >= 8


def has_marker(end: str) -> bool:
    return "Answer:" in end or "\\boxed" in end or "####" in end


def has_tool_call(response: str, messages: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a response calls a tool."""
    if "<tool_call>" in response or "<tool_response>" in response:
        return True
    if "\nassistant\n" in response.partition("\ntool\n")[2]:
        return True
    return any(one.get("tool_calls") or one.get("role") == "tool" for one in messages)


def mixed(prompts: Sequence[str], heads: Sequence[str], tails: Sequence[str]) -> npt.NDArray[np.uint32]:
    """1 where a response uses a script that its prompt does not."""
    found = np.zeros(len(tails), np.uint32)
    rows = [
        row
        for row, (head, tail) in enumerate(zip(heads, tails, strict=True))
        if not tail.isascii() or not (head is tail or head.isascii())
    ]
    if not rows:
        return found
    written = letters([heads[row][:SCRIPT_EDGE] + tails[row][-SCRIPT_EDGE:] for row in rows])
    asked = letters([prompts[row][:EDGE] for row in rows]) > 0
    asked[:, HAN] |= asked[:, KANA]  # Japanese is written with both
    found[rows] = ((written >= FOREIGN_LETTERS) & ~asked).any(axis=1)
    return found


def letters(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """Letters per text and script, shape (len(texts), 7); column 0 is not counted."""
    encoded = [text.encode("utf-8", "replace") for text in texts]
    joined = np.frombuffer(b"".join(encoded) + b"\0", dtype=np.uint8)
    at = np.flatnonzero(joined >= 0xD0)
    scripts = SCRIPTS[joined[at]]
    kana = np.flatnonzero(joined[at] == 0xE3)
    second = joined[at[kana] + 1]
    scripts[kana[(second >= KANA_SECOND[0]) & (second <= KANA_SECOND[-1])]] = KANA
    bounds = np.searchsorted(at, np.cumsum([0, *(len(text) for text in encoded)]))
    keys = np.repeat(np.arange(len(texts), dtype=np.int64) * 7, np.diff(bounds)) + scripts
    counts = np.bincount(keys, minlength=len(texts) * 7).reshape(-1, 7)
    counts[:, 0] = 0
    return counts


def compute_text_properties(
    seen: ResponseScan, twins: npt.NDArray[np.int64], tokens: Sequence[int | None], told: Sequence[bool | None]
) -> PropertyBits:
    """Facets of a whole step, or of its one dump. `twins` are equal for equal responses of one group, `tokens` are
    lengths where they are recorded, `told` what the trainer says of truncation."""
    bits = seen.bits & ~np.uint32(COMPARED)
    filled = (bits & (TEXT_PROPERTY_BITS["empty"] | TEXT_PROPERTY_BITS["no-text"])) == 0
    bits[repeated(twins) & filled] |= TEXT_PROPERTY_BITS["duplicate"]
    habit = filled.sum() >= MANY and seen.marked.sum() >= MOST * filled.sum()
    if habit:
        bits[~seen.marked & filled] |= TEXT_PROPERTY_BITS["no-marker"]
    unknown = np.fromiter((value is None for value in told), np.bool_, len(told))
    bits[looks_cut(seen, filled, tokens, bool(habit)) & unknown] |= TEXT_PROPERTY_BITS["trunc?"]
    return bits


def repeated(values: npt.NDArray[np.int64]) -> Flags:
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray(counts[which] > 1)


def looks_cut(seen: ResponseScan, filled: Flags, tokens: Sequence[int | None], habit: bool) -> Flags:
    """With token counts: two responses or more have exactly the step's greatest length, which is at least 32 and twice
    the median, or they lack an end. Without: no end and no marker, where 80 % have both, and longer than most."""
    if len(tokens) and all(count is not None for count in tokens):
        lengths = np.array(tokens, np.int64)
        longest = lengths == lengths.max()
        far = lengths.max() >= 2 * np.median(lengths)
        shared = longest.sum() >= 2 and lengths.max() >= NEEDLE
        return np.asarray(longest & filled & shared & (~seen.ended | far))
    ends = seen.ended & filled
    if not habit or ends.sum() < MOST * filled.sum():
        return np.zeros(len(filled), np.bool_)
    return filled & ~seen.ended & ~seen.marked & (seen.chars > np.median(seen.chars))
