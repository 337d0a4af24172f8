"""The rows of each layout, in the order of the query, with counts of what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Final, TypeAlias

import polars as pl
from django.contrib.auth.models import AnonymousUser, User

from rollouts.exports.conversation import EXAMPLE_COLUMNS, Example, Texts, build_example, flatten, share_prompt
from rollouts.exports.duplicates import NearDuplicates
from rollouts.exports.options import PAIRED, ExportOptions
from rollouts.exports.signals import (
    GroupSample,
    Pair,
    Signals,
    find_pairs,
    group_samples,
    load_corrections,
    load_signals,
)
from rollouts.exports.texts import Bodies, TextBatch, iterate_batches
from rollouts.lib import compute_tolerance
from rollouts.models import Project, Sample, SampleQuerySet
from rollouts.samples import BodyReader, KnownRows, StepPlace, read_ahead, read_bodies

KNOWN_BATCHES: Final = 4  # for which steps and dumps are loaded together

EVAL_PROMPT: Final = "samples whose prompt is of an evaluation"
NO_TEXT: Final = "samples without text"
NO_SIGNAL: Final = "samples without score, label or rank"
INTERMEDIATE: Final = "turns before the last one of a trajectory"
ONE_RESPONSE: Final = "groups with nothing to compare"
TIES: Final = "pairs that are equal, or closer than the margin"
IDENTICAL: Final = "pairs of identical texts"
OTHER_PROMPT: Final = "pairs of different prompts"
PER_PROMPT: Final = "more rows of a prompt than allowed"
NEAR_DUPLICATE: Final = "near-duplicates"
IMAGES: Final = "images (their messages are there)"

Row = dict[str, Any]
Batch: TypeAlias = Sequence[Row] | pl.DataFrame


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
    bodies: BodyReader = field(default_factory=BodyReader)
    places: dict[int, StepPlace] = field(default_factory=dict)  # of the steps of the batch

    def __post_init__(self) -> None:
        keys = Sample.objects.filter(step__run__project=self.project, step__split="eval").values_list("prompt_key")
        self.eval_prompts = {key for (key,) in keys.distinct().iterator(chunk_size=10_000)}
        if self.options.drop_near_duplicates:
            self.near_duplicates = NearDuplicates()
        if self.options.form != "auto":
            self.as_messages = self.options.form == "messages"

    def iterate(self, samples: SampleQuerySet) -> Iterator[Batch]:
        """Yields rows in batches. Raises StorageUnavailableError."""
        for (wanted, known), bodies in read_ahead(self.iterate_wanted(samples), self.read_bodies):
            batch = TextBatch(wanted, known, bodies)
            if self.as_messages is None:
                self.as_messages = batch.has_messages()
            rows = self.build_table(batch) if self.is_table else self.build_rows(batch)
            self.counts.rows += len(rows)
            yield rows

    def iterate_wanted(self, samples: SampleQuerySet) -> Iterator[tuple[list[GroupSample], KnownRows]]:
        """Yields batches of samples with training prompts."""
        batches = iterate_batches(samples, whole_groups=self.options.layout in PAIRED)
        while next_batches := list(islice(batches, KNOWN_BATCHES)):
            rows = list(chain.from_iterable(next_batches))
            known = KnownRows.load({row.step_id for row in rows}, {row.dump_id for row in rows})
            for batch in next_batches:
                found = [sample for sample in batch if sample.step_id in known.places]  # not deleted a moment ago
                self.counts.add_samples(found, known)
                yield self.select_training_prompts(found, known), known

    @property
    def is_table(self) -> bool:
        """Whether a row is the recorded text of a sample. Then texts stay columns."""
        return self.options.layout == "sft" and self.as_messages is False

    def select_training_prompts(self, samples: Sequence[GroupSample], known: KnownRows) -> list[GroupSample]:
        eval_steps = {step for step, place in known.places.items() if place.split == "eval"}
        chosen = [
            sample
            for sample in samples
            if sample.step_id not in eval_steps and sample.prompt_key not in self.eval_prompts
        ]
        self.counts.left_out[EVAL_PROMPT] += len(samples) - len(chosen)
        return chosen

    def read_bodies(self, batch: tuple[list[GroupSample], KnownRows]) -> Bodies:
        """Returns recorded texts. Messages are read if they are used. Another thread calls it."""
        samples, known = batch
        names = ["id", *(EXAMPLE_COLUMNS if self.as_messages is not False else EXAMPLE_COLUMNS[:2])]
        if self.bodies.wanted != names:
            self.bodies = BodyReader(names)
        return list(read_bodies([row[:3] for row in samples], known.dumps, self.bodies))

    def build_table(self, batch: TextBatch) -> pl.DataFrame:
        """Returns prompts and completions. A Python object for each text takes more than the rest of the export."""
        texts = batch.join_texts()
        self.counts.left_out[NO_TEXT] += len(batch.samples) - len(texts)
        samples = [batch.samples[at] for at in texts["at"].to_list()]
        places = [batch.known.places[sample.step_id] for sample in samples]
        corrections = load_corrections(samples, self.options, self.reader, labelled=batch.is_labelled)
        prompts, completions = texts["prompt"], texts["response"]
        if corrections:
            answers = [corrections.get(sample.pk, text) for sample, text in zip(samples, completions, strict=True)]
            completions = pl.Series(answers, dtype=pl.String)
        columns = {
            "prompt": prompts,
            "completion": completions,
            "id": [sample.pk for sample in samples],
            "run": [place.run_name for place in places],
            "step": [place.step for place in places],
            "score": [sample.score for sample in samples],
            "corrected": [sample.pk in corrections for sample in samples],
        }
        table = pl.DataFrame(columns, schema_overrides={"score": pl.Float64, "id": pl.String, "run": pl.String})
        if self.options.max_per_prompt is None and self.near_duplicates is None:
            return table
        examples = map(Example, prompts, completions)
        return table.filter([self.accept(*row, row[1].completion) for row in zip(samples, examples, strict=True)])

    def build_rows(self, batch: TextBatch) -> list[Row]:
        texts = batch.load_texts()
        self.counts.left_out[NO_TEXT] += len(batch.samples) - len(texts)
        samples = [sample for sample in batch.samples if sample.pk in texts]
        signals = load_signals(samples, self.options, self.reader, labelled=batch.is_labelled)
        self.places = batch.known.places
        return list(self.iterate_rows(samples, texts, signals))

    def iterate_rows(self, samples: Sequence[GroupSample], texts: dict[str, Texts], signals: Signals) -> Iterator[Row]:
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
                    columns = {"messages": [*example.prompt, *example.completion], **add_tools(example)}
                    yield {**columns, **self.build_origin(sample), "corrected": bool(correction)}

    def build_kto_rows(
        self, samples: Sequence[GroupSample], examples: dict[str, Example], signals: Signals
    ) -> Iterator[Row]:
        threshold = self.options.threshold if self.options.signal == "score" else 0.5
        limit = threshold - compute_tolerance(threshold)  # as `score>=` of the query language
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
        last = [sample for sample in group if sample.final]  # scores and ranks are of whole trajectories
        pairs, ties = find_pairs(last, signals, self.options)
        self.counts.left_out[TIES] += ties
        corrected = [pk for pk in by_id if pk in signals.corrections and self.options.layout == "preferences"]
        self.counts.left_out[INTERMEDIATE] += sum(not by_id[pk].final for pk in by_id.keys() - set(corrected))
        if last and not pairs and not ties and not corrected:
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
        if pair.margin is None and self.options.needs_margin:
            self.counts.left_out[NO_SIGNAL] += 1
            return
        yield from self.build_pair(better, examples[better.pk], worse, examples[worse.pk], pair.margin)

    def build_pair(
        self, better: GroupSample, chosen: Example, worse: GroupSample, rejected: Example, margin: float | None
    ) -> Iterator[Row]:
        chosen, rejected = share_prompt(chosen, rejected)
        if chosen.prompt != rejected.prompt:
            self.counts.left_out[OTHER_PROMPT] += 1
        elif flatten(chosen.completion) == flatten(rejected.completion):
            self.counts.left_out[IDENTICAL] += 1
        elif self.accept(better, chosen, [chosen.completion, rejected.completion]):
            columns = {"prompt": chosen.prompt, "chosen": chosen.completion, "rejected": rejected.completion}
            margins = {"margin": margin} if self.options.layout == "reward" else {}
            origin = self.build_origin(better) | {"rejected_id": worse.pk, "rejected_score": worse.score}
            yield {**columns, **margins, **add_tools(chosen), **origin, "corrected": better.pk == worse.pk}

    def build_origin(self, sample: GroupSample) -> Row:
        """The columns that say where a row comes from."""
        place = self.places[sample.step_id]
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


def add_tools(example: Example) -> Row:
    return {"tools": example.tools} if example.is_conversation else {}
