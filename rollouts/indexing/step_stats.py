"""Computes the statistics of a step from its visible samples."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
from django.utils import timezone

from rollouts.metrics import find_generated_count, find_step_guidance
from rollouts.models import RANGED_COLUMNS, Label, Sample, Step
from rollouts.samples import FIELD_POSITIONS, TEXT_PROPERTY_BITS, IndexRow

SCORE_FIELDS = ("score_mean", "score_min", "score_max", "score_std", "score_p10", "score_p50", "score_p90")
# Narrow at the ends of the usual reward range, where single values have a meaning.
REWARD_BINS = ["<0", "0", "(0, 0.5)", "[0.5, 1)", "1"]


MAX_PARTS = 24  # of a step; its most frequent ones
MAX_PART = 1e100  # larger values would make a mean infinite
MIN_HISTOGRAM_ULPS = 16  # a smaller range has no room for ten bins: numpy refuses it


class SampleStats(NamedTuple):
    """The fields of a visible sample that the statistics are computed from."""

    group: str
    final: bool
    score: float | None
    correct: bool | None
    chars: int
    tokens: int | None
    advantage: float | None
    duration: float | None
    truncated: bool | None
    staleness: int | None
    facets: int
    data_source: str
    parts: Mapping[str, Any] | str | None


get_stat_values: Callable[[IndexRow], IndexRow] = itemgetter(*(FIELD_POSITIONS[name] for name in SampleStats._fields))


def recompute_step_stats(step: Step, index_rows: Iterable[IndexRow] | None = None) -> None:
    """Writes the step's statistics, from its visible rows. The caller holds the row's lock (`StepQuerySet.get_locked`).

    `index_rows`: the step's rows, if the caller has just written them. If samples of the step were dropped, only the
    samples and flags are counted and the ranges computed again: the other statistics remain those of all samples.
    """
    if index_rows is None:
        stored = Sample.objects.filter(step=step, visible=True).values_list(*SampleStats._fields)
        rows = list(map(SampleStats._make, stored.iterator(chunk_size=5000)))
    else:
        rows = [SampleStats._make(get_stat_values(row)) for row in index_rows if row[FIELD_POSITIONS["visible"]]]
    if step.dropped:
        flags = Label.objects.count_flagged_samples(step)
        samples = max(step.samples, step.dropped + len(rows))  # more have arrived since
        kept: dict[str, Any] = {"samples": samples, "flags": flags, "ranges": compute_ranges(rows)}
        Step.objects.filter(pk=step.pk).update(version=step.version + 1, updated_at=timezone.now(), **kept)
        step.refresh_from_db()
        return
    final = [row for row in rows if row.final]
    truncated = [row.truncated for row in rows if row.truncated is not None]
    staleness = [row.staleness for row in rows if row.staleness is not None]
    correct = [row.correct for row in final if row.correct is not None]
    lengths = [row.chars for row in rows if not row.facets & TEXT_PROPERTY_BITS["no-text"]]
    group_stats, group_outcomes = compute_group_stats(final)
    stats: dict[str, Any] = {
        "samples": len(rows),
        "generated": find_generated_count(step),
        "guidance": find_step_guidance(step),
        "trajectories": len(final),
        "length_mean": float(np.mean(lengths)) if lengths else None,
        "truncated": sum(truncated) if truncated else None,
        "staleness_mean": float(np.mean(staleness)) if staleness else None,
        "staleness_max": max(staleness, default=None),
        "facets": count_properties(rows)
        | ({"judged": len(correct), "correct": sum(correct)} if correct else {})
        | group_outcomes,
        "by_source": compute_source_stats(final),
        "parts": compute_part_stats(final),
        "ranges": compute_ranges(rows),
        "flags": Label.objects.count_flagged_samples(step),
        **compute_score_stats(np.array([row.score for row in final if row.score is not None], np.float64)),
        **group_stats,
    }
    Step.objects.filter(pk=step.pk).update(version=step.version + 1, updated_at=timezone.now(), **stats)
    step.refresh_from_db()


def count_properties(rows: Sequence[SampleStats]) -> dict[str, int]:
    """Returns the samples of each text property that occurs, and those that do not end their trajectory."""
    bits = np.array([row.facets for row in rows], np.uint32)
    counts = {name: int(np.count_nonzero(bits & bit)) for name, bit in TEXT_PROPERTY_BITS.items()}
    counts["intermediate"] = sum(not row.final for row in rows)
    is_correct = np.array([row.correct is True for row in rows], np.bool_)
    counts["answer-mismatch"] = int(np.count_nonzero(bits[is_correct] & TEXT_PROPERTY_BITS["other-answer"]))
    return {name: count for name, count in counts.items() if count}


def compute_ranges(rows: Sequence[SampleStats]) -> dict[str, tuple[float, float]]:
    """Returns {ordering: (lowest, highest value)} of all samples, for orderings of which a value is known."""
    ranges = {}
    for name, column in RANGED_COLUMNS.items():
        if values := [value for row in rows if (value := getattr(row, column)) is not None]:
            ranges[name] = (min(values), max(values))
    return ranges


def compute_score_stats(scores: npt.NDArray[np.float64]) -> dict[str, Any]:
    if not len(scores):
        return dict.fromkeys(SCORE_FIELDS) | {"histogram": {}}
    percentiles = np.percentile(scores, (10, 50, 90)).tolist()
    values = (float(scores.mean()), float(scores.min()), float(scores.max()), float(scores.std()), *percentiles)
    return dict(zip(SCORE_FIELDS, values, strict=True)) | {"histogram": build_histogram(scores)}


def build_histogram(values: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Returns {"edges": n + 1 numbers, "counts": n, "labels": n texts}.

    The bins are the five of `REWARD_BINS` if all scores are between -1 and 1, else ten of equal width, or one if the
    scores differ by rounding only. In the five, an edge that occurs twice bounds the bin of exactly that value.
    """
    low, high = float(values.min()), float(values.max())
    if low >= -1 and high <= 1:
        masks = (values < 0, values == 0, (values > 0) & (values < 0.5), (values >= 0.5) & (values < 1), values == 1)
        counts = [int(np.count_nonzero(mask)) for mask in masks]
        return {"edges": [-1.0, 0.0, 0.0, 0.5, 1.0, 1.0], "counts": counts, "labels": REWARD_BINS}
    if high - low <= MIN_HISTOGRAM_ULPS * np.spacing(max(abs(low), abs(high))):
        return {"edges": [low, high], "counts": [len(values)], "labels": [f"{low:g}"]}
    bin_counts, edges = np.histogram(values, bins=10)
    labels = [f"{start:.3g} … {end:.3g}" for start, end in zip(edges, edges[1:], strict=False)]
    return {"edges": edges.tolist(), "counts": bin_counts.tolist(), "labels": labels}


