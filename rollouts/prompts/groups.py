"""A group: the responses to one prompt in one step, to compare and to group by their answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from os.path import commonprefix
from statistics import fmean, pstdev
from typing import Final

from django.utils.translation import gettext as _

from rollouts.models import Attempt, Run, Sample, Step
from rollouts.samples import (
    SampleBody,
    SampleImage,
    UnitTestResults,
    extract_final_answer,
    list_images,
    load_bodies,
    parse_unit_tests,
    split_shared_images,
)

MAX_RESPONSES: Final = 512
MAX_OPEN_RESPONSES: Final = 8  # more are collapsed by answer
TAIL_CHARS: Final = 480  # end of a response that is shown first
BATCH_BODIES: Final = 32  # in memory
MAX_DIFF_CHARS: Final = 2_000_000  # of all full texts of a diff
MIN_SHARED_CHARS: Final = 24  # a shorter common start is not marked
CORRECTNESS: Final = {"right": True, "wrong": False}


@dataclass(slots=True, eq=False)
class GroupResponse:
    """One trajectory, by its last sample. `text` is the full text, or its end if it `is_long` and not `expanded`; None
    if only tokens were recorded or the body is missing."""

    sample: Sample
    text: str | None
    answer: str = ""
    expanded: bool = False
    is_long: bool = False
    ground_truth: str | None = None
    unit_tests: UnitTestResults | None = None
    images: list[SampleImage] = field(default_factory=list)
    has_body: bool = True


@dataclass(slots=True)
class TextBudget:
    """Selects the full texts: of samples whose id starts with a prefix, and of others up to `chars` in total."""

    id_prefixes: tuple[str, ...]
    chars: int

    def take(self, sample: Sample, text: str) -> bool:
        if sample.pk.startswith(self.id_prefixes):
            return True
        if len(text) > self.chars:
            return False
        self.chars -= len(text)
        return True


@dataclass(slots=True)
class AnswerGroup:
    """Responses with the same answer, or without one if `answer` is empty."""

    answer: str
    responses: list[GroupResponse]

    @property
    def count(self) -> int:
        return len(self.responses)

    @property
    def correct_count(self) -> int:
        return sum(response.sample.correct is True for response in self.responses)

    @property
    def score(self) -> float | None:
        scores = list_scores(response.sample for response in self.responses)
        return fmean(scores) if scores else None

    @property
    def correctness(self) -> str:
        """`correct` if all are, `3 correct` if some are."""
        if self.correct_count == self.count:
            return _("correct")
        return _("{count} correct").format(count=self.correct_count) if self.correct_count else ""

    @property
    def has_expanded(self) -> bool:
        return any(response.expanded for response in self.responses)


@dataclass(slots=True)
class GroupView:
    """`samples` has one sample per trajectory, `responses` at most `MAX_RESPONSES` of them, lowest score first.
    `intermediate_count` counts the earlier samples of the trajectories, `prompt_count` the different prompts of
    `responses`, of which `prompt` is the first. `prompt_images` are the images that all responses have."""

    step: Step
    group: str
    prompt: str
    prompt_count: int
    samples: list[Sample]
    responses: list[GroupResponse]
    intermediate_count: int
    prompt_images: list[SampleImage] = field(default_factory=list)

    @property
    def unnamed(self) -> bool:
        """Whether the trainer does not name groups. The name is then the prompt's key."""
        return self.samples[0].prompt_key == self.group

    @property
    def scores(self) -> list[float]:
        return list_scores(self.samples)

    @property
    def mean(self) -> float | None:
        return fmean(self.scores) if self.scores else None

    @property
    def score_std(self) -> float | None:
        return pstdev(self.scores) if len(self.scores) > 1 else None

    @property
    def zero_variance(self) -> bool:
        """The same rule as `is:zerovar`: two scores or more, all equal."""
        return len(self.scores) > 1 and len(set(self.scores)) == 1

    @property
    def evaluated_count(self) -> int:
        return sum(sample.correct is not None for sample in self.samples)

    @property
    def correct_count(self) -> int:
        return sum(sample.correct is True for sample in self.samples)

    @property
    def wrong_count(self) -> int:
        return self.evaluated_count - self.correct_count

    def filter_responses(self, correctness: str) -> GroupView:
        """Returns the view with only the `right` or only the `wrong` responses. Other values do not filter."""
        if correctness not in CORRECTNESS:
            return self
        responses = [each for each in self.responses if each.sample.correct is CORRECTNESS[correctness]]
        return replace(self, responses=responses)

    @property
    def ground_truth(self) -> str | None:
        truths = (response.ground_truth for response in self.responses)
        return next((truth for truth in truths if truth is not None), None)

    @property
    def shared_prefix_chars(self) -> int:
        """Length of the common start, in complete lines or words, of all texts that are shown from their start; 0 if
        it is shorter than `MIN_SHARED_CHARS`."""
        texts = [each.text for each in self.responses if each.text and (each.expanded or not each.is_long)]
        if len(texts) < 2:
            return 0
        prefix = commonprefix(texts)
        if any(len(text) > len(prefix) for text in texts):
            prefix = prefix[: max(prefix.rfind("\n"), prefix.rfind(" ")) + 1]
        return len(prefix) if len(prefix) >= MIN_SHARED_CHARS else 0

    @property
    def collapsed(self) -> bool:
        return len(self.samples) > MAX_OPEN_RESPONSES

    @property
    def has_long_response(self) -> bool:
        return any(response.is_long for response in self.responses)

    def group_by_answer(self) -> list[AnswerGroup]:
        """Returns the most frequent answer first, responses without an answer last."""
        responses: dict[str, list[GroupResponse]] = defaultdict(list)
        for response in self.responses:
            responses[response.answer].append(response)
        groups = [AnswerGroup(answer, same_answer) for answer, same_answer in responses.items()]
        return sorted(groups, key=lambda each: (not each.answer, -each.count, -each.correct_count, each.answer))


