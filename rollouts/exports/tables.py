"""The table of samples."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl
import pyarrow as pa
from django.contrib.auth.models import AnonymousUser, User

from rollouts.agreement import ItemAnswer
from rollouts.exports.rows import ExportCounts
from rollouts.exports.signals import load_decisions, load_readable_empty_answers
from rollouts.labels import Question, RubricVersion
from rollouts.models import ItemDecision, Project, QueueSlot, SampleQuerySet
from rollouts.reward_check import decide_answers
from rollouts.samples import iterate_sample_tables

LABEL_PREFIX: Final = "label."
COUNTED_PREFIX: Final = "people."  # how many people answered


def list_label_questions(rubric: RubricVersion) -> list[Question]:
    """Returns the questions that are columns of the table of samples."""
    return [question for question in rubric.questions if question.kind != "text"]


def iterate_samples(
    project: Project,
    rubric: RubricVersion,
    samples: SampleQuerySet,
    counts: ExportCounts,
    reader: User | AnonymousUser | None,
) -> Iterator[pl.DataFrame]:
    """Yields full samples. For each question of the rubric they have what counts, `label.<key>`, and the number of
    people who answered, `people.<key>`; `labels` has each label."""
    questions = list_label_questions(rubric)
    has_decisions = bool(questions) and ItemDecision.objects.filter(item__queue__project=project).exists()
    has_choices = any(question.kind == "choices" for question in questions)
    has_slots = has_choices and QueueSlot.objects.filter(queue__project=project, done_at__isnull=False).exists()
    for table, labels in iterate_sample_tables(samples, reader):
        counts.rows += table.height
        counts.samples += table.height
        for run, step in set(zip(table["run"].to_list(), table["step"].to_list(), strict=True)):
            counts.steps.setdefault(run, set()).add(step)
        yield add_answers(table, labels, questions, reader, has_decisions=has_decisions, has_slots=has_slots)


def add_answers(
    table: pl.DataFrame,
    labels: Mapping[str, Sequence[Mapping[str, Any]]],
    questions: Sequence[Question],
    reader: User | AnonymousUser | None,
    *,
    has_decisions: bool,
    has_slots: bool,
) -> pl.DataFrame:
    ids = table["id"].to_list()
    columns: list[pl.Series] = []
    asked = {question.key: question for question in questions}
    answers: dict[str, list[ItemAnswer]] = defaultdict(list)
    for sample, given in labels.items():
        for label in given:
            name, value = label["name"], label["value"]
            if label["source"] == "human" and name in asked and asked[name].accepts(value):
                answers[name].append(ItemAnswer(sample, label["author"], value))
    decisions = load_decisions(ids, reader) if has_decisions else {}
    for question in questions:
        said = answers[question.key]
        if has_slots and question.kind == "choices":
            said += load_readable_empty_answers(ids, question.key, reader)
        decided = decide_answers(question, said, decisions.get(question.key, {}))
        people = Counter(answer.item for answer in said)
        values = [format_value(decided.get(pk)) for pk in ids] if decided else [None] * len(ids)
        counted = [people[pk] for pk in ids] if people else [0] * len(ids)
        columns.append(pl.Series(f"{LABEL_PREFIX}{question.key}", pa.array(values, get_value_type(question.kind))))
        columns.append(pl.Series(f"{COUNTED_PREFIX}{question.key}", counted, pl.Int64))
    return table.with_columns(columns)


def get_value_type(kind: str) -> pa.DataType:
    """Returns the type of the answers to questions of this kind."""
    match kind:
        case "yes-no":
            return pa.bool_()
        case "rating" | "number":
            return pa.float64()
        case "choices":
            return pa.list_(pa.string())
        case _:
            return pa.string()


def format_value(value: Any) -> Any:
    """Returns a value that JSON has: the options of several choices in order."""
    return sorted(value) if isinstance(value, frozenset) else value
