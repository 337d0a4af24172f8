"""Where a text says the same again and again: lines, sentences or words that repeat without anything between them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

# A sentence with the space behind it. Full stops inside numbers and names do not end one.
SENTENCE = re.compile(r"[^。！？.!?]*(?:[.!?](?=\S)[^。！？.!?]*)*(?:[。！？]+|[.!?]+(?=\s|$)\s*)?")
WORD = re.compile(r"\S+\s*|\s+")
MAX_PERIOD = 24  # pieces that repeat together
MIN_REPETITIONS = 4
MIN_COLLAPSED_CHARS = 60  # characters; folding less than that hides more than it tidies
MIN_SPLIT_CHARS = 160  # characters of a line that is looked into sentence by sentence, and of a sentence word by word
MAX_LINES = 100_000
MAX_SPLIT_CHARS = 200_000  # characters, since that costs 0.2 ms a thousand
VISIBLE_END_CHARS = 200  # characters that are always seen: how a response ends is what a reader came for


@dataclass(frozen=True, slots=True)
class Repetition:
    """`text[start:end]` repeats what stands before it; `times` counts the seen one too."""

    start: int
    end: int
    times: int


def find_repetitions(text: str) -> list[Repetition]:
    """Stretches to hide, in order. The first time stays in sight, and so does what ends the text."""
    lines = text.split("\n", MAX_LINES)
    lengths = lengths_of(lines) + 1  # with their ends; the last has none, and is none where there are too many
    if len(lines) > MAX_LINES:
        lines, lengths = lines[:-1], lengths[:-1]
    else:
        lengths[-1] -= 1
    found = find_repeated_pieces(lines, lengths)
    left = MAX_SPLIT_CHARS
    for start, end in find_uncovered_pieces(found, lengths):
        left -= end - start
        if left < 0:
            break
        found += find_repetitions_in_line(text, start, end)
    kept = (shorten_repetition(fold, len(text)) for fold in sorted(found, key=lambda fold: fold.start))
    return [fold for fold in kept if fold.end - fold.start >= MIN_COLLAPSED_CHARS]


def find_repetitions_in_line(text: str, start: int, end: int) -> list[Repetition]:
    """The same within one long line: sentences, and words within what has no full stop."""
    sentences = SENTENCE.findall(text, start, end)
    lengths = lengths_of(sentences)
    found = find_repeated_pieces(sentences, lengths, start)
    for first, last in find_uncovered_pieces(found, lengths, start):
        words = WORD.findall(text, first, last)
        found += find_repeated_pieces(words, lengths_of(words), first)
    return found


def lengths_of(pieces: Sequence[str]) -> np.ndarray:
    return np.fromiter(map(len, pieces), np.int64, len(pieces))


def shorten_repetition(fold: Repetition, length: int) -> Repetition:
    """The fold without what ends the text, by whole repetitions."""
    over = fold.end - (length - VISIBLE_END_CHARS)
    if over <= 0:
        return fold
    each = (fold.end - fold.start) / (fold.times - 1)
    return Repetition(fold.start, max(fold.start, round(fold.end - each * -(-over // each))), fold.times)


def find_repeated_pieces(pieces: Sequence[str], lengths: np.ndarray, offset: int = 0) -> list[Repetition]:
    """Folds of whole pieces, in order; `offset` is where the first begins in the text."""
    found = find_periods(number_pieces(pieces))
    ends = [offset, *(np.cumsum(lengths) + offset).tolist()] if found else []
    return [Repetition(ends[first + period], ends[first + period * times], times) for first, period, times in found]


def number_pieces(pieces: Sequence[str]) -> np.ndarray:
    """Equal pieces get equal numbers; space at their ends does not make them differ. Empty where too few are equal."""
    bare = list(map(str.rstrip, pieces))
    different = set(bare)
    if len(different) > len(bare) - MIN_REPETITIONS + 1:
        return np.empty(0, np.int64)
    known = {piece: at for at, piece in enumerate(different)}
    return np.fromiter(map(known.__getitem__, bare), np.int64, len(bare))


def find_periods(codes: np.ndarray) -> list[tuple[int, int, int]]:
    """(first, period, times) of what repeats at least `LEAST_TIMES` times, in order, shortest periods first served."""
    taken = np.zeros(len(codes), bool)
    found: list[tuple[int, int, int]] = []
    for period in range(1, min(MAX_PERIOD, len(codes) // MIN_REPETITIONS) + 1):
        if taken.all():
            break
        for first, length in find_true_runs(codes[period:] == codes[:-period]):
            times = (length + period) // period
            if times < MIN_REPETITIONS or taken[first : first + period * times].any():
                continue
            taken[first : first + period * times] = True
            found.append((first, period, times))
    return sorted(found)


def find_true_runs(same: np.ndarray) -> list[tuple[int, int]]:
    """(first, length) of each run of True that is long enough to matter."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    long = ends - starts >= MIN_REPETITIONS - 1
    return list(zip(starts[long].tolist(), (ends - starts)[long].tolist(), strict=True))


def find_uncovered_pieces(
    found: Sequence[Repetition], lengths: np.ndarray, offset: int = 0
) -> Iterator[tuple[int, int]]:
    """(start, end) of the pieces of more than `LONG` characters that no fold has a part of."""
    places = np.flatnonzero(lengths > MIN_SPLIT_CHARS).tolist()
    ends = np.cumsum(lengths) + offset if places else lengths
    for place in places:
        start, end = int(ends[place] - lengths[place]), int(ends[place])
        if not any(fold.start < end and start < fold.end for fold in found):
            yield start, end
