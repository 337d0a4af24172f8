"""A group: the responses of one prompt in one step, to be read side by side, and put together by their answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix
from statistics import fmean, pstdev
from typing import Final

from django.utils.translation import gettext as _

from rollouts.models import Attempt, Run, Sample, Step
from rollouts.samples import SampleBody, UnitTestResults, extract_final_answer, load_bodies, parse_unit_tests

MOST: Final = 512
FOLD_ABOVE: Final = 8
TAIL_CHARS: Final = 480  # characters of a response that is not shown whole
AT_ONCE: Final = 32  # bodies in memory
MOST_TEXT: Final = 2_000_000  # characters of a folded group that are shown whole together
SHARED: Final = 24  # characters that are worth saying that all texts begin with them
VERDICTS: Final = {"right": True, "wrong": False}


@dataclass(slots=True, eq=False)
class GroupResponse:
    """One trajectory by its last sample. `text` is its whole text where `whole`, else the end of it; None where only
    tokens were recorded or the body is lost."""

    sample: Sample
    text: str | None
    answer: str
    expanded: bool
    is_long: bool
    ground_truth: str | None
    unit_tests: UnitTestResults | None = None


@dataclass(slots=True)
class TextBudget:
    """Which texts are shown whole: of the samples whose id begins with one of `begun`, and as many more as fit into
    `left` characters."""

    begun: tuple[str, ...]
    left: int = 0

    def takes(self, sample: Sample, text: str) -> bool:
        if sample.pk.startswith(self.begun):
            return True
        fits = len(text) <= self.left
        self.left -= len(text) if fits else 0
        return fits


@dataclass(slots=True)
class AnswerGroup:
    """Responses with the same answer; none for an empty `answer`."""

    answer: str
    responses: list[GroupResponse]

    @property
    def count(self) -> int:
        return len(self.responses)

    @property
    def correct_count(self) -> int:
        return sum(one.sample.correct is True for one in self.responses)

    @property
    def score(self) -> float | None:
        scores = known([one.sample for one in self.responses])
        return fmean(scores) if scores else None

    @property
    def correctness(self) -> str:
        """`right` where all are, `3 right` where some are."""
        if not self.correct_count:
            return ""
        return (
            _("correct") if self.correct_count == self.count else _("{count} correct").format(count=self.correct_count)
        )

    @property
    def has_expanded(self) -> bool:
        return any(one.expanded for one in self.responses)


@dataclass(slots=True)
class GroupView:
    """`step` is the step that the group was found in. `samples` has all of the group's trajectories, `responses` at
    most `MOST` of them, lowest score first; `inner` counts the samples that a later one of theirs ends. `prompts`
    counts the different prompts of `responses`, of which `prompt` is the first."""

    step: Step
    group: str
    prompt: str
    prompt_count: int
    samples: list[Sample]
    responses: list[GroupResponse]
    intermediate_count: int

    @property
    def unnamed(self) -> bool:
        """Does only its prompt name it, since the trainer names no group? Its name tells a person nothing then."""
        return self.samples[0].prompt_key == self.group

    @property
    def scores(self) -> list[float]:
        return known(self.samples)

    @property
    def mean(self) -> float | None:
        return fmean(self.scores) if self.scores else None

    @property
    def score_std(self) -> float | None:
        return pstdev(self.scores) if len(self.scores) > 1 else None

    @property
    def zero_variance(self) -> bool:
        """Zero variance, by the rule of `is:zerovar`: two scores or more, all equal."""
        return len(self.scores) > 1 and min(self.scores) == max(self.scores)

    @property
    def evaluated_count(self) -> int:
        return sum(one.correct is not None for one in self.samples)

    @property
    def correct_count(self) -> int:
        return sum(one.correct is True for one in self.samples)

    @property
    def wrong_count(self) -> int:
        return self.evaluated_count - self.correct_count

    def filter_responses(self, verdict: str) -> GroupView:
        """This board with the responses of one of `VERDICTS`; as it is for any other word."""
        if verdict not in VERDICTS:
            return self
        return replace(self, responses=[one for one in self.responses if one.sample.correct is VERDICTS[verdict]])

    @property
    def ground_truth(self) -> str | None:
        return next((one.ground_truth for one in self.responses if one.ground_truth is not None), None)

    @property
    def shared_prefix_chars(self) -> int:
        """Characters with which all texts begin that are shown from their beginning: whole lines or words of them, 0
        where that is less than `SHARED`."""
        texts = [one.text for one in self.responses if one.text and (one.expanded or not one.is_long)]
        if len(texts) < 2:
            return 0
        same = commonprefix(texts)
        if any(len(text) > len(same) for text in texts):
            same = same[: max(same.rfind("\n"), same.rfind(" ")) + 1]
        return len(same) if len(same) >= SHARED else 0

    @property
    def collapsed(self) -> bool:
        return len(self.samples) > FOLD_ABOVE

    @property
    def has_long_response(self) -> bool:
        """Is some text longer than its end that is shown first?"""
        return any(one.is_long for one in self.responses)

    def group_by_answer(self) -> list[AnswerGroup]:
        """By answer, the most frequent first, those without one last."""
        found: dict[str, list[GroupResponse]] = {}
        for one in self.responses:
            found.setdefault(one.answer, []).append(one)
        return sorted(
            (AnswerGroup(answer, ones) for answer, ones in found.items()),
            key=lambda fold: (not fold.answer, -fold.count, -fold.correct_count, fold.answer),
        )


def known(samples: Sequence[Sample]) -> list[float]:
    return [one.score for one in samples if one.score is not None]


def load_group_view(
    step: Step, group: str, *, whole: tuple[str, ...] = (), every: bool = False, compared: bool = False
) -> GroupView | None:
    """The group of this name; None where the step has none. Whole are the texts of the samples whose id begins with
    one of `whole`; of `every` one where they are not folded; to be `compared` with the best as many as `MOST_TEXT` has
    room for, the best among them. Raises StorageUnavailable."""
    rows = Sample.objects.filter(step=step, group=group, visible=True)
    final = list(rows.filter(final=True).order_by("dump", "ordinal"))
    if not final or not group:
        return None
    for one in final:
        one.step = step
    if every and len(final) <= FOLD_ABOVE:
        whole = ("",)
    wanted = TextBudget((*whole, find_highest_scored(final[:MOST]).pk), MOST_TEXT) if compared else TextBudget(whole)
    firsts: dict[str, None] = {}
    responses = [response(sample, body, wanted, firsts) for sample, body in read(final[:MOST])]
    responses.sort(key=place)
    inner = rows.filter(final=False).count()
    return GroupView(step, group, next(iter(firsts), ""), len(firsts), final, responses, inner)


def read(samples: Sequence[Sample]) -> Iterator[tuple[Sample, SampleBody | None]]:
    for at in range(0, len(samples), AT_ONCE):
        part = samples[at : at + AT_ONCE]
        found = load_bodies(part)
        yield from ((sample, found.get(sample.pk)) for sample in part)


def find_highest_scored(samples: Iterable[Sample]) -> Sample:
    """The one with the highest score, the last of them in the trainer's order; of some at least."""
    return max(samples, key=lambda one: (one.score is not None, *order(one)))


