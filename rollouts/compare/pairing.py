"""Finds the same prompts in several steps.

Prompts are paired by prompt key, then by task key (data source, dataset index) if the index was logged and names one
prompt of the step: a prompt template that differs between two runs changes the key of every prompt.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q

from rollouts.compare.bootstrap import compute_pass_at_k
from rollouts.models import Dump, DuplicateSource, Sample, Step
from rollouts.prompts import is_solved
from rollouts.samples import TEXT_PROPERTY_BITS, BodyReader, extract_final_answer, parse_json

# The answer is what follows a marker up to the end of its line, but the tail of an index row is a single line.
MARKED_ANSWER = re.compile(r"(####\s*\S+)\s")
COLUMNS = (
    "pk", "prompt_key", "data_source", "score", "correct", "chars", "tokens", "truncated", "facets", "expected", "tail",
)  # fmt: skip
INDEX_COLUMNS = ("num.dataset_index", "json.extra_info", "more")  # of a body, which can have the dataset index

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
    by_sample = {prompt.ids[0]: prompt for prompt in prompts}
    tasks: dict[TaskKey, list[ComparedPrompt]] = defaultdict(list)
    for pk, index in load_dataset_indexes(list(by_sample)).items():
        tasks[by_sample[pk].source, index].append(by_sample[pk])
    return {task: same_task[0] for task, same_task in tasks.items() if len(same_task) == 1}


def load_dataset_indexes(ids: Sequence[str]) -> dict[str, int]:
    """Returns the dataset index by sample id, where it was logged: by the dump that owns the sample, else by another
    one that contains it."""
    owned = Sample.objects.filter(Q(pk__among=ids)).values_list("pk", "dump", "ordinal")
    repeated = DuplicateSource.objects.filter(Q(sample__among=ids)).values_list("sample", "dump", "ordinal")
    return read_dataset_indexes(repeated) | read_dataset_indexes(owned)


def read_dataset_indexes(places: Iterable[tuple[str, int, int]]) -> dict[str, int]:
    """`places` are (sample id, dump, ordinal). The texts are not read, so that all prompts of a step can be."""
    samples: dict[int, dict[int, str]] = defaultdict(dict)
    for sample, dump_id, ordinal in places:
        samples[dump_id][ordinal] = sample
    indexes: dict[str, int] = {}
    with closing(BodyReader(INDEX_COLUMNS)) as bodies:
        for dump in Dump.objects.filter(pk__in=samples).select_related("segment").order_by("segment_id", "pk"):
            by_ordinal = samples[dump.pk]
            ordinals = sorted(by_ordinal)
            rows = bodies.read(dump, ordinals).iter_rows(named=True)
            for ordinal, row in zip(ordinals, rows, strict=False):  # rows behind the end of the body are missing
                if (index := get_dataset_index(row)) is not None:
                    indexes[by_ordinal[ordinal]] = index
    return indexes


def get_dataset_index(row: Mapping[str, Any]) -> int | None:
    """Returns the prompt's row in its dataset, if the trainer logged it. `row` has those of `INDEX_COLUMNS` that the
    body has."""
    more = parse_json(row["more"])["extras"] if row.get("more") else {}
    index = more.get("dataset_index", row.get("num.dataset_index"))
    if index is None:
        text = row.get("json.extra_info")
        info = more.get("extra_info", parse_json(text) if text else None)
        index = info.get("index") if isinstance(info, dict) else None
    if isinstance(index, bool) or not isinstance(index, int | float) or not float(index).is_integer():
        return None
    return int(index)
