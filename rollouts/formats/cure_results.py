"""CURE's figures: `results/results-{rl,eval}-{model}-{data set}.txt`, text that its stages append to, step after step.

A step begins with sample.py's line `code response length: …`; execute.py's lines follow when the programs were run. An
evaluation begins with `code acc (average …`. No line says a step: of a training the file's first step is told and the
others count on from it; of evaluations, which are some steps apart, the told step is that of the last one, and of the
others nothing is known. Both are named alike: `code/acc`, `case/accumulate acc`, `BoN (4, 4)/acc`; `eval/` stands
before those of an evaluation. Source: sample.py:374, execute.py:233-256, eval.py:870-905 of Gen-Verse/CURE 69fe174.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.samples import LineProblem, MetricPoint

name = "cure-results"

FILE = re.compile(r"results-(?P<split>rl|eval)-.+\.txt\Z")
BEGINS = {"rl": b"code response length:", "eval": b"code acc (average"}
NUMBER = re.compile(r"(?:nan|-?inf|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\Z")
SETTING = re.compile(r"BoN setting \((?P<tuple>[^()]{1,40})\):\Z")
UNSAID = re.compile(r"\s*\([^()]*\)|\bestimated |\baverage ")
LONGEST_LINE = 1000  # bytes; CURE's have a hundred
MOST_STEPS = 100_000

Values = dict[str, float | None]


def sniff(filename: str, head: bytes) -> bool:
    return bool(FILE.match(filename.rpartition("/")[2])) and any(begin in head for begin in BEGINS.values())


def read(stream: BinaryIO, told: DumpContext) -> Iterator[MetricPoint | LineProblem]:
    """A point for each step; of evaluations the last one's. Raises UnreadableDump when there is no figure at all."""
    named = FILE.match(told.filename.rpartition("/")[2])
    split = named["split"] if named else "rl"
    blocks: list[Values] = []
    yield from _blocks(_lines(stream), split, blocks)
    if not any(blocks):
        raise UnreadableDumpError("It holds none of the figures that CURE writes.")
    first = told.step or 0
    steps = [(first, blocks[-1])] if split == "eval" else list(enumerate(blocks, first))
    yield from (MetricPoint(step, values, told.step_kind) for step, values in steps if values)


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: stream.readline(LONGEST_LINE), b"")


def _blocks(lines: Iterable[bytes], split: str, made: list[Values]) -> Iterator[LineProblem]:
    """Fills `made` with the figures of each step; yields the lines that hold none. Raises UnreadableDump."""
    setting = ""
    for number, line in enumerate(lines, 1):
        text = line.decode("utf-8", "replace").strip()
        if line.startswith(BEGINS[split]) or not made:
            if len(made) == MOST_STEPS:
                raise UnreadableDumpError(f"It holds more than {MOST_STEPS:,} steps.")
            made.append({})
        if found := SETTING.match(text):
            setting = f"BoN ({found['tuple']})/"
        elif figures := dict(_figures(text)):
            prefix = ("eval/" if split == "eval" else "") + (setting if text.startswith("acc:") else "")
            made[-1] |= {prefix + key: value for key, value in figures.items()}
        elif text:
            yield LineProblem(number, "holds no figure that CURE writes")


def _figures(text: str) -> Iterator[tuple[str, float]]:
    for part in text.split(", "):
        words, _, number = part.rpartition(": ")
        if words and NUMBER.match(number):
            yield _named(words), float(number)


def _named(words: str) -> str:
    """One name for what training and evaluation say in different words: a `unit test` is a `case`."""
    words = UNSAID.sub("", words).strip().replace("unit test", "case")
    role, _, rest = words.partition(" ")
    return f"{role}/{rest}" if role in ("code", "case") and rest else words
