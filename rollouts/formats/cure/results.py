"""CURE's metrics: `results/results-{rl,eval}-{model}-{data set}.txt`, text that its stages append to at each step.

A step begins with the line `code response length: …` of sample.py; the lines of execute.py follow after the programs
were run. In a file without sample.py's lines, a step begins with execute.py's first one, `code acc: …`. An evaluation
begins with `code acc (average …`. No line has a step. For a training, the step of the upload is that of the first
block, and the others count from it. For evaluations, which are some steps apart, it is the step of the last one; the
steps of the others are unknown, so they are not read. Both have the same names: `code/acc`, `case/accumulate acc`,
`BoN (4, 4)/acc`; those of an evaluation have the prefix `eval/`. Source: sample.py:374, execute.py:233-256,
eval.py:870-905 of Gen-Verse/CURE 69fe174.
"""

import re
from collections.abc import Iterator
from typing import BinaryIO

from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.samples import LineProblem, MetricPoint

name = "cure-results"

FILE = re.compile(r"results-(?P<split>rl|eval)-.+\.txt\Z")
FIRST_LINES = {"rl": b"code response length:", "eval": b"code acc (average"}
FIRST_EXECUTED_LINE, EXECUTED_METRIC = b"code acc:", "code/acc"  # execute.py's, once per step
NUMBER = re.compile(r"(?:nan|-?inf|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\Z")
SETTING = re.compile(r"BoN setting \((?P<tuple>[^()]{1,40})\):\Z")
IGNORED_WORDS = re.compile(r"\s*\([^()]*\)|\bestimated |\baverage ")
MAX_LINE_BYTES = 1000  # lines of CURE have about 100
MAX_STEPS = 100_000

Values = dict[str, float | None]


def sniff(filename: str, head: bytes) -> bool:
    return bool(FILE.match(filename.rpartition("/")[2])) and any(
        begin in head for begin in (*FIRST_LINES.values(), FIRST_EXECUTED_LINE)
    )


def read(stream: BinaryIO, context: DumpContext) -> Iterator[MetricPoint | LineProblem]:
    """Yields a point per step; of evaluations only the last. Raises UnreadableDumpError if there is no metric."""
    match = FILE.match(context.filename.rpartition("/")[2])
    split = match["split"] if match else "rl"
    blocks: list[Values] = []
    yield from read_blocks(stream, split, blocks)
    if not any(blocks):
        raise UnreadableDumpError("It holds no metrics of CURE.")
    first = context.step or 0
    steps = [(first, blocks[-1])] if split == "eval" else list(enumerate(blocks, first))
    yield from (MetricPoint(step, values, context.step_kind) for step, values in steps if values)


def read_blocks(stream: BinaryIO, split: str, blocks: list[Values]) -> Iterator[LineProblem]:
    """Appends the metrics of each step to `blocks`; yields a problem for each line without one."""
    setting, has_first_lines = "", False
    for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES), b""), 1):
        text = line.decode("utf-8", "replace").strip()
        is_first = line.startswith(FIRST_LINES[split])
        has_first_lines = has_first_lines or is_first
        is_next = (
            line.startswith(FIRST_EXECUTED_LINE) and not has_first_lines and EXECUTED_METRIC in (blocks or [{}])[-1]
        )
        if is_first or is_next or not blocks:
            if len(blocks) == MAX_STEPS:
                raise UnreadableDumpError(f"It holds more than {MAX_STEPS:,} steps.")
            blocks.append({})
        if match := SETTING.match(text):
            setting = f"BoN ({match['tuple']})/"
        elif metrics := dict(parse_metrics(text)):
            prefix = ("eval/" if split == "eval" else "") + (setting if text.startswith("acc:") else "")
            blocks[-1] |= {prefix + key: value for key, value in metrics.items()}
        elif text:
            yield LineProblem(number, "holds no metric of CURE")


def parse_metrics(text: str) -> Iterator[tuple[str, float]]:
    for part in text.split(", "):
        words, _, number = part.rpartition(": ")
        if words and NUMBER.match(number):
            yield normalize_name(words), float(number)


def normalize_name(words: str) -> str:
    """Returns one name for the different names of training and evaluation: a `unit test` is a `case`."""
    words = IGNORED_WORDS.sub("", words).strip().replace("unit test", "case")
    role, _, rest = words.partition(" ")
    return f"{role}/{rest}" if role in ("code", "case") and rest else words
