"""The samples of one step on the timeline: the slowest ones, and how stale they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count
from django.utils.translation import gettext as _

from dashboard.pages.common import SampleRow, StepUrlState, build_sample_rows
from dashboard.pages.timeline.phase_chart import PHASE_NAMES
from rollouts.errors import StorageUnavailableError
from rollouts.models import BlindQueues, Run, Sample, Step, join_concurrent_steps
from rollouts.samples import SampleTiming, load_bodies, read_timing

MAX_SLOWEST = 8
MIN_REST = 0.01  # of the duration of a sample, from which its rest is shown
MAX_STALENESS_ROWS = 4  # the last one is "3 or more"


@dataclass(frozen=True, slots=True)
class SlowSample:
    """`parts` are its phases with seconds, and with start and share in percent of the slowest sample."""

    row: SampleRow
    parts: Sequence[dict[str, Any]]
    speed: float | None  # tokens per second


@dataclass(frozen=True, slots=True)
class StalenessRow:
    label: str
    count: int
    share: float
    term: str


def find_sample_step(run: Run, step_kind: str, step: int) -> Step | None:
    rows = run.steps.current().filter(split="train", step_kind=step_kind, step=step)
    return rows.select_related("attempt").order_by("-attempt__number").first()


def build_samples_context(step: Step | None, blind: BlindQueues) -> dict[str, Any]:
    """The context of the lower part of the page."""
    if step is None:
        return {"sample_step": None, "slowest": [], "staleness": []}
    samples = Sample.objects.visible().filter(step__in=join_concurrent_steps([step])[step.pk])
    timed = samples.exclude(duration=None)
    count = timed.count()
    median = timed.order_by("duration").values_list("duration", flat=True)[(count - 1) // 2] if count else None
    slowest = list(timed.select_related("step").order_by("-duration", "pk")[:MAX_SLOWEST])
    url_state = StepUrlState(sort="-duration")
    return {
        "sample_step": step,
        "slowest": build_slow_samples(slowest, blind),
        "timed_count": count,
        "median_duration": median,
        "by_duration": url_state.link(),
        "staleness": build_staleness_rows(samples, step),
    }


def build_slow_samples(samples: list[Sample], blind: BlindQueues) -> list[SlowSample]:
    timings = load_timings(samples)
    longest = max((sample.duration or 0.0 for sample in samples), default=0.0) or 1.0
    rows = []
    for row in build_sample_rows(samples, blind):
        sample, duration = row.sample, row.sample.duration or 0.0
        parts = list_parts(timings.get(sample.pk, SampleTiming()), duration, longest)
        rows.append(SlowSample(row, parts, sample.tokens / duration if sample.tokens and duration else None))
    return rows


def list_parts(timing: SampleTiming, duration: float, longest: float) -> list[dict[str, Any]]:
    """The recorded parts of a sample, and `other` for the rest of its duration."""
    known = {"generation": timing.generation or 0.0, "tool": timing.tool or 0.0, "reward": timing.reward or 0.0}
    rest = duration - sum(known.values())
    seconds = {**known, "other": rest if rest > MIN_REST * duration else 0.0}
    parts, start = [], 0.0
    for phase, value in seconds.items():
        if value:
            share = 100 * value / longest
            parts.append(
                {"phase": phase, "name": _(PHASE_NAMES[phase]), "seconds": value, "share": share, "start": start}
            )
            start += share
    return parts


def load_timings(samples: list[Sample]) -> dict[str, SampleTiming]:
    """The parts of the samples; without those whose body cannot be read now."""
    try:
        bodies = load_bodies(samples)
    except StorageUnavailableError:
        return {}
    return {pk: read_timing(body.timing, body.metrics) for pk, body in bodies.items()}


def build_staleness_rows(samples: Any, step: Step) -> list[StalenessRow]:
    """How many samples are 0, 1, 2, or more versions behind; empty if none has a known staleness."""
    if step.staleness_max is None:
        return []
    known = samples.exclude(staleness=None).order_by()
    counts = dict(known.values_list("staleness").annotate(Count("pk")))
    total = sum(counts.values())
    rows = []
    for number in range(MAX_STALENESS_ROWS):
        is_last = number == MAX_STALENESS_ROWS - 1
        count = sum(own for value, own in counts.items() if value == number or (is_last and value > number))
        label = _("0, on-policy") if not number else _("{number} or more").format(number=number)
        text = label if is_last or not number else str(number)
        term = f"staleness>={number}" if is_last else f"staleness={number}"
        rows.append(StalenessRow(text, count, 100 * count / (total or 1), term))
    return rows
