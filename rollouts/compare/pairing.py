"""Finds the same prompts in several steps.

Prompts are paired by prompt key, then by task key (data source, dataset index) if the index was logged and names one
prompt of the step: a prompt template that differs between two runs changes the key of every prompt.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollouts.compare.bootstrap import compute_pass_at_k
from rollouts.models import Sample, Step
from rollouts.prompts import is_solved
from rollouts.samples import TEXT_PROPERTY_BITS, extract_final_answer, load_bodies

# The answer is what follows a marker up to the end of its line, but the tail of an index row is a single line.
MARKED_ANSWER = re.compile(r"(####\s*\S+)\s")
COLUMNS = (
    "pk", "prompt_key", "data_source", "score", "correct", "chars", "tokens", "truncated", "facets", "expected", "tail",
)  # fmt: skip
MAX_TASK_PROMPTS = 2000  # of a step, whose bodies are read for their task keys

TaskKey = tuple[str, int]


@dataclass(slots=True)
class ComparedPrompt:
    """The answers to one prompt in one step. The lists have one entry per answer, in the order of the group."""

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
        looks_truncated = bool(row["facets"] & TEXT_PROPERTY_BITS["trunc?"])
        self.source = self.source or row["data_source"]
        self.ids.append(row["pk"])
        self.scores.append(row["score"])
        self.correctness.append(row["correct"])
        self.chars.append(None if row["facets"] & TEXT_PROPERTY_BITS["no-text"] else row["chars"])
        self.tokens.append(row["tokens"])
        self.truncated.append(looks_truncated if row["truncated"] is None else row["truncated"])
        self.truncation_inferred |= row["truncated"] is None
        self.answers.append(extract_tail_answer(row["tail"]))
        self.ground_truths |= {row["expected"]} - {""}

    @property
    def evaluated_count(self) -> int:
        return sum(correct is not None for correct in self.correctness)

    @property
    def correct_count(self) -> int:
        return sum(correct is True for correct in self.correctness)

    @property
    def accuracy(self) -> float | None:
        return self.correct_count / self.evaluated_count if self.evaluated_count else None

    @property
    def solved(self) -> bool | None:
        return is_solved(self.correct_count, self.evaluated_count)

    @property
    def score(self) -> float | None:
        return compute_mean(self.scores)

    @property
    def majority_accuracy(self) -> float | None:
        """The share of correct ones among the most frequent answers; None if no answer is known."""
        evaluated = [
            (answer, correct)
            for answer, correct in zip(self.answers, self.correctness, strict=True)
            if answer and correct is not None
        ]
        votes = Counter(answer for answer, _ in evaluated)
        max_votes = max(votes.values(), default=0)
        return compute_mean([correct for answer, correct in evaluated if votes[answer] == max_votes])

    @property
    def example_id(self) -> str:
        """The id of the first sample with the outcome of the majority."""
        typical = (pk for pk, correct in zip(self.ids, self.correctness, strict=True) if correct is self.solved)
        return next(typical, self.ids[0])

    def compute_pass_at_k(self, k: int) -> float | None:
        return compute_pass_at_k(k, self.correct_count, self.evaluated_count) if self.evaluated_count else None


@dataclass(slots=True)
class Pairing:
    """`pairs` have one prompt per step, `task_pair_count` pairs by task key. `unpaired` are the others of each step."""

    pairs: list[tuple[ComparedPrompt, ...]]
    task_pair_count: int
    unpaired: list[list[ComparedPrompt]]


def compute_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def extract_tail_answer(tail: str) -> str:
    """Returns the final answer at the end of a response, empty if there is none."""
    return extract_final_answer(MARKED_ANSWER.sub(r"\1\n", tail), {})


def load_prompts(rows: Sequence[Step]) -> dict[str, ComparedPrompt]:
    """Returns the prompts of a step by key. A trajectory counts once, by its last sample."""
    prompts: dict[str, ComparedPrompt] = {}
    samples = Sample.objects.visible().filter(step__in=rows, final=True)
    for row in samples.order_by("prompt_key", "group", "index", "pk").values(*COLUMNS).iterator(chunk_size=5000):
        prompts.setdefault(row["prompt_key"], ComparedPrompt(row["prompt_key"])).add(row)
    return prompts


def pair_prompts(steps: Sequence[Sequence[Step]]) -> Pairing:
    """Pairs the prompts that all of these steps have, each given by its rows. Raises StorageUnavailableError."""
    prompts = [load_prompts(rows) for rows in steps]
    shared_keys = dict.fromkeys(key for key in prompts[0] if all(key in others for others in prompts[1:]))
    pairs = [tuple(by_key[key] for by_key in prompts) for key in shared_keys]
    unpaired = [[prompt for key, prompt in by_key.items() if key not in shared_keys] for by_key in prompts]
    if not all(unpaired):
        return Pairing(pairs, 0, unpaired)
    tasks = [load_tasks(rest) for rest in unpaired]
    shared_tasks = [task for task in tasks[0] if all(task in others for others in tasks[1:])]
    pairs += [tuple(by_task[task] for by_task in tasks) for task in shared_tasks]
    paired_keys = [{by_task[task].key for task in shared_tasks} for by_task in tasks]
    unpaired = [
        [prompt for prompt in rest if prompt.key not in keys] for rest, keys in zip(unpaired, paired_keys, strict=True)
    ]
    return Pairing(pairs, len(shared_tasks), unpaired)


def load_tasks(prompts: Sequence[ComparedPrompt]) -> dict[TaskKey, ComparedPrompt]:
    """Returns the prompts whose dataset index was logged, without indexes that name several prompts."""
    by_sample = {prompt.ids[0]: prompt for prompt in prompts[:MAX_TASK_PROMPTS]}
    tasks: dict[TaskKey, list[ComparedPrompt]] = defaultdict(list)
    for pk, body in load_bodies(list(Sample.objects.filter(pk__in=by_sample))).items():
        if (index := get_dataset_index(body.extras)) is not None:
            tasks[by_sample[pk].source, index].append(by_sample[pk])
    return {task: same_task[0] for task, same_task in tasks.items() if len(same_task) == 1}


def get_dataset_index(extras: Mapping[str, Any]) -> int | None:
    """Returns the prompt's row in its dataset, if the trainer logged it."""
    info = extras.get("extra_info")
    index = extras.get("dataset_index", info.get("index") if isinstance(info, dict) else None)
    is_whole = isinstance(index, int | float) and not isinstance(index, bool) and float(index).is_integer()
    return int(index) if is_whole else None
