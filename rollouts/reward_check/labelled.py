"""The samples of a run that people labelled, with what counts of several labels and the chance of the draw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, Final

import numpy as np
from django.utils.translation import gettext as _

from rollouts import agreement
from rollouts.agreement import Answer, LabelledSamples
from rollouts.errors import InvalidInputError
from rollouts.labels import Question, load_rubric
from rollouts.models import ItemDecision, Label, Project, Queue, QueueItem, Run, Sample

KINDS: Final = ("choice", "yes-no", "rating")

StepRange = tuple[int, int]  # first and last


@dataclass(frozen=True, slots=True)
class RewardQuestion:
    """A question, and the answers that call a sample good."""

    question: Question
    good: frozenset[str]


@dataclass(frozen=True, slots=True)
class LabelledRun:
    """`rows` are the samples in the order of `samples`, `answers` what counts for each."""

    samples: LabelledSamples
    rows: list[Sample]
    answers: dict[str, str]


def list_reward_questions(project: Project) -> list[Question]:
    """Returns the questions of the current rubric whose answers can be good or bad."""
    return [
        question for question in load_rubric(project).questions if question.kind in KINDS and not is_review(question)
    ]


def is_review(question: Question) -> bool:
    return question.key == "review"


def list_good_values(question: Question) -> list[tuple[str, str]]:
    """Returns the possible answers as text with their titles."""
    match question.kind:
        case "yes-no":
            return [("yes", _("yes")), ("no", _("no"))]
        case "rating":
            return [(str(rating), str(rating)) for rating in question.ratings]
        case _:
            return [(option.key, _(option.title)) for option in question.options]


def parse_reward_question(project: Project, name: str, good: Iterable[str]) -> RewardQuestion:
    """Without a name it is the first question; without answers the first one is good, of a rating the upper half.
    Raises InvalidInputError."""
    questions = list_reward_questions(project)
    question = next((row for row in questions if name in ("", row.key)), None)
    if question is None:
        raise InvalidInputError(describe_missing_question(project, name, questions), "question")
    values = [value for value, _title in list_good_values(question)]
    chosen = frozenset(good)
    if unknown := sorted(chosen - set(values)):
        message = _("{value} is no answer to {name}. Answers: {known}.")
        text = message.format(value=repr(unknown[0][:40]), name=question.key, known=", ".join(values))
        raise InvalidInputError(text, "good")
    upper = values[(len(values) + 1) // 2 :] if question.kind == "rating" else values[:1]
    return RewardQuestion(question, chosen or frozenset(upper))


def describe_missing_question(project: Project, name: str, questions: Iterable[Question]) -> str:
    """`questions` are those that could be used."""
    known = ", ".join(question.key for question in questions)
    if not known:
        return _("The rubric of this project has no question with one choice, yes and no, or a rating. Add one first.")
    if any(question.key == name for question in load_rubric(project).questions):
        message = _("{name} cannot say what is good. Questions with one choice, yes and no, or a rating: {known}.")
    else:
        message = _("The rubric has no question {name}. Questions with one choice, yes and no, or a rating: {known}.")
    return message.format(name=f"`{name[:40]}`", known=known)


@dataclass(frozen=True, slots=True)
class Draw:
    """That a queue has drawn a sample. `stratum` is a part of the queue. Queues that draw by the same query from the
    same step draw from the same samples, their `frame`."""

    queue: int
    stratum: str
    frame: tuple[str, int]
    probability: float


@dataclass(frozen=True, slots=True)
class QuestionLabels:
    """What people answered to one question about a run: `rows` are the current samples with an answer, `draws` those of
    each sample in the order of the queues, `drawn` the number of drawn items of each stratum."""

    question: Question
    rows: list[Sample]
    answers: list[Answer]
    decisions: dict[Hashable, Any]
    draws: dict[str, list[Draw]]
    drawn: Counter[str]

    def decide(self) -> dict[str, str]:
        """Returns what counts for each sample, as text: a lead's decision, else the answer of most people. A sample
        without a majority is left out."""
        values = agreement.decide_values(self.answers, self.question.kind, self.decisions)
        return {str(sample): format_answer(value) for sample, value in values.items()}

    def decide_options(self) -> dict[str, dict[str, bool]]:
        """Returns {option: {sample: whether it has it}} of a question with several choices, each on its own."""
        keys = [option.key for option in self.question.options]
        result = {}
        for option, answers in agreement.split_choices(self.answers, keys).items():
            decisions = {
                sample: option in value for sample, value in self.decisions.items() if isinstance(value, list | tuple)
            }
            values = agreement.decide_values(answers, "yes-no", decisions)
            result[option] = {str(sample): bool(value) for sample, value in values.items()}
        return result

    def select(self, good: Mapping[str, bool]) -> tuple[list[Sample], LabelledSamples]:
        """Returns these samples in order, with the chance of each to be drawn and labelled. The answered items of a
        queue stand for all of their stratum, and queues with the same frame each for a part of it."""
        rows = [row for row in self.rows if row.pk in good]
        draws = [self.draws.get(row.pk, []) for row in rows]
        answered = Counter(draw.stratum for own in draws for draw in own)
        of_queue = Counter((draw.queue, draw.frame) for own in draws for draw in own)
        of_frame = Counter(draw.frame for own in draws for draw in own)

        def weigh(draw: Draw) -> float:
            part = of_queue[draw.queue, draw.frame] / of_frame[draw.frame]
            return part * self.drawn[draw.stratum] / (answered[draw.stratum] * draw.probability)

        chances = [1 / sum(map(weigh, own)) if own else nan for own in draws]
        samples = LabelledSamples(
            ids=[row.pk for row in rows],
            scores=np.array([get_number(row.score) for row in rows], np.float64),
            good=np.array([good[row.pk] for row in rows], bool),
            probabilities=np.array(chances, np.float64),
            strata=[own[-1].stratum if own else "" for own in draws],
            groups=[f"{row.step_id}/{row.group}" if row.group else row.pk for row in rows],
        )
        return rows, samples


def load_labelled_run(run: Run, asked: RewardQuestion, steps: StepRange | None = None) -> LabelledRun:
    """Returns the current samples with a human label that counts, of all steps or of this range."""
    labels = load_question_labels(run, asked.question, steps)
    said = labels.decide()
    rows, samples = labels.select({sample: answer in asked.good for sample, answer in said.items()})
    return LabelledRun(samples, rows, said)


def load_question_labels(run: Run, question: Question, steps: StepRange | None = None) -> QuestionLabels:
    name = question.key
    labels = Label.objects.active().filter(run=run, name=name, source="human")
    answers = [Answer(*row) for row in labels.values_list("sample", "author", "value")]
    decided = ItemDecision.objects.filter(item__run=run, name=name).order_by("at", "pk")  # the later one counts
    decisions: dict[Hashable, Any] = dict(decided.values_list("item__sample", "value"))
    rows = Sample.objects.current_and_visible().filter(step__run=run, pk__in=labels.values("sample"))
    if steps is not None:
        rows = rows.filter(step__step__range=steps)
    found = list(rows.select_related("step").order_by("step__step", "pk"))
    return QuestionLabels(question, found, answers, decisions, *load_draws(run, name, steps))


def load_draws(run: Run, name: str, steps: StepRange | None) -> tuple[dict[str, list[Draw]], Counter[str]]:
    """Returns the draws of each sample by queues with this question, and the number of drawn items of each stratum."""
    items = QueueItem.objects.filter(run=run, queue__unit=Queue.Unit.SAMPLE, step__superseded=False)
    items = items.exclude(probability=None)
    if steps is not None:
        items = items.filter(step__step__range=steps)
    drawn: Counter[str] = Counter()
    draws: dict[str, list[Draw]] = {}
    fields = ("sample", "queue_id", "stratum", "step_id", "probability", "queue__q", "queue__questions")
    for sample, queue, stratum, step, probability, q, questions in items.order_by("queue_id").values_list(*fields):
        if questions and name not in questions:
            continue
        key = f"{queue}/{stratum}"
        drawn[key] += 1
        if probability:
            draws.setdefault(sample, []).append(Draw(queue, key, (q, step), probability))
    return draws, drawn


def format_answer(value: Any) -> str:
    """Returns the text of `list_good_values`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def get_number(value: Any) -> float:
    """Returns NaN for what is no finite number."""
    return float(value) if isinstance(value, int | float) and isfinite(value) else nan