def list_scores(samples: Iterable[Sample]) -> list[float]:
    return [sample.score for sample in samples if sample.score is not None]


def load_group_view(
    step: Step, group: str, *, expanded: tuple[str, ...] = (), expand_all: bool = False, for_diff: bool = False
) -> GroupView | None:
    """Returns a group of a step, None if the step does not have it. Raises StorageUnavailableError. Samples whose id
    starts with one of `expanded` have their full text; with `expand_all` all samples, unless the group is collapsed;
    with `for_diff` the best response and as many others as `MAX_DIFF_CHARS` allows."""
    rows = Sample.objects.visible().filter(step=step, group=group)
    samples = list(rows.filter(final=True).order_by("dump", "ordinal"))
    if not samples or not group:
        return None
    for sample in samples:
        sample.step = step
    shown = samples[:MAX_RESPONSES]
    if expand_all and len(samples) <= MAX_OPEN_RESPONSES:
        expanded = ("",)
    if for_diff:
        expanded = (*expanded, find_highest_scored(shown).pk)
    budget = TextBudget(expanded, MAX_DIFF_CHARS if for_diff else 0)
    prompts: dict[str, None] = {}
    responses: list[GroupResponse] = []
    for start in range(0, len(shown), BATCH_BODIES):
        batch = shown[start : start + BATCH_BODIES]
        bodies = load_bodies(batch)
        responses += [build_response(sample, bodies.get(sample.pk), budget) for sample in batch]
        prompts |= {bodies[sample.pk].prompt: None for sample in batch if sample.pk in bodies}
    prompts.pop("", None)
    responses.sort(key=lambda response: (response.sample.score is None, *build_score_order(response.sample)))
    shared, own = split_shared_images([response.images for response in responses if response.has_body])
    for response, images in zip((response for response in responses if response.has_body), own, strict=True):
        response.images = images
    intermediate_count = rows.filter(final=False).count()
    prompt = next(iter(prompts), "")
    return GroupView(step, group, prompt, len(prompts), samples, responses, intermediate_count, shared)


def find_highest_scored(samples: Iterable[Sample]) -> Sample:
    """Returns the sample with the highest score, the last in the trainer's order if there are several."""
    return max(samples, key=lambda sample: (sample.score is not None, *build_score_order(sample)))


def build_score_order(sample: Sample) -> tuple[float, bool, int, str]:
    """Returns the sort key by score, then in the trainer's order."""
    return (sample.score or 0.0, sample.index is None, sample.index or 0, sample.pk)


def build_response(sample: Sample, body: SampleBody | None, budget: TextBudget) -> GroupResponse:
    if body is None:
        return GroupResponse(sample, None, has_body=False)
    answer = extract_final_answer(body.response, {**body.rewards, **body.extras})
    is_full, is_long = budget.take(sample, body.response), len(body.response) > TAIL_CHARS
    text = None if body.textless else body.response if is_full else body.response[-TAIL_CHARS:]
    unit_tests = parse_unit_tests(body.extras)
    return GroupResponse(
        sample, text, answer, is_full and is_long, is_long, body.ground_truth, unit_tests, list_images(body)
    )


def find_group_step(run: Run, step: Step, group: str, attempt: Attempt | None) -> Step:
    """Returns the step with this number that has the group: a URL does not contain the step kind."""
    steps = Step.objects.filter(run=run, split=step.split, step=step.step)
    steps = steps.filter(attempt=attempt) if attempt else steps.current()
    others = [other for other in steps if other != step]
    if not others or Sample.objects.visible().filter(step=step, group=group).exists():
        return step
    pk = Sample.objects.visible().filter(step__in=others, group=group).values_list("step", flat=True).first()
    return next((other for other in others if other.pk == pk), step)