def response(sample: Sample, body: SampleBody | None, whole: TextBudget, prompts: dict[str, None]) -> GroupResponse:
    """Keeps of a body what is shown, and its prompt in `prompts`, of which there should be one."""
    if body is None:
        return GroupResponse(sample, None, "", False, False, None)
    if body.prompt:
        prompts.setdefault(body.prompt)
    answer = extract_final_answer(body.response, {**body.rewards, **body.extras})
    wanted = whole.takes(sample, body.response)
    cut = len(body.response) > TAIL_CHARS
    text = None if body.textless else body.response if wanted else body.response[-TAIL_CHARS:]
    return GroupResponse(sample, text, answer, wanted and cut, cut, body.ground_truth, parse_unit_tests(body.extras))


def place(one: GroupResponse) -> tuple[bool, float, bool, int, str]:
    """Lowest score first, those without one last; then in the trainer's order."""
    return (one.sample.score is None, *order(one.sample))


def order(sample: Sample) -> tuple[float, bool, int, str]:
    return (sample.score or 0.0, sample.index is None, sample.index or 0, sample.pk)


def find_group_step(run: Run, step: Step, group: str, attempt: Attempt | None) -> Step:
    """Where a group of this name is among the steps of the same number: an address does not say what a step counts."""
    steps = Step.objects.filter(run=run, split=step.split, step=step.step)
    steps = steps.filter(attempt=attempt) if attempt else steps.filter(superseded=False)
    others = [one for one in steps if one != step]
    if not others or Sample.objects.filter(step=step, group=group, visible=True).exists():
        return step
    having = Sample.objects.filter(step__in=others, group=group, visible=True).values_list("step", flat=True).first()
    return next((one for one in others if one.pk == having), step)
