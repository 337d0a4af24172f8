"""One prompt over steps, attempts and the runs of a project: how it went at each, and when it was solved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from django.db.models import Avg, Count, F, Q

from rollouts.models import Attempt, Run, Sample, SampleQuerySet

MOST_LINES: Final = 16
MOST_ANSWERS: Final = 512  # of one step


class PromptStepStats(NamedTuple):
    """The answers of one step, each trajectory by its last sample: `right` of `judged` are correct."""

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
    """One run, as it counts today; or an earlier attempt, by the steps that a later one did again. In step order."""

    run: Run
    kind: str
    attempt: Attempt | None
    steps: list[PromptStepStats] = field(default_factory=list)

    @property
    def evaluated_steps(self) -> list[PromptStepStats]:
        return [one for one in self.steps if one.evaluated]

    @property
    def solved_steps(self) -> list[PromptStepStats]:
        return [one for one in self.steps if one.solved]

    @property
    def regressed(self) -> bool:
        """Solved before, and not at the last step that was judged."""
        return bool(self.solved_steps) and not self.evaluated_steps[-1].solved


@dataclass(slots=True)
class PromptHistory:
    """`lines`: the run first, then its earlier attempts, then the other runs with the latest news; `left` are how many
    more there are. `expected` are the heads of the ground truths that came with the prompt."""

    histories: list[PromptRunHistory]
    omitted_count: int
    expected: list[str]


def load_prompt_history(run: Run, prompt_key: str, split: str) -> PromptHistory:
    """How the prompt went everywhere in the run's project. Five queries at most."""
    found = asked(run, prompt_key, split)
    lines = gathered(found)
    lines.sort(key=lambda line: rank(line, run))
    truths = found.exclude(expected="").order_by("expected").values_list("expected", flat=True).distinct()
    return PromptHistory(lines[:MOST_LINES], max(0, len(lines) - MOST_LINES), list(truths[:5]))


def asked(run: Run, prompt_key: str, split: str) -> SampleQuerySet:
    samples = Sample.objects.filter(prompt_key=prompt_key, visible=True, final=True, step__split=split)
    return samples.filter(step__run__project=run.project_id, step__run__deleted_at=None)


def gathered(samples: SampleQuerySet) -> list[PromptRunHistory]:
    where = ("step__run", "step__step_kind", "step__superseded", "step__attempt", "step__step")
    told = samples.order_by().values_list(*where).annotate(
        answers=Count("pk"), mean=Avg("score"), right=Count("pk", filter=Q(correct=True)), judged=Count("correct")
    )  # fmt: skip
    steps: dict[tuple[int, str, int | None], list[PromptStepStats]] = {}
    for run, kind, old, attempt, *figures in told.order_by("step__step"):
        steps.setdefault((run, kind, attempt if old else None), []).append(PromptStepStats(*figures))
    runs = Run.objects.in_bulk({run for run, _, _ in steps})
    attempts = Attempt.objects.in_bulk({attempt for _, _, attempt in steps if attempt})
    return [
        PromptRunHistory(runs[run], kind, attempts.get(old or 0), found) for (run, kind, old), found in steps.items()
    ]


def rank(line: PromptRunHistory, own: Run) -> tuple[bool, float, int]:
    number = line.attempt.number if line.attempt else 0
    return (line.run != own, -line.run.seen_at.timestamp() if line.run != own else 0.0, -number if number else -(10**9))


def find_run_history(
    lines: Sequence[PromptRunHistory], run: Run, attempt: Attempt | None, kind: str
) -> PromptRunHistory | None:
    """The line of a run, or of one of its earlier attempts; of several axes the one that pages show, if it is there."""
    own = [line for line in lines if line.run == run and line.attempt == attempt]
    return next((line for line in own if line.kind == kind), own[0] if own else None)


def load_prompt_answers(line: PromptRunHistory, prompt_key: str, split: str, step: int) -> list[Sample]:
    """The answers of one step, lowest score first, those without one last."""
    rows = Sample.objects.filter(prompt_key=prompt_key, visible=True, final=True)
    rows = rows.filter(step__run=line.run, step__split=split, step__step_kind=line.kind, step__step=step)
    rows = rows.filter(step__attempt=line.attempt) if line.attempt else rows.filter(step__superseded=False)
    return list(rows.select_related("step__attempt").order_by(F("score").asc(nulls_last=True), "pk")[:MOST_ANSWERS])


def find_best_answer(samples: Sequence[Sample]) -> Sample | None:
    """A correct one with the highest score, else the one with the highest score."""
    return max(samples, key=lambda one: (one.correct is True, one.score is not None, one.score or 0.0), default=None)


def find_comparison_step(line: PromptRunHistory, step: int) -> tuple[PromptStepStats, str] | None:
    """The earlier step that a step is best compared with, and why that one: for a step that nobody solved the last that
    somebody did, else the one before."""
    earlier = [one for one in line.steps if one.step < step]
    here = next((one for one in line.steps if one.step == step), None)
    solved = [one for one in earlier if one.solved]
    if here and here.evaluated and not here.solved and solved:
        return solved[-1], "the last step that solved it"
    return (earlier[-1], "the step before") if earlier else None


def find_prompt_samples(run: Run, prompt_key: str, *, split: str = "", attempt: str = "") -> SampleQuerySet:
    """The samples of one prompt over the run's current steps (`attempt` as in `search.find`), oldest step first."""
    shown = Sample.objects.filter(prompt_key=prompt_key, visible=True, step__run=run).select_related("step")
    if split:
        shown = shown.filter(step__split=split)
    if not attempt:
        shown = shown.filter(step__superseded=False)
    elif attempt != "all":
        shown = shown.filter(step__attempt__key=attempt)
    return shown.order_by("step__step", "step", F("index").asc(nulls_last=True), "ordinal", "pk")


def is_solved(right: int, judged: int) -> bool | None:
    """Are at least half of its judged answers right? None where none was judged."""
    return 2 * right >= judged if judged else None
