"""What a reward check compares: a question, a threshold and steps of a run, and another run or other steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError
from rollouts.models import Queue, Run
from rollouts.reward_check.labelled import RewardQuestion, StepRange, parse_reward_question

MAX_STEP_DIGITS: Final = 18


@dataclass(frozen=True, slots=True)
class RewardSelection:
    """Without a `threshold` it is the best one. `steps` None means all. `other` is the run to compare with, `than` the
    steps to compare with, by default those of `steps`."""

    run: Run
    asked: RewardQuestion
    threshold: float | None = None
    steps: StepRange | None = None
    other: Run | None = None
    than: StepRange | None = None

    @property
    def is_comparison(self) -> bool:
        return self.other is not None or self.than is not None

    @property
    def second(self) -> RewardSelection:
        """What this is compared with."""
        return RewardSelection(self.other or self.run, self.asked, self.threshold, self.than or self.steps)


def parse_selection(
    run: Run,
    *,
    reader: int,
    question: str = "",
    good: Iterable[str] = (),
    threshold: str = "",
    steps: str = "",
    other: Run | None = None,
    than: str = "",
) -> RewardSelection:
    """Raises InvalidInputError, with the messages of all fields that cannot be read; also if the user `reader` reviews
    a blind queue: the labels of others are hidden from them. See `parse_reward_question` for `question` and `good`."""
    if Queue.objects.blind_for(reader).queues:
        raise InvalidInputError(_("You review a blind queue. Until it is closed, the reward check is hidden."), "run")
    asked = parse_reward_question(run.project, question, good)
    if errors := find_field_errors(threshold=threshold, steps=steps, than=than):
        raise InvalidInputError(" ".join(dict.fromkeys(errors.values())), next(iter(errors)))
    ranges = parse_steps(steps, "steps"), parse_steps(than, "than")
    return RewardSelection(
        run, asked, parse_threshold(threshold), ranges[0], None if other == run else other, ranges[1]
    )


def find_field_errors(*, threshold: str, steps: str, than: str) -> dict[str, str]:
    """The fields that cannot be read, with their messages."""
    errors: dict[str, str] = {}
    for field, text in (("threshold", threshold), ("steps", steps), ("than", than)):
        try:
            if field == "threshold":
                parse_threshold(text)
            else:
                parse_steps(text, field)
        except InvalidInputError as error:
            errors[field] = str(error)
    return errors


def parse_threshold(text: str) -> float | None:
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e300:
        raise InvalidInputError(_("The threshold must be a number."), "threshold")
    return value


def parse_steps(text: str, field: str) -> StepRange | None:
    """`41-80`, `41..80` as in queries, or one step; None if it is empty."""
    if not text.strip():
        return None
    first, dash, last = text.replace("–", "-").replace("..", "-").strip().partition("-")
    parts = [part.strip() for part in (first, last if dash else first)]
    if all(part.isdecimal() and len(part) <= MAX_STEP_DIGITS for part in parts):
        low, high = map(int, parts)
        if low <= high:
            return low, high
    raise InvalidInputError(_("Give steps as 41-80."), field)


def format_steps(steps: StepRange | None) -> str:
    """Returns what `parse_steps` reads."""
    if steps is None:
        return ""
    return str(steps[0]) if steps[0] == steps[1] else f"{steps[0]}-{steps[1]}"
