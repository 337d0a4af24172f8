"""Computes text properties of samples, which lists filter by, from the first and last 8 KB of each response.

The rules prefer precision to recall: a property that is shown should be true.

trunc?        no reason for the end of generation was logged, and the response looks cut off (`find_cut_responses`)
repetition    the response ends in four or more equal pieces of text, 64 characters or more in total, or 32 characters
              from its end or from the middle of its beginning occur eight times
language-mix  eight letters or more, in the first and last 1 KB, of a script other than Latin and Greek that the prompt
              does not use
empty         only white space
duplicate     has the same text as another response of its group
no-marker     no answer marker (`####`, `\\boxed`, `Answer:`) in the last 2 KB, where 80 % of the step have one
tool          calls a tool, in its messages or in its text (trainers flatten calls and results into text)
tokens        its token ids were recorded
no-text       only its tokens were recorded
guided        a guidance rule selected it in the training: the trainer logged (`guidance`) which ones
filtered      the trainer logged (`filtered`) that it dropped the sample and did not train on it
other-answer  the last answer in the text differs from the ground truth, see `answer_check.py`. With a correct result,
              which follows from the rule of the project, the sample is an answer mismatch
garbled       damaged characters, text in the wrong encoding, or noise, see `garbled.py`
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from django.utils.translation import gettext_noop as N_

from rollouts.samples.responses.garbled import find_garbled

# Stored in the database. Only append to them.
TEXT_PROPERTY_BITS: dict[str, int] = {
    "trunc?": 1, "repetition": 2, "language-mix": 4, "empty": 8, "duplicate": 16, "no-marker": 32, "tokens": 64,
    "no-text": 128, "tool": 256, "filtered": 512, "other-answer": 1024, "garbled": 2048, "guided": 4096,
}  # fmt: skip


# Increases when index rows get another property, an answer or templates, or a step another statistic. Older steps are
# computed again in the background, see `rollouts/indexing/outdated.py`. Until then these values are unknown.
PROPERTIES_VERSION: Final = 3
ROWS_VERSION: Final = 1  # the last one that changed index rows


class PropertyDescription(NamedTuple):
    """One property as pages offer it: `name` is its key in the counts of a step, `title` the label of its filter chip,
    `about` its full description, `unit` what is counted (`samples` or `groups`)."""

    name: str
    title: str
    about: str
    unit: str = "samples"

    @property
    def term(self) -> str:
        """The term of the query language that finds it."""
        return "no:marker" if self.name == "no-marker" else f"is:{self.name}"


PROPERTY_CATALOG: Final[tuple[PropertyDescription, ...]] = (
    PropertyDescription(
        "answer-mismatch",
        N_("Answer mismatch"),
        N_("counted as correct, but the last answer in the text is not the ground truth"),
    ),
    PropertyDescription("truncated", N_("Truncated"), N_("stopped by the length limit (recorded or inferred)")),
    PropertyDescription("trunc?", N_("Truncated?"), N_("looks cut off; the run does not record why generation ended")),
    PropertyDescription(
        "no-marker", N_("No answer marker"), N_("no answer marker, although most samples of this step have one")
    ),
    PropertyDescription("repetition", N_("Repetition"), N_("ends in repetition")),
    PropertyDescription("language-mix", N_("Language mix"), N_("uses a writing system that the prompt does not use")),
    PropertyDescription("garbled", N_("Garbled"), N_("damaged characters, wrong encoding or a jumble of scripts")),
    PropertyDescription("empty", N_("Empty"), N_("only white space")),
    PropertyDescription("tool", N_("Tool calls"), N_("calls a tool")),
    PropertyDescription("filtered", N_("Filtered"), N_("dropped by the trainer's filter, not trained on")),
    PropertyDescription("guided", N_("Guidance rule"), N_("selected by a guidance rule in the training")),
    PropertyDescription("duplicate", N_("Duplicate"), N_("same text as another response in the group")),
    PropertyDescription(
        "zerovar", N_("Zero-variance groups"), N_("all responses have the same score: no gradient"), "groups"
    ),
    PropertyDescription("solve-all", N_("Solved by all"), N_("every response of the group is correct"), "groups"),
    PropertyDescription("solve-none", N_("Solved by none"), N_("no response of the group is correct"), "groups"),
)

# Computed by comparison with the other responses of a step.
COMPARED: Final = TEXT_PROPERTY_BITS["trunc?"] | TEXT_PROPERTY_BITS["duplicate"] | TEXT_PROPERTY_BITS["no-marker"]
EDGE = 8192  # characters that are scanned at each end
SCRIPT_EDGE = 1024  # characters at each end that are scanned for scripts
ANSWER_EDGE = 2048  # characters at the end that are scanned for an answer marker
NEEDLE = 32
HABIT_SHARE = 0.8  # share of the responses of a step that makes a habit
MIN_HABIT_RESPONSES = 8  # responses that a step needs for a habit
MIN_FOREIGN_LETTERS = 8
ENDS = re.compile(r"""[.!?…。！？)\]}>"'`*|$\d」』）】]\s*\Z""")

PropertyBits = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]

# Scripts by the first byte of a UTF-8 letter. Symbols, Greek, punctuation and emoji have no script.
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
    """Traits of each response alone, one entry per sample. `compute_text_properties` compares them within a step."""

    bits: PropertyBits
    has_marker: Flags
    has_ending: Flags
    chars: npt.NDArray[np.int64]


