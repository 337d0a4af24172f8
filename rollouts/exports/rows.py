"""The rows of each layout, in the order of the query, with counts of what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.contrib.auth.models import AnonymousUser, User

from rollouts.exports.conversation import EXAMPLE_COLUMNS, Example, build_example, flatten
from rollouts.exports.duplicates import NearDuplicates
from rollouts.exports.options import PAIRED, ExportOptions
from rollouts.exports.signals import Pair, Signals, find_pairs, group_samples, load_signals
from rollouts.models import Project, Sample, SampleQuerySet
from rollouts.samples import SampleBody, load_bodies

BATCH_SAMPLES: Final = 256
GROUP_ORDER: Final = ("step__step", "step", "group", "prompt_key", "index", "ordinal", "pk")

EVAL_PROMPT: Final = "prompts of an evaluation"
NO_TEXT: Final = "samples without text"
NO_SIGNAL: Final = "samples without score, label or rank"
ONE_RESPONSE: Final = "groups with nothing to compare"
TIES: Final = "pairs that are equal, or closer than the margin"
IDENTICAL: Final = "pairs of identical texts"
PER_PROMPT: Final = "more rows of a prompt than allowed"
NEAR_DUPLICATE: Final = "near-duplicates"
IMAGES: Final = "images (their messages are there)"

Row = dict[str, Any]


@dataclass(slots=True)
class ExportCounts:
    """What was written and left out so far. `samples` were read; `left_out` is by reason."""

    samples: int = 0
    rows: int = 0
    steps: dict[str, set[int]] = field(default_factory=dict)  # by run
    left_out: Counter[str] = field(default_factory=Counter)

    def add_samples(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            self.samples += 1
            self.steps.setdefault(sample.step.run.name, set()).add(sample.step.step)


@dataclass
class TrainingRows:
    """Builds rows of training data. Remembers prompts and hashes of texts, not the texts."""

    project: Project
    options: ExportOptions
    counts: ExportCounts
    reader: User | AnonymousUser | None = None
    eval_prompts: set[str] = field(default_factory=set)
    per_prompt: Counter[str] = field(default_factory=Counter)
    near_duplicates: NearDuplicates | None = None
    as_messages: bool | None = None

    def __post_init__(self) -> None:
        keys = Sample.objects.filter(step__run__project=self.project, step__split="eval").values_list("prompt_key")
        self.eval_prompts = {key for (key,) in keys.distinct().iterator(chunk_size=10_000)}
        if self.options.drop_near_duplicates:
            self.near_duplicates = NearDuplicates()
        if self.options.form != "auto":
            self.as_messages = self.options.form == "messages"

    def iterate(self, samples: SampleQuerySet) -> Iterator[list[Row]]:
        """Yields rows in batches. Raises StorageUnavailableError."""
        for batch in iterate_group_batches(samples):
            self.counts.add_samples(batch)
            wanted = [sample for sample in batch if self.is_training_prompt(sample)]
            bodies = {pk: body for pk, body in load_bodies(wanted, EXAMPLE_COLUMNS).items() if not body.textless}
            self.counts.left_out[NO_TEXT] += len(wanted) - len(bodies)
            wanted = [sample for sample in wanted if sample.pk in bodies]
            if self.as_messages is None and wanted:
                self.as_messages = bool(bodies[wanted[0].pk].messages)
            signals = load_signals(wanted, self.options, self.reader)
            rows = list(self.build_rows(wanted, bodies, signals))
            self.counts.rows += len(rows)
            yield rows

    def is_training_prompt(self, sample: Sample) -> bool:
        if sample.step.split != "eval" and sample.prompt_key not in self.eval_prompts:
            return True
        self.counts.left_out[EVAL_PROMPT] += 1
        return False

    def build_rows(self, samples: Sequence[Sample], bodies: dict[str, SampleBody], signals: Signals) -> Iterator[Row]:
        examples = {pk: build_example(body, as_messages=bool(self.as_messages)) for pk, body in bodies.items()}
        if self.options.layout in PAIRED:
            for group in group_samples(samples):
                yield from self.build_pairs(group, examples, signals)
        elif self.options.layout == "kto":
            yield from self.build_kto_rows(samples, examples, signals)
        else:
            for sample in samples:
                correction = signals.corrections.get(sample.pk)
                example = examples[sample.pk]
                example = example.replace_completion(correction) if correction else example
                if self.accept(sample, example, example.completion):
                    yield {**build_sft_columns(example), **build_origin(sample), "corrected": bool(correction)}

    def build_kto_rows(
        self, samples: Sequence[Sample], examples: dict[str, Example], signals: Signals
    ) -> Iterator[Row]:
        limit = self.options.threshold if self.options.signal == "score" else 0.5
        for sample in samples:
            value, example = signals.values.get(sample.pk), examples[sample.pk]
            if value is None:
                self.counts.left_out[NO_SIGNAL] += 1
            elif self.accept(sample, example, example.completion):
                columns = {"prompt": example.prompt, "completion": example.completion, "label": value >= limit}
                yield {**columns, **add_tools(example), **build_origin(sample)}

    def build_pairs(self, group: Sequence[Sample], examples: dict[str, Example], signals: Signals) -> Iterator[Row]:
        by_id = {sample.pk: sample for sample in group}
        pairs, ties = find_pairs(group, signals, self.options)
        self.counts.left_out[TIES] += ties
        corrected = [pk for pk in by_id if pk in signals.corrections and self.options.layout == "preferences"]
        if not pairs and not ties and not corrected:
            self.counts.left_out[ONE_RESPONSE] += 1
        for pk in corrected:
            better = examples[pk].replace_completion(signals.corrections[pk])
            yield from self.build_pair(by_id[pk], better, by_id[pk], examples[pk], None)
        for pair in pairs:
            yield from self.build_scored_pair(pair, by_id, examples)

    def build_scored_pair(self, pair: Pair, by_id: dict[str, Sample], examples: dict[str, Example]) -> Iterator[Row]:
        better, worse = by_id[pair.better], by_id[pair.worse]
        margin = pair.margin
        if margin is None and better.score is not None and worse.score is not None:
            margin = better.score - worse.score
        if margin is None and self.options.layout == "reward":
            self.counts.left_out[NO_SIGNAL] += 1
            return
        yield from self.build_pair(better, examples[better.pk], worse, examples[worse.pk], margin)

    def build_pair(
        self, better: Sample, chosen: Example, worse: Sample, rejected: Example, margin: float | None
    ) -> Iterator[Row]:
        if flatten(chosen.completion) == flatten(rejected.completion):
            self.counts.left_out[IDENTICAL] += 1
        elif self.accept(better, chosen, [chosen.completion, rejected.completion]):
            columns = {"prompt": chosen.prompt, "chosen": chosen.completion, "rejected": rejected.completion}
            margins = {"margin": margin} if self.options.layout == "reward" else {}
            origin = build_origin(better) | {"rejected_id": worse.pk, "rejected_score": worse.score}
            yield {**columns, **margins, **add_tools(chosen), **origin, "corrected": better.pk == worse.pk}

    def accept(self, sample: Sample, example: Example, answers: Any) -> bool:
        """Whether the limits allow one more row. Counts the reason if not."""
        limit = self.options.max_per_prompt
        if limit is not None and self.per_prompt[sample.prompt_key] >= limit:
            self.counts.left_out[PER_PROMPT] += 1
            return False
        if self.near_duplicates:
            parts = answers if isinstance(answers, list) and not is_message_list(answers) else [answers]
            text = "\n".join([flatten(example.prompt), *map(flatten, parts)])
            if not self.near_duplicates.add(text):
                self.counts.left_out[NEAR_DUPLICATE] += 1
                return False
        self.per_prompt[sample.prompt_key] += 1
        self.counts.left_out[IMAGES] += example.images
        return True


def is_message_list(value: list[Any]) -> bool:
    return bool(value) and isinstance(value[0], dict)


def build_sft_columns(example: Example) -> Row:
    if example.is_conversation:
        return {"messages": [*example.prompt, *example.completion], **add_tools(example)}
    return {"prompt": example.prompt, "completion": example.completion}


def add_tools(example: Example) -> Row:
    return {"tools": example.tools} if example.is_conversation else {}


def build_origin(sample: Sample) -> Row:
    """The columns that say where a row comes from."""
    step = sample.step
    return {"id": sample.pk, "run": step.run.name, "step": step.step, "score": sample.score}


def iterate_group_batches(samples: SampleQuerySet) -> Iterator[list[Sample]]:
    """Yields batches of about `BATCH_SAMPLES` samples that end where a group ends."""
    rows = samples.select_related(None).prefetch_related("step__run").order_by(*GROUP_ORDER)
    batch: list[Sample] = []
    for group in group_samples(rows.iterator(chunk_size=BATCH_SAMPLES)):
        batch += group
        if len(batch) >= BATCH_SAMPLES:
            yield batch
            batch = []
    if batch:
        yield batch
