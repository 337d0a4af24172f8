"""Steps: the row of one, its figures from the visible samples, and which attempt's steps count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from django.db.models import Min
from django.utils import timezone

from rollouts.metrics import find_copied_steps, find_generated_count
from rollouts.models import Flag, Run, Sample, Step
from rollouts.samples import FIELD_POSITIONS, TEXT_PROPERTY_BITS, IndexRow

SCORES = ("score_mean", "score_min", "score_max", "score_std", "score_p10", "score_p50", "score_p90")
# Fine near the ends of the usual reward, where one answer differs from another in kind.
REWARD_BINS = ["<0", "0", "(0, 0.5)", "[0.5, 1)", "1"]


class SampleStats(NamedTuple):
    """What the figures of a step are made of, per visible sample."""

    group: str
    final: bool
    score: float | None
    correct: bool | None
    chars: int
    truncated: bool | None
    facets: int
    data_source: str


seen_in: Callable[[IndexRow], IndexRow] = itemgetter(*(FIELD_POSITIONS[name] for name in SampleStats._fields))


def recompute_step_stats(step: Step, known: Iterable[IndexRow] | None = None) -> None:
    """Writes the step's statistics, from its visible rows. The caller holds the row's lock (`StepQuerySet.get_locked`).

    `known`: the step's rows, if the caller has just written them.
    """
    if known is None:
        found = Sample.objects.filter(step=step, visible=True).values_list(*SampleStats._fields)
        rows = list(map(SampleStats._make, found.iterator(chunk_size=5000)))
    else:
        rows = [SampleStats._make(seen_in(row)) for row in known if row[FIELD_POSITIONS["visible"]]]
    last = [row for row in rows if row.final]
    told = [row.truncated for row in rows if row.truncated is not None]
    lengths = [row.chars for row in rows if not row.facets & TEXT_PROPERTY_BITS["no-text"]]
    figures: dict[str, Any] = {
        "samples": len(rows),
        "generated": find_generated_count(step),
        "trajectories": len(last),
        "length_mean": float(np.mean(lengths)) if lengths else None,
        "truncated": sum(told) if told else None,
        "facets": facet_counts(rows) | judged(last),
        "by_source": by_source(last),
        "flags": Flag.objects.count_flagged_samples(step),
        **scores(np.array([row.score for row in last if row.score is not None], np.float64)),
        **groups(last),
    }
    figures["facets"] |= figures.pop("solved")
    Step.objects.filter(pk=step.pk).update(version=step.version + 1, updated_at=timezone.now(), **figures)
    step.refresh_from_db()


def facet_counts(rows: Sequence[SampleStats]) -> dict[str, int]:
    """{facet: samples}, those that occur; `intermediate` are samples that are not the last of their trajectory."""
    bits = np.array([row.facets for row in rows], np.uint32)
    counts = {name: int(np.count_nonzero(bits & bit)) for name, bit in TEXT_PROPERTY_BITS.items()}
    counts["intermediate"] = sum(not row.final for row in rows)
    return {name: count for name, count in counts.items() if count}


def judged(last: Sequence[SampleStats]) -> dict[str, int]:
    """How many trajectories were judged at all, and how many are correct; empty when none was."""
    known = [row.correct for row in last if row.correct is not None]
    return {"judged": len(known), "correct": sum(known)} if known else {}


def scores(values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, Any]:
    if not len(values):
        return dict.fromkeys(SCORES) | {"histogram": {}}
    p10, p50, p90 = np.percentile(values, (10, 50, 90)).tolist()
    return {
        "score_p10": p10,
        "score_p50": p50,
        "score_p90": p90,
        "score_mean": float(values.mean()),
        "score_min": float(values.min()),
        "score_max": float(values.max()),
        "score_std": float(values.std()),
        "histogram": build_histogram(values),
    }


def build_histogram(values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, Any]:
    """{"edges": n + 1 numbers, "counts": n, "labels": n texts}: five bins by `REWARD_BINS` for scores within -1 … 1,
    else ten of equal width. In the five, an edge that comes twice bounds the bin of that very value."""
    low, high = float(values.min()), float(values.max())
    if low >= -1 and high <= 1:
        counts = [
            int(np.count_nonzero(where))
            for where in (
                values < 0,
                values == 0,
                (values > 0) & (values < 0.5),
                (values >= 0.5) & (values < 1),
                values == 1,
            )
        ]
        return {"edges": [-1.0, 0.0, 0.0, 0.5, 1.0, 1.0], "counts": counts, "labels": REWARD_BINS}
    if low == high:
        return {"edges": [low, high], "counts": [len(values)], "labels": [f"{low:g}"]}
    found, edges = np.histogram(values, bins=10)
    labels = [f"{one:.3g} … {two:.3g}" for one, two in zip(edges, edges[1:], strict=False)]
    return {"edges": edges.tolist(), "counts": found.tolist(), "labels": labels}


def groups(last: Sequence[SampleStats]) -> dict[str, Any]:
    """Groups, those of two or more whose scores are all equal, and those that are wholly solved or not at all."""
    spans: dict[str, tuple[float, float, int]] = {}
    solved: dict[str, tuple[int, int]] = {}
    for row in last:
        if row.score is not None:
            low, high, count = spans.get(row.group, (row.score, row.score, 0))
            spans[row.group] = (min(low, row.score), max(high, row.score), count + 1)
        if row.correct is not None:
            right, count = solved.get(row.group, (0, 0))
            solved[row.group] = (right + row.correct, count + 1)
    counts = {
        "solve-all": sum(right == count for right, count in solved.values()),
        "solve-none": sum(right == 0 for right, _ in solved.values()),
    }
    return {
        "groups": len({row.group for row in last}),
        "zero_variance_groups": sum(low == high and count > 1 for low, high, count in spans.values()),
        "solved": counts if solved else {},
    }


def by_source(last: Sequence[SampleStats]) -> dict[str, dict[str, Any]]:
    """{data source: {"count", "score_mean"}}; empty when the run names no source."""
    counts = Counter(row.data_source for row in last)
    if set(counts) <= {""}:
        return {}
    totals: dict[str, list[float]] = {name: [] for name in counts}
    for row in last:
        if row.score is not None:
            totals[row.data_source].append(row.score)
    return {
        name: {"count": count, "score_mean": float(np.mean(totals[name])) if totals[name] else None}
        for name, count in counts.most_common(100)
    }


def mark_superseded_steps(run: Run) -> None:
    """Marks the steps that a later attempt did again: from its own first step on, each step kind by itself.

    Training steps count from the later attempt's first training step, evaluations from its first step of either
    split. Called under the run's row lock, so that two attempts that arrive together see each other.
    """
    doubles = find_copied_steps(run)
    told = run.steps.filter(samples__gt=0).exclude(pk__in=doubles)
    firsts = told.order_by().values_list("attempt__number", "step_kind", "split")
    first = {(number, kind, split): step for number, kind, split, step in firsts.annotate(first=Min("step"))}
    if doubles:
        run.steps.filter(pk__in=doubles).update(superseded=True)
    if len({number for number, _, _ in first}) < 2:
        return
    cuts: dict[tuple[int, str, str], int] = {}
    for (number, kind, split), step in first.items():
        for where in ("train", "eval") if split == "train" else ("eval",):
            cuts[number, kind, where] = min(step, cuts.get((number, kind, where), step))
    for number, kind, split in first:
        later = [step for (after, of, where), step in cuts.items() if after > number and (of, where) == (kind, split)]
        mine = run.steps.filter(attempt__number=number, step_kind=kind, split=split)
        gone = mine.filter(step__gte=min(later)) if later else mine.none()
        gone.filter(superseded=False).update(superseded=True)
        kept = mine.filter(superseded=True).exclude(pk__in=doubles)
        kept.exclude(pk__in=gone.values("pk")).update(superseded=False)
