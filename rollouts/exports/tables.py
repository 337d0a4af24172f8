"""The table of samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from django.contrib.auth.models import AnonymousUser, User

from rollouts import agreement
from rollouts.agreement import Answer
from rollouts.exports.rows import ExportCounts, Row
from rollouts.exports.signals import load_decisions
from rollouts.labels import Question, load_rubric
from rollouts.models import Project, SampleQuerySet
from rollouts.samples import iterate_full_samples

LABEL_PREFIX: Final = "label."
COUNTED_PREFIX: Final = "people."  # how many people answered


def list_label_questions(project: Project) -> list[Question]:
    """Returns the questions that are columns of the table of samples."""
    return [question for question in load_rubric(project).questions if question.kind != "text"]


def iterate_sample_rows(
    project: Project, samples: SampleQuerySet, counts: ExportCounts, reader: User | AnonymousUser | None
) -> Iterator[list[Row]]:
    """Yields full samples. For each question of the rubric they have what counts, `label.<key>`, and the number of
    people who answered, `people.<key>`; `labels` has each label."""
    questions = list_label_questions(project)
    for rows in iterate_full_samples(samples, reader):
        counts.rows += len(rows)
        counts.samples += len(rows)
        answers: dict[str, list[Answer]] = defaultdict(list)
        for row in rows:
            for label in row["labels"]:
                if label["source"] == "human":
                    answers[label["name"]].append(Answer(row["id"], label["author"], label["value"]))
        decisions = load_decisions([row["id"] for row in rows], reader)
        decided = {
            question.key: agreement.decide_values(answers[question.key], question.kind, decisions.get(question.key, {}))
            for question in questions
        }
        people = {question.key: count_people(answers[question.key]) for question in questions}
        for row in rows:
            counts.steps.setdefault(row["run"], set()).add(row["step"])
            for question in questions:
                row[f"{LABEL_PREFIX}{question.key}"] = format_value(decided[question.key].get(row["id"]))
                row[f"{COUNTED_PREFIX}{question.key}"] = people[question.key].get(row["id"], 0)
        yield rows


def count_people(answers: Sequence[Answer]) -> Mapping[Any, int]:
    counted: dict[Any, int] = defaultdict(int)
    for answer in answers:
        counted[answer.item] += 1
    return counted


def format_value(value: Any) -> Any:
    """Returns a value that JSON has: the options of several choices in order."""
    return sorted(value) if isinstance(value, frozenset) else value
