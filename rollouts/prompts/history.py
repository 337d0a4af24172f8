"""The history of one prompt over the steps, attempts and runs of a project."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from django.db.models import Avg, Case, Count, F, Q, When

from rollouts.models import Attempt, Run, Sample, SampleQuerySet

MAX_HISTORIES: Final = 16
MAX_ANSWERS: Final = 512  # of one step


class PromptStepStats(NamedTuple):
    """Responses at one step, each trajectory by its last sample: `correct` of `evaluated` are correct."""

    step: int
    answers: int
    mean: float | None
    correct: int
    evaluated: int

    @property
    def solved(self) -> bool:
        return is_solved(self.correct, self.evaluated) or False


@dataclass(slots=True)
class PromptRunHistory:
    """The current steps of a run, or the superseded steps of an earlier `attempt`, in order."""

    run: Run
    step_kind: str
    attempt: Attempt | None
    steps: list[PromptStepStats]

    @property
    def evaluated_steps(self) -> list[PromptStepStats]:
        return [step for step in self.steps if step.evaluated]

    @property
    def solved_steps(self) -> list[PromptStepStats]:
        return [step for step in self.steps if step.solved]

    @property
    def regressed(self) -> bool:
        """Whether the prompt was solved before, but not at its last evaluated step."""
        return bool(self.solved_steps) and not self.evaluated_steps[-1].solved


@dataclass(slots=True)
class PromptHistory:
    """`histories` has the run first, then its earlier attempts, then other runs, last updated first;
    `omitted_count` more are omitted. `expected` are the starts of the recorded ground truths."""

    histories: list[PromptRunHistory]
    omitted_count: int
    expected: list[str]


def load_prompt_history(run: Run, prompt_key: str, split: str) -> PromptHistory:
    """Returns the history in all runs of the project, in at most five SQL queries."""
    samples = Sample.objects.visible().filter(prompt_key=prompt_key, final=True, step__split=split)
    samples = samples.filter(step__run__project=run.project_id, step__run__deleted_at=None)
    histories = sorted(load_run_histories(samples), key=lambda history: build_history_order(history, run))
    expected = samples.exclude(expected="").order_by("expected").values_list("expected", flat=True).distinct()
    return PromptHistory(histories[:MAX_HISTORIES], max(0, len(histories) - MAX_HISTORIES), list(expected[:5]))


def load_run_histories(samples: SampleQuerySet) -> list[PromptRunHistory]:
    # The current steps of attempts that run at the same time are one step.
    earlier = Case(When(step__superseded=True, then=F("step__attempt")))
    columns = ("step__run", "step__step_kind", "earlier", "step__step")
    rows = samples.order_by().annotate(earlier=earlier).values_list(*columns).annotate(
        answers=Count("pk"), mean=Avg("score"), correct_count=Count("pk", filter=Q(correct=True)),
        evaluated=Count("correct"),
    )  # fmt: skip
    steps: dict[tuple[int, str, int | None], list[PromptStepStats]] = defaultdict(list)
    for run, kind, attempt, *statistics in rows.order_by("step__step"):
        steps[run, kind, attempt].append(PromptStepStats(*statistics))
    runs = Run.objects.in_bulk({run for run, _, _ in steps})
    attempts = Attempt.objects.in_bulk({attempt for _, _, attempt in steps if attempt})
    return [
        PromptRunHistory(runs[run], kind, attempts.get(attempt or 0), run_steps)
        for (run, kind, attempt), run_steps in steps.items()
    ]


def build_history_order(history: PromptRunHistory, run: Run) -> tuple[bool, float, bool, int]:
    is_other, attempt = history.run != run, history.attempt
    updated = history.run.seen_at.timestamp() if is_other else 0.0
    return is_other, -updated, attempt is not None, -attempt.number if attempt else 0


def find_run_history(
    histories: Sequence[PromptRunHistory], run: Run, attempt: Attempt | None, step_kind: str
) -> PromptRunHistory | None:
    """Returns the history of a run or of an earlier attempt, with this step kind if there are several."""
    own = [history for history in histories if history.run == run and history.attempt == attempt]
    return next((history for history in own if history.step_kind == step_kind), own[0] if own else None)


def load_prompt_answers(history: PromptRunHistory, prompt_key: str, split: str, step: int) -> list[Sample]:
    """Returns the responses at one step, lowest score first, those without a score last."""
    rows = Sample.objects.visible().filter(prompt_key=prompt_key, final=True)
    rows = rows.filter(step__run=history.run, step__split=split, step__step_kind=history.step_kind, step__step=step)
    rows = rows.filter(step__attempt=history.attempt) if history.attempt else rows.in_current_steps()
    return list(rows.select_related("step__attempt").order_by(F("score").asc(nulls_last=True), "pk")[:MAX_ANSWERS])


def find_best_answer(samples: Sequence[Sample]) -> Sample | None:
    """Returns the sample with the highest score, of the correct ones if there are any."""
    return max(samples, default=None, key=lambda each: (each.correct is True, each.score is not None, each.score or 0))


def find_comparison_step(history: PromptRunHistory, step: int) -> tuple[PromptStepStats, str] | None:
    """Returns the earlier step to compare a step with, and why: if the step did not solve the prompt, the last step
    that did, else the step before."""
    earlier = [other for other in history.steps if other.step < step]
    current = next((other for other in history.steps if other.step == step), None)
    solved = [other for other in earlier if other.solved]
    if current and current.evaluated and not current.solved and solved:
        return solved[-1], "the last step that solved it"
    return (earlier[-1], "the step before") if earlier else None


def find_prompt_samples(run: Run, prompt_key: str, *, split: str = "", attempt: str = "") -> SampleQuerySet:
    """Returns the samples of one prompt, oldest step first. `split` and `attempt` are as in `find_samples`."""
    samples = Sample.objects.visible().filter(prompt_key=prompt_key, step__run=run).select_related("step")
    if split:
        samples = samples.filter(step__split=split)
    if not attempt:
        samples = samples.in_current_steps()
    elif attempt != "all":
        samples = samples.filter(step__attempt__key=attempt)
    return samples.order_by("step__step", "step", F("index").asc(nulls_last=True), "ordinal", "pk")


def is_solved(correct: int, evaluated: int) -> bool | None:
    """Returns whether at least half of the evaluated responses are correct; None if none was evaluated."""
    return 2 * correct >= evaluated if evaluated else None
