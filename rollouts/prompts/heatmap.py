"""Prompts over steps: which was solved when, for a set of prompts that comes again and again, as a validation does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db.models import Avg, Count, Max, Q

from rollouts.lib import MAX_HEATMAPS, cached
from rollouts.models import Run, Sample
from rollouts.prompts.history import is_solved

MAX_HEATMAP_STEPS: Final = 40
HEATMAP_ORDERS: Final = ("hardest", "easiest", "regressed", "first solved")
HEATMAP_KINDS: Final = ("all", "never", "regressed", "mixed", "always")

HeatmapValue = tuple[float, bool]  # its value, and whether that counts as solved


@dataclass(frozen=True, slots=True)
class HeatmapRow:
    """One prompt. `cells` has a value per step, None where the step lacks the prompt: the share of its trajectories
    that are correct, or its mean score where nothing is judged. `sample` is one of its newest."""

    key: str
    source: str
    values: tuple[float | None, ...]
    solved: tuple[bool, ...]
    sample: str

    @property
    def first_solved(self) -> int | None:
        """The place of the first step at which it was solved."""
        return next((at for at, yes in enumerate(self.solved) if yes), None)

    @property
    def known_values(self) -> list[float]:
        return [value for value in self.values if value is not None]

    @property
    def kind(self) -> str:
        """`never` solved, solved `always`, `regressed`: solved before but not where it was seen last; else `mixed`."""
        seen = [yes for yes, value in zip(self.solved, self.values, strict=True) if value is not None]
        if not any(seen):
            return "never"
        return "always" if all(seen) else "mixed" if seen[-1] else "regressed"

    @property
    def drop(self) -> float:
        """From its best to its last."""
        return max(self.known_values) - self.known_values[-1]


@dataclass(frozen=True, slots=True)
class PromptHeatmap:
    """`lines` of the prompts that at least two of the shown `steps` have, of `every` steps there are."""

    steps: tuple[int, ...]
    total_steps: int
    evaluated: bool
    rows: tuple[HeatmapRow, ...]

    def count_kinds(self) -> dict[str, int]:
        found = dict.fromkeys(HEATMAP_KINDS, 0) | {"all": len(self.rows)}
        for line in self.rows:
            found[line.kind] += 1
        return found

    def select_rows(self, kind: str, order: str) -> list[HeatmapRow]:
        found = [line for line in self.rows if kind in ("all", line.kind)]
        mean = {line.key: sum(line.known_values) / len(line.known_values) for line in found}
        if order == "easiest":
            return sorted(found, key=lambda line: (-mean[line.key], line.key))
        if order == "regressed":
            return sorted(found, key=lambda line: (-line.drop, line.key))
        if order == "first solved":
            return sorted(
                found, key=lambda line: (len(self.steps) if line.first_solved is None else line.first_solved, line.key)
            )
        return sorted(found, key=lambda line: (mean[line.key], line.key))


def load_prompt_heatmap(run: Run, split: str, step_kind: str) -> PromptHeatmap:
    """Of the run's current steps, evenly chosen with the first and the last where there are more than `MOST_STEPS`."""
    steps = run.steps.filter(split=split, step_kind=step_kind, superseded=False, samples__gt=0).order_by("step")
    found = list(steps.values_list("pk", "step", "version", "created_at"))
    return drawn(tuple(select_heatmap_steps(found)), len(found))


HeatmapStep = tuple[int, int, int, datetime]  # a step's id, number, version and birth, which together name its content


def select_heatmap_steps(found: Sequence[HeatmapStep]) -> list[HeatmapStep]:
    if len(found) <= MAX_HEATMAP_STEPS:
        return list(found)
    return [found[round(at * (len(found) - 1) / (MAX_HEATMAP_STEPS - 1))] for at in range(MAX_HEATMAP_STEPS)]


@cached(MAX_HEATMAPS)
def drawn(found: tuple[HeatmapStep, ...], every: int) -> PromptHeatmap:
    place = {pk: at for at, (pk, *_) in enumerate(found)}
    rows = list(told(list(place)))
    judged = any(row[3] for row in rows)
    cells: dict[str, dict[int, HeatmapValue]] = defaultdict(dict)
    sources: dict[str, str] = {}
    newest: dict[str, tuple[int, str]] = {}
    for key, step, score, known, right, source, sample in rows:
        if judged and known:
            cells[key][place[step]] = right / known, bool(is_solved(right, known))
        elif not judged and score is not None:
            cells[key][place[step]] = score, score > 0
        if place[step] >= newest.get(key, (-1, ""))[0]:
            sources[key], newest[key] = source, (place[step], sample)
    lines = [
        build_row(key, values, len(found), sources[key], newest[key][1])
        for key, values in cells.items()
        if len(values) > 1
    ]
    return PromptHeatmap(tuple(step for _, step, *_ in found), every, judged, tuple(lines))


def build_row(key: str, told: dict[int, HeatmapValue], width: int, source: str, sample: str) -> HeatmapRow:
    cells = [told.get(at, (None, False)) for at in range(width)]
    return HeatmapRow(key, source, tuple(value for value, _ in cells), tuple(yes for _, yes in cells), sample)


def told(steps: Sequence[int]) -> list[tuple[str, int, float | None, int, int, str, str]]:
    """(prompt key, step id, mean score, judged, correct, a data source, a sample's id), by the database."""
    rows = Sample.objects.filter(step__in=steps, visible=True, final=True).order_by().values("prompt_key", "step")
    return list(
        rows.annotate(
            mean=Avg("score"),
            known=Count("correct"),
            right=Count("pk", filter=Q(correct=True)),
            source=Max("data_source"),
            sample=Max("pk"),
        ).values_list("prompt_key", "step", "mean", "known", "right", "source", "sample")
    )
