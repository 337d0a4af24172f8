"""The prompts of a cell, which is one step of one run, and which prompts of several cells are the same.

By prompt key first. What that leaves is paired by task key, (data source, dataset index), where the index was logged
and names one prompt of the cell; a template that changed between two runs changes the key of every prompt.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollouts.models import Sample, Step
from rollouts.prompts import is_solved
from rollouts.samples import TEXT_PROPERTY_BITS, extract_final_answer, load_bodies

# What follows a marker to the end of its line is its answer, and the end of a response that rows keep has but one line.
MARKED = re.compile(r"(####\s*\S+)\s")
COLUMNS = (
    "pk",
    "prompt_key",
    "data_source",
    "score",
    "correct",
    "chars",
    "tokens",
    "truncated",
    "facets",
    "expected",
    "tail",
)
MOST_READ = 2000  # prompts of a cell whose bodies are read for their task keys

Task = tuple[str, int]


@dataclass(slots=True)
class ComparedPrompt:
    """The answers to one prompt in one cell; the lists go together, in the order of the group."""

    key: str
    source: str = ""
    ids: list[str] = field(default_factory=list)
    scores: list[float | None] = field(default_factory=list)
    correctness: list[bool | None] = field(default_factory=list)
    chars: list[int | None] = field(default_factory=list)
    tokens: list[int | None] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    ground_truths: set[str] = field(default_factory=set)
    truncation_inferred: bool = False

    def add(self, row: Mapping[str, Any]) -> None:
        looks_cut = bool(row["facets"] & TEXT_PROPERTY_BITS["trunc?"])
        self.source = self.source or row["data_source"]
        self.ids.append(row["pk"])
        self.scores.append(row["score"])
        self.correctness.append(row["correct"])
        self.chars.append(None if row["facets"] & TEXT_PROPERTY_BITS["no-text"] else row["chars"])
        self.tokens.append(row["tokens"])
        self.truncated.append(looks_cut if row["truncated"] is None else row["truncated"])
        self.truncation_inferred |= row["truncated"] is None
        self.answers.append(extract_tail_answer(row["tail"]))
        self.ground_truths |= {row["expected"]} - {""}

    @property
    def evaluated_count(self) -> int:
        return sum(right is not None for right in self.correctness)

    @property
    def correct_count(self) -> int:
        return sum(right is True for right in self.correctness)

    @property
    def solved(self) -> bool | None:
        return is_solved(self.correct_count, self.evaluated_count)

    @property
    def score(self) -> float | None:
        known = [score for score in self.scores if score is not None]
        return sum(known) / len(known) if known else None

    @property
    def majority_accuracy(self) -> float | None:
        """The share of right ones among the answers that were given most often; None where no answer is known."""
        votes = Counter(
            text for text, right in zip(self.answers, self.correctness, strict=True) if text and right is not None
        )
        if not votes:
            return None
        chosen = {text for text, count in votes.items() if count == max(votes.values())}
        rights = [right for text, right in zip(self.answers, self.correctness, strict=True) if text in chosen]
        return sum(right is True for right in rights) / sum(right is not None for right in rights)

    @property
    def example_id(self) -> str:
        """The first sample that came out as most of them did."""
        said = (pk for pk, right in zip(self.ids, self.correctness, strict=True) if right is self.solved)
        return next(said, self.ids[0])


@dataclass(slots=True)
class Pairing:
    """`pairs` hold one prompt per cell; `left` are those of each cell that some other cell lacks."""

    pairs: list[tuple[ComparedPrompt, ...]]
    by_task: int
    unpaired: list[list[ComparedPrompt]]


def extract_tail_answer(tail: str) -> str:
    """The answer in the end of a response, see `answers.py`; empty where there is none."""
    return extract_final_answer(MARKED.sub(r"\1\n", tail), {})


def prompts(step: Step) -> dict[str, ComparedPrompt]:
    """By prompt key, each trajectory once by its last sample."""
    found: dict[str, ComparedPrompt] = {}
    rows = Sample.objects.filter(step=step, visible=True, final=True).order_by("prompt_key", "group", "index", "pk")
    for row in rows.values(*COLUMNS).iterator(chunk_size=5000):
        found.setdefault(row["prompt_key"], ComparedPrompt(row["prompt_key"])).add(row)
    return found


def pair_prompts(steps: Sequence[Step]) -> Pairing:
    """The prompts that all of these steps have."""
    cells = [prompts(step) for step in steps]
    shared = dict.fromkeys(key for key in cells[0] if all(key in cell for cell in cells[1:]))
    pairs = [tuple(cell[key] for cell in cells) for key in shared]
    left = [[prompt for key, prompt in cell.items() if key not in shared] for cell in cells]
    if not all(left):
        return Pairing(pairs, 0, left)
    named = [tasks(rest) for rest in left]
    again = [task for task in named[0] if all(task in cell for cell in named[1:])]
    pairs += [tuple(cell[task] for cell in named) for task in again]
    taken = [{cell[task].key for task in again} for cell in named]
    left = [[one for one in rest if one.key not in gone] for rest, gone in zip(left, taken, strict=True)]
    return Pairing(pairs, len(again), left)


def tasks(left: Iterable[ComparedPrompt]) -> dict[Task, ComparedPrompt]:
    """Those whose dataset index was logged, without indexes that name several prompts."""
    wanted = {prompt.ids[0]: prompt for prompt, _ in zip(left, range(MOST_READ), strict=False)}
    read = load_bodies(list(Sample.objects.filter(pk__in=wanted)))
    named: dict[Task, list[ComparedPrompt]] = defaultdict(list)
    for pk, body in read.items():
        if (index := dataset_index(body.extras)) is not None:
            named[wanted[pk].source, index].append(wanted[pk])
    return {task: found[0] for task, found in named.items() if len(found) == 1}


def dataset_index(extras: Mapping[str, Any]) -> int | None:
    """Which row of its data set a prompt is, where the trainer wrote that down."""
    row = extras.get("extra_info")
    told = extras.get("dataset_index", row.get("index") if isinstance(row, dict) else None)
    whole = isinstance(told, int | float) and not isinstance(told, bool) and float(told).is_integer()
    return int(told) if whole else None