def scan_responses(prompts: Sequence[str], responses: Sequence[str]) -> ResponseScan:
    """Returns the scan of one batch of prompts and responses."""
    tails = [response if len(response) <= EDGE else response[-EDGE:] for response in responses]
    heads = [response if len(response) <= EDGE else response[:EDGE] for response in responses]
    bits = TEXT_PROPERTY_BITS["repetition"] * np.fromiter(map(is_repetitive, heads, tails), np.uint32, len(tails))
    is_empty = (not tail or tail.isspace() for tail in tails)
    bits |= TEXT_PROPERTY_BITS["empty"] * np.fromiter(is_empty, np.uint32, len(tails))
    bits |= TEXT_PROPERTY_BITS["garbled"] * find_garbled(responses).astype(np.uint32)
    bits |= TEXT_PROPERTY_BITS["language-mix"] * find_language_mix(prompts, heads, tails)
    markers = [has_answer_marker(tail[-ANSWER_EDGE:]) for tail in tails]
    endings = [ENDS.search(tail, max(0, len(tail) - 8)) is not None for tail in tails]
    chars = np.fromiter(map(len, responses), np.int64, len(responses))
    return ResponseScan(bits.astype(np.uint32), np.array(markers, np.bool_), np.array(endings, np.bool_), chars)


def is_repetitive(head: str, tail: str) -> bool:
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


def has_answer_marker(end: str) -> bool:
    # One character is found faster than several; most texts have no `#` and no backslash.
    return "Answer:" in end or ("\\" in end and "\\boxed" in end) or ("#" in end and "####" in end)


def has_tool_call(response: str, messages: Any) -> bool:
    if "<" in response and ("<tool_call>" in response or "<tool_response>" in response):
        return True
    if "\ntool\n" in response and "\nassistant\n" in response.partition("\ntool\n")[2]:
        return True
    if not isinstance(messages, list):  # a body stores messages that are nested too deep as a text
        return False
    return any(message.get("tool_calls") or message.get("role") == "tool" for message in messages)


def find_language_mix(prompts: Sequence[str], heads: Sequence[str], tails: Sequence[str]) -> npt.NDArray[np.uint32]:
    """Returns 1 for each response that uses a script that its prompt does not use."""
    result = np.zeros(len(tails), np.uint32)
    rows = [
        row
        for row, (head, tail) in enumerate(zip(heads, tails, strict=True))
        if not tail.isascii() or not (head is tail or head.isascii())
    ]
    if not rows:
        return result
    response_letters = count_letters([heads[row][:SCRIPT_EDGE] + tails[row][-SCRIPT_EDGE:] for row in rows])
    prompt_scripts = count_letters([prompts[row][:EDGE] for row in rows]) > 0
    prompt_scripts[:, HAN] |= prompt_scripts[:, KANA]  # Japanese is written with both
    result[rows] = ((response_letters >= MIN_FOREIGN_LETTERS) & ~prompt_scripts).any(axis=1)
    return result


def count_letters(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """Returns letters per text and script, shape (len(texts), 7). Column 0 is always 0."""
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
    scan: ResponseScan, twins: npt.NDArray[np.int64], tokens: Sequence[int | None], truncated: Sequence[bool | None]
) -> PropertyBits:
    """Returns the property bits of all samples of a step (or of its only dump). `twins` are equal for equal responses
    of one group. `tokens` are the recorded lengths, `truncated` the recorded truncation; None if unknown."""
    bits = scan.bits & ~np.uint32(COMPARED)
    nonempty = (bits & (TEXT_PROPERTY_BITS["empty"] | TEXT_PROPERTY_BITS["no-text"])) == 0
    bits[find_repeated(twins) & nonempty] |= TEXT_PROPERTY_BITS["duplicate"]
    habit = nonempty.sum() >= MIN_HABIT_RESPONSES and scan.has_marker.sum() >= HABIT_SHARE * nonempty.sum()
    if habit:
        bits[~scan.has_marker & nonempty] |= TEXT_PROPERTY_BITS["no-marker"]
    unknown = np.fromiter((value is None for value in truncated), np.bool_, len(truncated))
    bits[find_cut_responses(scan, nonempty, tokens, bool(habit)) & unknown] |= TEXT_PROPERTY_BITS["trunc?"]
    return bits


def find_repeated(values: npt.NDArray[np.int64]) -> Flags:
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray(counts[which] > 1)


def find_cut_responses(scan: ResponseScan, nonempty: Flags, tokens: Sequence[int | None], habit: bool) -> Flags:
    """Returns True for each response that looks cut off.

    With token counts: two or more responses have exactly the maximum length of the step, it is at least 32, and the
    response has no ending or the maximum is at least twice the median. Without token counts: the response has no
    ending and no marker although 80 % have both, and is longer than the median.
    """
    if len(tokens) and all(count is not None for count in tokens):
        lengths = np.array(tokens, np.int64)
        longest = lengths == lengths.max()
        is_far = lengths.max() >= 2 * np.median(lengths)
        shared = longest.sum() >= 2 and lengths.max() >= NEEDLE
        return np.asarray(longest & nonempty & shared & (~scan.has_ending | is_far))
    ends = scan.has_ending & nonempty
    if not habit or ends.sum() < HABIT_SHARE * nonempty.sum():
        return np.zeros(len(nonempty), np.bool_)
    return nonempty & ~scan.has_ending & ~scan.has_marker & (scan.chars > np.median(scan.chars))
