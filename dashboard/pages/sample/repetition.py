"""Finds text that repeats: lines, sentences, words or other characters that occur several times in a row."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dashboard.pages.sample import loops

# A sentence with the space after it. A full stop inside a number or a name does not end a sentence.
SENTENCE = re.compile(r"[^。！？.!?]*(?:[.!?](?=\S)[^。！？.!?]*)*(?:[。！？]+|[.!?]+(?=\s|$)\s*)?")
WORD = re.compile(r"\S+\s*|\s+")
MAX_PERIOD = 24  # pieces that repeat together
MIN_REPETITIONS = 4
MIN_COLLAPSED_CHARS = 60
MIN_SPLIT_CHARS = 160  # shorter lines are not split into sentences, shorter sentences not into words
MAX_LINES = 100_000
MAX_SPLIT_CHARS = 200_000  # splitting takes 0.2 ms per 1,000 characters; in longer texts only loops are found
VISIBLE_END_CHARS = 200  # never collapsed: the end of a response is what readers want to see


@dataclass(frozen=True, slots=True)
class Repetition:
    """`text[start:end]` repeats the text before it; `times` includes that first occurrence."""

    start: int
    end: int
    times: int


def find_repetitions(text: str) -> list[Repetition]:
    """The ranges to collapse, in order. First occurrences and the end of the text stay visible."""
    lines = text.split("\n", MAX_LINES)
    lengths = get_lengths(lines) + 1  # with the line break
    is_cut = len(lines) > MAX_LINES
    if is_cut:
        lines, lengths = lines[:-1], lengths[:-1]
    else:
        lengths[-1] -= 1
    repetitions = find_repeated_pieces(lines, lengths)
    if is_cut and repetitions and repetitions[-1].end == lengths.sum():
        repetitions[-1] = extend_repetition(text, repetitions[-1])
    left = MAX_SPLIT_CHARS
    for start, end in find_uncovered_pieces(repetitions, lengths):
        left -= end - start
        repetitions += find_repetitions_in_line(text, start, end) if left >= 0 else find_text_loops(text, start, end)
    repetitions.sort(key=lambda repetition: repetition.start)
    shortened = [shorten_repetition(repetition, len(text)) for repetition in repetitions]
    return [repetition for repetition in shortened if repetition.end - repetition.start >= MIN_COLLAPSED_CHARS]


def extend_repetition(text: str, repetition: Repetition) -> Repetition:
    """Adds what follows and is equal to the last pass: only the first lines of a text are compared by number."""
    each, rest = divmod(repetition.end - repetition.start, repetition.times - 1)
    if rest:  # passes that differ in the space at their ends
        return repetition
    unit = re.escape(text[repetition.end - each : repetition.end])
    following = re.compile(f"(?:{unit})*").match(text, repetition.end)
    end = following.end() if following else repetition.end
    return Repetition(repetition.start, end, repetition.times + (end - repetition.end) // each)


def find_repetitions_in_line(text: str, start: int, end: int) -> list[Repetition]:
    """Repeated sentences of a long line, and repeated words of its long sentences."""
    sentences = SENTENCE.findall(text, start, end)
    lengths = get_lengths(sentences)
    repetitions = find_repeated_pieces(sentences, lengths, start)
    for first, last in find_uncovered_pieces(repetitions, lengths, start):
        words = WORD.findall(text, first, last)
        found = find_repeated_pieces(words, get_lengths(words), first)
        repetitions += found or find_text_loops(text, first, last)
    return repetitions


def find_text_loops(text: str, start: int, end: int) -> list[Repetition]:
    return [
        Repetition(start + first + period, start + first + period * passes, passes)
        for first, period, passes in loops.iter_line_loops(text[start:end])
    ]


def get_lengths(pieces: Sequence[str]) -> np.ndarray:
    return np.fromiter(map(len, pieces), np.int64, len(pieces))


def shorten_repetition(repetition: Repetition, length: int) -> Repetition:
    """Without those repetitions that reach into the visible end of a text of this length."""
    over = repetition.end - (length - VISIBLE_END_CHARS)
    if over <= 0:
        return repetition
    each = (repetition.end - repetition.start) / (repetition.times - 1)
    end = max(repetition.start, round(repetition.end - each * -(-over // each)))
    return Repetition(repetition.start, end, repetition.times)


def find_repeated_pieces(pieces: Sequence[str], lengths: np.ndarray, offset: int = 0) -> list[Repetition]:
    """Repetitions of complete pieces, in order; `offset` is the start of the first piece in the text."""
    periods = find_periods(number_pieces(pieces))
    starts = [offset, *(np.cumsum(lengths) + offset).tolist()] if periods else []
    return [
        Repetition(starts[first + period], starts[first + period * times], times) for first, period, times in periods
    ]


def number_pieces(pieces: Sequence[str]) -> np.ndarray:
    """Equal numbers for equal pieces, compared without the space at their end. Empty if too few are equal."""
    stripped = list(map(str.rstrip, pieces))
    different = set(stripped)
    if len(different) > len(stripped) - MIN_REPETITIONS + 1:
        return np.empty(0, np.int64)
    numbers = {piece: number for number, piece in enumerate(different)}
    return np.fromiter(map(numbers.__getitem__, stripped), np.int64, len(stripped))


def find_periods(codes: np.ndarray) -> list[tuple[int, int, int]]:
    """[(first, period, times)] of what occurs at least `MIN_REPETITIONS` times in a row; short periods win."""
    taken = np.zeros(len(codes), bool)
    periods: list[tuple[int, int, int]] = []
    for period in range(1, min(MAX_PERIOD, len(codes) // MIN_REPETITIONS) + 1):
        if taken.all():
            break
        for first, length in find_true_runs(codes[period:] == codes[:-period]):
            times = (length + period) // period
            if times < MIN_REPETITIONS or taken[first : first + period * times].any():
                continue
            taken[first : first + period * times] = True
            periods.append((first, period, times))
    return sorted(periods)


def find_true_runs(equal: np.ndarray) -> list[tuple[int, int]]:
    """[(first, length)] of the runs of True that are long enough."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    long = ends - starts >= MIN_REPETITIONS - 1
    return list(zip(starts[long].tolist(), (ends - starts)[long].tolist(), strict=True))


def find_uncovered_pieces(
    repetitions: Sequence[Repetition], lengths: np.ndarray, offset: int = 0
) -> Iterator[tuple[int, int]]:
    """(start, end) of the pieces of more than `MIN_SPLIT_CHARS` characters that do not overlap a repetition."""
    long = np.flatnonzero(lengths > MIN_SPLIT_CHARS)
    ends = (np.cumsum(lengths) + offset)[long] if long.size else long
    for start, end in zip((ends - lengths[long]).tolist(), ends.tolist(), strict=True):
        if not any(repetition.start < end and start < repetition.end for repetition in repetitions):
            yield start, end
