"""Before and after: rates of the reward, of labels and of text properties, and how they differ between two runs or two
ranges of steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from django.db.models import Max, Min, QuerySet
from django.utils.translation import gettext_noop as N_

from rollouts import agreement
from rollouts.agreement import Estimate, RateChange
from rollouts.labels import Question, load_rubric
from rollouts.metrics import sum_properties
from rollouts.models import Run, Step
from rollouts.query import name_correctness_rules
from rollouts.reward_check.check import RewardReport, build_report, compare_reports
from rollouts.reward_check.draws import QueryMatches
from rollouts.reward_check.labelled import (
    KINDS,
    QuestionLabels,
    StepRange,
    is_review,
    list_good_values,
    load_labelled_run,
    load_question_labels,
)
from rollouts.reward_check.selection import RewardSelection, format_steps
from rollouts.samples import PROPERTY_CATALOG

MAX_LABEL_RATES: Final = 60
REWARD_TITLES: Final = {
    "wrong_of_rewarded": N_("wrong, of the rewarded"),
    "unrewarded_of_good": N_("not rewarded, of the right"),
    "good": N_("right according to people"),
    "rewarded": N_("rewarded"),
    "mean_score": N_("score, mean"),
}
PROPERTY_TITLES: Final = {
    "correct": N_("Correct"),
    **{prop.name: prop.title for prop in PROPERTY_CATALOG},
    "flagged": N_("Flagged"),
}
PROPERTY_TERMS: Final = {"correct": "is:correct", **{prop.name: prop.term for prop in PROPERTY_CATALOG}}


@dataclass(frozen=True, slots=True)
class Rate:
    """One line: `kind` is reward, label or property. `title` is translated where it is shown, `detail` is an answer or
    the rule of what is correct.
    `q` finds the samples, empty if no query does. A rate of a property counts all samples and has no interval."""

    kind: str
    title: str
    detail: str
    q: str
    change: RateChange

    @property
    def is_share(self) -> bool:
        return self.title != REWARD_TITLES["mean_score"]


def build_second_report(selection: RewardSelection, first: RewardReport) -> RewardReport:
    """Returns the report of the other side, with the threshold of the first one."""
    side = selection.second
    return build_report(load_labelled_run(side.run, side.asked, side.steps), first.check.threshold)


def compare_rates(selection: RewardSelection, first: RewardReport, second: RewardReport) -> list[Rate]:
    """Returns the rates of both sides of a comparison, of which these are the reports."""
    return [
        *compare_reward_rates(first, second),
        *list(iter_label_rates(selection))[:MAX_LABEL_RATES],
        *iter_property_rates(selection, find_split(selection.run)),
    ]


def compare_reward_rates(first: RewardReport, second: RewardReport) -> list[Rate]:
    changes = compare_reports(first, second)
    return [Rate("reward", title, "", "", changes[name]) for name, title in REWARD_TITLES.items()]


def iter_label_rates(selection: RewardSelection) -> Iterator[Rate]:
    """Yields the share of each answer to each question that people answered on one of both sides."""
    matches = QueryMatches()
    for question in load_rubric(selection.run.project).questions:
        if is_review(question) or question.kind not in (*KINDS, "choices"):
            continue
        first, second = (
            measure_answers(load_question_labels(side.run, question, side.steps, matches))
            for side in (selection, selection.second)
        )
        for value, title in list_answers(question):
            if any(side and side[value].size for side in (first, second)):
                change = agreement.compare_estimates(first.get(value, Estimate()), second.get(value, Estimate()))
                yield Rate("label", question.title, title, f"label.{question.key}={value}", change)


def list_answers(question: Question) -> list[tuple[str, str]]:
    """Returns the possible answers with their titles, which are not translated."""
    if question.kind in ("choice", "choices"):
        return [(option.key, option.title) for option in question.options]
    return [(value, value) for value, _title in list_good_values(question)]


def measure_answers(labels: QuestionLabels) -> dict[str, Estimate]:
    """Returns the share of each answer, of the samples that were drawn at random and labelled."""
    if labels.question.kind == "choices":
        has = labels.decide_options()
    else:
        said = labels.decide()
        values = [value for value, _title in list_answers(labels.question)]
        has = {value: {sample: answer == value for sample, answer in said.items()} for value in values}
    return {value: measure_share(labels, samples) for value, samples in has.items()}


def measure_share(labels: QuestionLabels, has: dict[str, bool]) -> Estimate:
    _rows, samples = labels.select(has)
    drawn = samples.select(~np.isnan(samples.probabilities))
    return agreement.measure_rate(drawn.good, drawn.probabilities, drawn.strata, drawn.groups)


def iter_property_rates(selection: RewardSelection, split: str) -> Iterator[Rate]:
    """Yields the shares of all samples, or of all groups, that have a property. They are counted, not estimated."""
    first, second = (count_properties(side, split) for side in (selection, selection.second))
    projects = selection.run.project, selection.second.run.project
    for name, title in PROPERTY_TITLES.items():
        counts = first.get(name, (0, 0)), second.get(name, (0, 0))
        if any(hits for hits, _total in counts):
            detail = name_correctness_rules(projects) if name == "correct" else ""
            estimates = [Estimate(hits / total if total else None, size=total) for hits, total in counts]
            q = PROPERTY_TERMS.get(name, f"is:{name}")
            yield Rate("property", title, detail, q, agreement.compare_estimates(*estimates))


def count_properties(side: RewardSelection, split: str) -> dict[str, tuple[int, int]]:
    steps = list_steps(side, split)
    samples, flagged = 0, 0
    for count, flags in steps.values_list("samples", "flags"):
        samples, flagged = samples + count, flagged + flags
    return sum_properties(steps) | {"flagged": (flagged, samples)}


def list_sides(selection: RewardSelection) -> list[dict[str, str]]:
    """Returns the runs and steps that are compared. `steps` were chosen, empty for all; `found` are the first and the
    last of them that have samples."""
    split = find_split(selection.run)
    return [
        {
            "run": side.run.uid,
            "name": side.run.name,
            "steps": format_steps(side.steps),
            "found": format_steps(find_step_range(side, split)),
        }
        for side in (selection, selection.second)
    ]


def find_step_range(side: RewardSelection, split: str) -> StepRange | None:
    """Returns the first and the last step that counts; None if there is none."""
    found = list_steps(side, split).aggregate(first=Min("step"), last=Max("step"))
    return None if found["first"] is None else (found["first"], found["last"])


def list_steps(side: RewardSelection, split: str) -> QuerySet[Step]:
    steps = Step.objects.current().filter(run=side.run, split=split, samples__gt=0)
    return steps if side.steps is None else steps.filter(step__range=side.steps)


def find_split(run: Run) -> str:
    """Returns the split whose properties are compared: train, unless the run has none."""
    steps = Step.objects.filter(run=run)
    return "eval" if not steps.filter(split="train").exists() and steps.exists() else "train"


def snapshot_rates(
    selection: RewardSelection, first: RewardReport | None = None, second: RewardReport | None = None
) -> dict[str, Any]:
    """Returns a comparison as a finding stores it. `first` and `second`: the reports of both sides, if the caller has
    them."""
    if first is None:
        first = build_report(load_labelled_run(selection.run, selection.asked, selection.steps), selection.threshold)
    rates = compare_rates(selection, first, second or build_second_report(selection, first))
    sides = list_sides(selection)
    runs = {side["run"]: side["name"] for side in sides}
    return {
        "runs": [{"uid": uid, "name": name} for uid, name in runs.items()],
        "sides": sides,
        "question": selection.asked.question.key,
        "good": sorted(selection.asked.good),
        "threshold": first.check.threshold,
        "split": find_split(selection.run),
        "rates": [
            {
                **{name: getattr(rate, name) for name in ("kind", "title", "detail", "q")},
                **{
                    name: {key: value for key, value in asdict(getattr(rate.change, name)).items() if key != "reason"}
                    for name in ("first", "second", "change")
                },
                "is_clear": rate.change.is_clear,
                "is_share": rate.is_share,
            }
            for rate in rates
        ],
    }
