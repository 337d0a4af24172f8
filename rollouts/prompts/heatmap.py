"""The prompt heatmap: which prompts were solved at which steps, for prompts that repeat, as in an evaluation."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean
from typing import Final

from django.db.models import Avg, Count, Max, Q

from rollouts.lib import CacheSize, cached
from rollouts.models import Run, Sample
from rollouts.prompts.history import is_solved

MAX_HEATMAP_STEPS: Final = 40
HEATMAP_ORDERS: Final = ("hardest", "easiest", "regressed", "first solved")
HEATMAP_KINDS: Final = ("all", "never", "regressed", "mixed", "always")

HeatmapStep = tuple[int, int, int, datetime]  # number, id, version and creation time, which identify the content
HeatmapValue = tuple[float, bool]  # a value, and whether it counts as solved


@dataclass(frozen=True, slots=True)
class HeatmapRow:
    """One prompt; `sample` is a sample of its newest step. `values` has the share of correct trajectories at each step,
    or their mean score if none of the heatmap was evaluated; None if the step does not have the prompt."""

    key: str
    source: str
    values: tuple[float | None, ...]
    solved: tuple[bool, ...]
    sample: str

    @property
    def first_solved(self) -> int | None:
        """The position of the first step at which the prompt was solved."""
        return next((position for position, solved in enumerate(self.solved) if solved), None)

    @property
    def known_values(self) -> list[float]:
        return [value for value in self.values if value is not None]

    @property
    def kind(self) -> str:
        """`never` solved, `always` solved, `regressed` (solved before, but not at its last step), or `mixed`."""
        known = [solved for solved, value in zip(self.solved, self.values, strict=True) if value is not None]
        if not any(known):
            return "never"
        return "always" if all(known) else "mixed" if known[-1] else "regressed"

    @property
    def drop(self) -> float:
        """The best value minus the last."""
        return max(self.known_values) - self.known_values[-1]


@dataclass(frozen=True, slots=True)
class PromptHeatmap:
    """`rows` are the prompts that at least two of `steps` have. `total_steps` counts the steps before selection."""

    steps: tuple[int, ...]
    total_steps: int
    evaluated: bool
    rows: tuple[HeatmapRow, ...]

    def count_kinds(self) -> dict[str, int]:
        counts = Counter(row.kind for row in self.rows)
        return {kind: len(self.rows) if kind == "all" else counts[kind] for kind in HEATMAP_KINDS}

    def select_rows(self, kind: str, order: str) -> list[HeatmapRow]:
        rows = sorted((row for row in self.rows if kind in ("all", row.kind)), key=lambda row: row.key)
        match order:
            case "easiest":
                return sorted(rows, key=lambda row: -fmean(row.known_values))
            case "regressed":
                return sorted(rows, key=lambda row: -row.drop)
            case "first solved":
                return sorted(rows, key=lambda row: len(self.steps) if row.first_solved is None else row.first_solved)
        return sorted(rows, key=lambda row: fmean(row.known_values))


def load_prompt_heatmap(run: Run, split: str, step_kind: str) -> PromptHeatmap:
    """Returns the heatmap of the run's current steps, see `select_heatmap_steps`."""
    rows = run.steps.current().filter(split=split, step_kind=step_kind, samples__gt=0).order_by("step")
    steps = list(rows.values_list("step", "pk", "version", "created_at"))
    numbers = list(dict.fromkeys(number for number, *_ in steps))  # attempts at the same time have a row each
    selected = set(select_heatmap_steps(numbers))
    return build_heatmap(tuple(step for step in steps if step[0] in selected), len(numbers))


def select_heatmap_steps(numbers: Sequence[int]) -> list[int]:
    """Returns at most `MAX_HEATMAP_STEPS` steps, evenly spaced, with the first and the last."""
    if len(numbers) <= MAX_HEATMAP_STEPS:
        return list(numbers)
    return [numbers[round(at * (len(numbers) - 1) / (MAX_HEATMAP_STEPS - 1))] for at in range(MAX_HEATMAP_STEPS)]


@cached(CacheSize.HEATMAPS)
def build_heatmap(steps: tuple[HeatmapStep, ...], total_steps: int) -> PromptHeatmap:
    numbers = tuple(dict.fromkeys(number for number, *_ in steps))
    positions = {number: position for position, number in enumerate(numbers)}
    statistics = load_prompt_statistics([pk for _, pk, *_ in steps])
    is_evaluated = any(evaluated for _, _, _, evaluated, *_ in statistics)
    values: dict[str, dict[int, HeatmapValue]] = defaultdict(dict)
    newest: dict[str, tuple[int, str, str]] = {}  # position of the step, data source, sample
    for key, step, score, evaluated, correct, source, sample in statistics:
        position = positions[step]
        if is_evaluated and evaluated:
            values[key][position] = correct / evaluated, bool(is_solved(correct, evaluated))
        elif not is_evaluated and score is not None:
            values[key][position] = score, score > 0
        if key not in newest or position >= newest[key][0]:
            newest[key] = position, source, sample
    rows: list[HeatmapRow] = []
    for key, (_, source, sample) in newest.items():
        if len(values[key]) > 1:
            cells = [values[key].get(position, (None, False)) for position in range(len(numbers))]
            row_values, solved = zip(*cells, strict=True)
            rows.append(HeatmapRow(key, source, row_values, solved, sample))
    return PromptHeatmap(numbers, total_steps, is_evaluated, tuple(rows))


def load_prompt_statistics(step_ids: Sequence[int]) -> list[tuple[str, int, float | None, int, int, str, str]]:
    """Returns [(prompt key, step number, mean score, evaluated, correct, a data source, a sample's id)]."""
    rows = Sample.objects.visible().filter(step__in=step_ids, final=True).order_by()
    return list(rows.values_list("prompt_key", "step__step").annotate(
        mean=Avg("score"), evaluated=Count("correct"), correct_count=Count("pk", filter=Q(correct=True)),
        source=Max("data_source"), sample=Max("pk"),
    ))  # fmt: skip