def compute_group_stats(final: Sequence[SampleStats]) -> tuple[dict[str, int], dict[str, int]]:
    """Returns ({groups, zero_variance_groups}, {solve-all, solve-none}) as counts of groups. The second is empty if no
    correctness is known. A group has zero variance if it has two or more scores, all equal."""
    scores: dict[str, list[float]] = defaultdict(list)
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for row in final:
        if row.score is not None:
            scores[row.group].append(row.score)
        if row.correct is not None:
            outcomes[row.group].append(row.correct)
    stats = {
        "groups": len({row.group for row in final}),
        "zero_variance_groups": sum(len(known) > 1 and min(known) == max(known) for known in scores.values()),
    }
    groups = outcomes.values()
    solved = {"solve-all": sum(map(all, groups)), "solve-none": sum(not any(group) for group in groups)}
    return stats, solved if outcomes else {}


def compute_source_stats(final: Sequence[SampleStats]) -> dict[str, dict[str, Any]]:
    """Returns {data source: {"count", "score_mean"}} of the 100 largest, empty if the run has no data sources."""
    counts = Counter(row.data_source for row in final)
    if set(counts) <= {""}:
        return {}
    scores: dict[str, list[float]] = defaultdict(list)
    for row in final:
        if row.score is not None:
            scores[row.data_source].append(row.score)
    return {
        name: {"count": count, "score_mean": float(np.mean(scores[name])) if scores[name] else None}
        for name, count in counts.most_common(100)
    }


def compute_part_stats(final: Sequence[SampleStats]) -> dict[str, dict[str, Any]]:
    """Returns {reward part: {"mean", "is_score"}}, the mean over the samples that have the part. `is_score`: it equals
    the score of each of them."""
    values: dict[str, list[float]] = defaultdict(list)
    differing: set[str] = set()
    for row in final:
        if not row.parts:
            continue
        parts = orjson.loads(row.parts) if isinstance(row.parts, str) else row.parts
        for name, value in parts.items():
            if value is not None and abs(value) < MAX_PART:
                values[name].append(value)
                if value != row.score:
                    differing.add(name)
    names = sorted(values, key=lambda name: (-len(values[name]), name))[:MAX_PARTS]
    return {name: {"mean": float(np.mean(values[name])), "is_score": name not in differing} for name in names}
