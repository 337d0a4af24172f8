"""The samples of a run that people labelled, with what counts of several labels and the chance of the draw."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, Final

import numpy as np
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from rollouts import agreement
from rollouts.agreement import ItemAnswer, LabelledSamples
from rollouts.errors import InvalidInputError
from rollouts.labels import REVIEW_QUESTION, Question, load_rubric
from rollouts.models import ItemDecision, Label, LabelQuerySet, Project, Queue, QueueItem, QueueSlot, Run, Sample
from rollouts.reward_check.draws import QueryMatches, QueueDraws, load_draws

KINDS: Final = ("choice", "yes-no", "rating")

StepRange = tuple[int, int]  # first and last


@dataclass(frozen=True, slots=True)
class RewardQuestion:
    """A question, and the answers that call a sample good."""

    question: Question
    good: frozenset[str]


@dataclass(frozen=True, slots=True)
class LabelledRun:
    """`rows` are the samples in the order of `samples`, `answers` what counts for each. `outdated`: see
    `QuestionLabels`. `undecided` samples have answers, but no majority and no decision."""

    samples: LabelledSamples
    rows: list[Sample]
    answers: dict[str, str]
    outdated: int
    undecided: int


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
            return question.shown_options


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
class QuestionLabels:
    """What people answered to one question about a run: `rows` are the current samples with an answer or a decision,
    `draws` those of the queues that ask it. `outdated` answers to these samples do not count: the question was another
    one in an earlier version of the rubric."""

    question: Question
    rows: list[Sample]
    answers: list[ItemAnswer]
    decisions: dict[Hashable, Any]
    draws: QueueDraws
    outdated: int

    def decide(self) -> dict[str, str]:
        """Returns what counts for each sample, as text: a lead's decision, else the answer of most people. A sample
        without a majority is left out."""
        values = decide_answers(self.question, self.answers, self.decisions)
        return {str(sample): format_answer(value) for sample, value in values.items()}

    def count_undecided(self, said: Mapping[str, str]) -> int:
        """Returns how many samples have answers of which none counts. `said` is what `decide` returned."""
        answered = {str(answer.item) for answer in self.answers if self.question.accepts(answer.value)}
        return sum(row.pk in answered and row.pk not in said for row in self.rows)

    def decide_options(self) -> dict[str, dict[str, bool]]:
        """Returns {option: {sample: whether it has it}} of a question with several choices, each on its own."""
        keys = [option.key for option in self.question.options]
        result = {}
        said = [answer for answer in self.answers if self.question.accepts(answer.value)]
        decided = {
            sample: [value] if isinstance(value, str) else value  # of an earlier version with a single choice
            for sample, value in self.decisions.items()
            if self.question.accepts(value)
        }
        for option, answers in agreement.split_choices(said, keys).items():
            decisions = {sample: option in values for sample, values in decided.items()}
            values = agreement.decide_values(answers, "yes-no", decisions)
            result[option] = {str(sample): bool(value) for sample, value in values.items()}
        return result

    def select(self, good: Mapping[str, bool]) -> tuple[list[Sample], LabelledSamples]:
        """Returns these samples in order, with the chance of each to be drawn and labelled."""
        rows = [row for row in self.rows if row.pk in good]
        ids = [row.pk for row in rows]
        samples = LabelledSamples(
            ids=ids,
            scores=np.array([get_number(row.score) for row in rows], np.float64),
            good=np.array([good[pk] for pk in ids], bool),
            probabilities=np.array(self.draws.compute_probabilities(ids), np.float64),
            strata=self.draws.list_strata(ids),
            groups=[f"{row.step_id}/{row.group}" if row.group else row.pk for row in rows],
        )
        return rows, samples


def decide_answers(
    question: Question, answers: Iterable[ItemAnswer], decisions: Mapping[Hashable, Any]
) -> dict[Hashable, Any]:
    """Returns what counts for each item. What this version of the question does not accept is no answer."""
    said = [answer for answer in answers if question.accepts(answer.value)]
    decided = {item: value for item, value in decisions.items() if question.accepts(value)}
    return agreement.decide_values(said, question.kind, decided)


def load_labelled_run(
    run: Run, asked: RewardQuestion, steps: StepRange | None = None, matches: QueryMatches | None = None
) -> LabelledRun:
    """Returns the current samples with a human label that counts, of all steps or of this range."""
    labels = load_question_labels(run, asked.question, steps, matches)
    said = labels.decide()
    rows, samples = labels.select({sample: answer in asked.good for sample, answer in said.items()})
    return LabelledRun(samples, rows, said, labels.outdated, labels.count_undecided(said))


def load_question_labels(
    run: Run, question: Question, steps: StepRange | None = None, matches: QueryMatches | None = None
) -> QuestionLabels:
    """`matches` may be shared by several calls. Raises QueryLimitError and StorageUnavailableError."""
    name = question.key
    labels = Label.objects.active().filter(run=run)
    given = labels.filter(name=name, source="human").values_list("sample", "author", "value")
    said = [ItemAnswer(*row) for row in given]
    slots = QueueSlot.objects.filter(item__run=run)
    answers = said + load_empty_answers(slots, labels, name) if question.kind == "choices" else said
    decided = ItemDecision.objects.filter(item__run=run, name=name).order_by("at", "pk")  # the later one counts
    decisions: dict[Hashable, Any] = dict(decided.values_list("item__sample", "value"))
    ids = {answer.item for answer in answers} | decisions.keys()
    rows = Sample.objects.current_and_visible().filter(Q(pk__among=list(ids)), step__run=run)
    if steps is not None:
        rows = rows.filter(step__step__range=steps)
    found = list(rows.select_related("step").order_by("step__step", "pk"))
    shown = {row.pk for row in found}
    outdated = sum(answer.item in shown and not question.accepts(answer.value) for answer in said)
    draws = load_draws(run, find_drawn_items(run, name, steps), matches or QueryMatches())
    return QuestionLabels(question, found, answers, decisions, draws, outdated)


def load_empty_answers(slots: QuerySet[QueueSlot], labels: LabelQuerySet, name: str) -> list[ItemAnswer]:
    """Returns the answers of people who completed an item and chose none of several choices: no label is stored for
    them. `slots` and `labels` are those of some samples, from everybody."""
    slots = slots.filter(queue__unit=Queue.Unit.SAMPLE, user__isnull=False, done_at__isnull=False)
    completed = set(filter_asking(slots, name).values_list("item__sample", "user__username"))
    if not completed:
        return []
    said = Q(name=name) | Q(name=REVIEW_QUESTION.key, answer=f" {agreement.CANNOT_JUDGE} ")
    people = completed - set(labels.filter(said, source="human").values_list("sample", "author"))
    return [ItemAnswer(sample, person, []) for sample, person in sorted(people)]


def find_drawn_items(run: Run, name: str, steps: StepRange | None) -> QuerySet[QueueItem]:
    """Returns the items that queues with this question have drawn at random."""
    items = QueueItem.objects.filter(run=run, queue__unit=Queue.Unit.SAMPLE, step__superseded=False)
    items = items.exclude(probability=None)
    if steps is not None:
        items = items.filter(step__step__range=steps)
    return filter_asking(items, name)


def filter_asking(rows: QuerySet[Any], name: str) -> QuerySet[Any]:
    """Returns the items or slots of the queues that ask the question."""
    queues = Queue.objects.filter(pk__in=rows.values("queue")).select_related("rubric")
    return rows.filter(queue__in=[queue.pk for queue in queues if asks_question(queue, name)])


def asks_question(queue: Queue, name: str) -> bool:
    """A queue asks the questions of the rubric that it was created with. Without one it asks for a review only."""
    rows = queue.rubric.questions if queue.rubric else []
    return name in (queue.questions or [row["key"] for row in rows])


def format_answer(value: Any) -> str:
    """Returns the text of `list_good_values`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def get_number(value: Any) -> float:
    """Returns NaN for what is no finite number."""
    return float(value) if isinstance(value, int | float) and isfinite(value) else nan
