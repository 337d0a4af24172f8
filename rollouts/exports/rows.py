"""The rows of each layout, in the order of the query, with counts of what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from django.contrib.auth.models import AnonymousUser, User

from rollouts.exports.conversation import EXAMPLE_COLUMNS, Example, Texts, build_example, flatten
from rollouts.exports.duplicates import NearDuplicates
from rollouts.exports.options import PAIRED, ExportOptions
from rollouts.exports.signals import GroupSample, Pair, Signals, find_pairs, group_samples, load_signals
from rollouts.models import DuplicateSource, Project, Sample, SampleQuerySet
from rollouts.samples import BATCH_CHARS, BATCH_ROWS, BodyReader, KnownRows, load_bodies, read_bodies

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

    def add_samples(self, samples: Sequence[GroupSample], known: KnownRows) -> None:
        self.samples += len(samples)
        for step in {sample.step_id for sample in samples}:
            place = known.places[step]
            self.steps.setdefault(place.run_name, set()).add(place.step)


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
    known: KnownRows = field(default_factory=KnownRows)  # of the batch
    bodies: BodyReader = field(default_factory=BodyReader)

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
            yield self.build_batch(batch)  # without a name: the texts of a batch are freed before the next is read

    def build_batch(self, batch: Sequence[GroupSample]) -> list[Row]:
        self.known = KnownRows.load({row.step_id for row in batch}, {row.dump_id for row in batch})
        batch = [sample for sample in batch if sample.step_id in self.known.places]  # not deleted a moment ago
        self.counts.add_samples(batch, self.known)
        wanted = [sample for sample in batch if self.is_training_prompt(sample)]
        texts = self.load_texts(wanted)
        self.counts.left_out[NO_TEXT] += len(wanted) - len(texts)
        wanted = [sample for sample in wanted if sample.pk in texts]
        if self.as_messages is None and wanted:
            self.as_messages = bool(texts[wanted[0].pk].messages)
        labelled = any(sample.step_id in self.known.labelled for sample in wanted)
        signals = load_signals(wanted, self.options, self.reader, labelled=labelled)
        rows = list(self.build_rows(wanted, texts, signals))
        self.counts.rows += len(rows)
        return rows

    def is_training_prompt(self, sample: GroupSample) -> bool:
        if self.known.places[sample.step_id].split != "eval" and sample.prompt_key not in self.eval_prompts:
            return True
        self.counts.left_out[EVAL_PROMPT] += 1
        return False

    def load_texts(self, samples: Sequence[GroupSample]) -> dict[str, Texts]:
        """Returns the recorded texts by sample, without samples that have none. Messages are read if they are used."""
        names = EXAMPLE_COLUMNS if self.as_messages is not False else EXAMPLE_COLUMNS[:2]
        if self.bodies.wanted != names:
            self.bodies = BodyReader(names)
        texts: dict[str, Texts] = {}
        for positions, body in read_bodies([row[1:3] for row in samples], self.known.dumps, self.bodies):
            columns = [body[name].to_list() for name in names]
            columns[2:] = [[value and orjson.loads(value) for value in column] for column in columns[2:]]
            for position, prompt, response, *rest in zip(positions, *columns, strict=True):
                if response is not None:
                    texts[samples[position].pk] = Texts(prompt, response, *rest)
        return texts | self.load_merged_texts(samples)

    def load_merged_texts(self, samples: Sequence[GroupSample]) -> dict[str, Texts]:
        """Returns the texts of samples that are in several dumps."""
        ids = [sample.pk for sample in samples if sample.step_id in self.known.merged]
        if not ids:
            return {}
        merged = DuplicateSource.objects.filter(sample__in=ids).values("sample")
        bodies = load_bodies(list(Sample.objects.filter(pk__in=merged)), EXAMPLE_COLUMNS)
        return {
            pk: Texts(body.prompt, body.response, body.messages, body.tools)
            for pk, body in bodies.items()
            if not body.textless
        }

    def build_rows(self, samples: Sequence[GroupSample], texts: dict[str, Texts], signals: Signals) -> Iterator[Row]:
        examples = {pk: build_example(text, as_messages=bool(self.as_messages)) for pk, text in texts.items()}
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
                    yield {**build_sft_columns(example), **self.build_origin(sample), "corrected": bool(correction)}

    def build_kto_rows(
        self, samples: Sequence[GroupSample], examples: dict[str, Example], signals: Signals
    ) -> Iterator[Row]:
        limit = self.options.threshold if self.options.signal == "score" else 0.5
        for sample in samples:
            value, example = signals.values.get(sample.pk), examples[sample.pk]
            if value is None:
                self.counts.left_out[NO_SIGNAL] += 1
            elif self.accept(sample, example, example.completion):
                columns = {"prompt": example.prompt, "completion": example.completion, "label": value >= limit}
                yield {**columns, **add_tools(example), **self.build_origin(sample)}

    def build_pairs(
        self, group: Sequence[GroupSample], examples: dict[str, Example], signals: Signals
    ) -> Iterator[Row]:
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

    def build_scored_pair(
        self, pair: Pair, by_id: dict[str, GroupSample], examples: dict[str, Example]
    ) -> Iterator[Row]:
        better, worse = by_id[pair.better], by_id[pair.worse]
        margin = pair.margin
        if margin is None and better.score is not None and worse.score is not None:
            margin = better.score - worse.score
        if margin is None and self.options.layout == "reward":
            self.counts.left_out[NO_SIGNAL] += 1
            return
        yield from self.build_pair(better, examples[better.pk], worse, examples[worse.pk], margin)

    def build_pair(
        self, better: GroupSample, chosen: Example, worse: GroupSample, rejected: Example, margin: float | None
    ) -> Iterator[Row]:
        if flatten(chosen.completion) == flatten(rejected.completion):
            self.counts.left_out[IDENTICAL] += 1
        elif self.accept(better, chosen, [chosen.completion, rejected.completion]):
            columns = {"prompt": chosen.prompt, "chosen": chosen.completion, "rejected": rejected.completion}
            margins = {"margin": margin} if self.options.layout == "reward" else {}
            origin = self.build_origin(better) | {"rejected_id": worse.pk, "rejected_score": worse.score}
            yield {**columns, **margins, **add_tools(chosen), **origin, "corrected": better.pk == worse.pk}

    def build_origin(self, sample: GroupSample) -> Row:
        """The columns that say where a row comes from."""
        place = self.known.places[sample.step_id]
        return {"id": sample.pk, "run": place.run_name, "step": place.step, "score": sample.score}

    def accept(self, sample: GroupSample, example: Example, answers: Any) -> bool:
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


def iterate_group_batches(samples: SampleQuerySet) -> Iterator[list[GroupSample]]:
    """Yields batches of about `BATCH_ROWS` samples or `BATCH_CHARS` characters, which end where a group ends."""
    rows = samples.select_related(None).order_by(*GROUP_ORDER).values_list(*GroupSample._fields)
    batch: list[GroupSample] = []
    chars = 0
    for group in group_samples(map(GroupSample._make, rows.iterator(chunk_size=BATCH_ROWS))):
        batch += group
        chars += sum(sample.chars for sample in group)
        if len(batch) >= BATCH_ROWS or chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch
