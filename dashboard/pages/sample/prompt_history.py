"""The same prompt over the steps of a run: what it scored at each, and the row of bars that shows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from django.db.models import QuerySet
from django.urls import reverse
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from dashboard.pages.common import step_strip
from dashboard.pages.common.formatting import num
from rollouts.models import Run, Sample

MOST_STEPS = 60
# Steps to each side that are looked through before all are: a prompt of an evaluation is in every one of thousands.
NEAR = (MOST_STEPS, 6 * MOST_STEPS, 36 * MOST_STEPS)
WIDEST = 48  # pixels of a bar
NARROW = 8  # per cent of the row: below that a number is wider than its bar
TALLEST, BASE = 28, 26  # pixels

Place = tuple[int, str, int, str]  # run id, split, step, prompt key
Told = tuple[int, float | None, str]  # step, score, sample id


@dataclass(slots=True)
class Past:
    """The same prompt at one step: `score` is the mean of its samples there, `pk` one of them. `height` in pixels."""

    step: int
    score: float | None
    count: int
    pk: str
    height: float
    here: bool

    @property
    def y(self) -> float:
        return round(BASE - self.height, 1)


def place_of(sample: Sample) -> Place:
    return sample.step.run_id, sample.step.split, sample.step.step, sample.prompt_key


def history(samples: Iterable[Sample]) -> dict[Place, list[Told]]:
    """The samples of the same prompts in the same run and split, step by step: at least those of the `MOST_STEPS`
    steps around the sample's that have the prompt."""
    wanted: dict[tuple[Run, str, int], set[str]] = defaultdict(set)
    for one in samples:
        wanted[one.step.run, one.step.split, one.step.step].add(one.prompt_key)
    found: dict[Place, list[Told]] = defaultdict(list)
    for (run, split, step), keys in wanted.items():
        for key, told in near_first(run, split, step, keys):
            found[run.pk, split, step, key] = told
    return found


def near_first(run: Run, split: str, step: int, keys: set[str]) -> Iterator[tuple[str, list[Told]]]:
    rows = Sample.objects.visible().filter(step__run=run, step__split=split, final=True)
    bars = step_strip.of(run, split).bars
    reach = max(step - bars[0].first, bars[-1].last - step) if bars else 0
    left = set(keys)
    for near in [one for one in NEAR if one < reach]:
        for key, told in by_key(rows.filter(step__step__range=(step - near, step + near)), left):
            if len({number for number, _score, _pk in told}) >= MOST_STEPS:
                left = left - {key}
                yield key, told
        if not left:
            return
    yield from by_key(rows, left)


def by_key(rows: QuerySet[Sample], keys: set[str]) -> Iterable[tuple[str, list[Told]]]:
    found: dict[str, list[Told]] = defaultdict(list)
    shown = rows.filter(prompt_key__in=keys).order_by("step__step", "score", "pk")
    for key, step, score, pk in shown.values_list("prompt_key", "step__step", "score", "pk"):
        found[key].append((step, score, pk))
    return found.items()


def passed(rows: Iterable[Told], here: int) -> list[Past]:
    """A prompt's steps: those around `here`, at most `MOST_STEPS` that have it."""
    steps: dict[int, list[tuple[float | None, str]]] = {}
    for number, score, pk in rows:
        steps.setdefault(number, []).append((score, pk))
    before = sum(number < here for number in steps)
    start = max(0, min(before - MOST_STEPS // 2, len(steps) - MOST_STEPS))
    return [past(number, found, number == here) for number, found in islice(steps.items(), start, start + MOST_STEPS)]


def past(number: int, found: list[tuple[float | None, str]], here: bool) -> Past:
    scores = [score for score, _pk in found if score is not None]
    mean = sum(scores) / len(scores) if scores else None
    height = 0.0 if mean is None else round(TALLEST * (6 + 88 * min(max(mean, 0.0), 1.0)) / 100, 1)
    return Past(number, mean, len(found), found[0][1], height, here)


def drawn(steps: Sequence[Past], uid: str) -> SafeString:
    """A bar a step, each a link to the prompt's sample there, in one picture: a hundred of them would take the browser
    half as long again. A template takes four times as long."""
    samples = reverse("sample", args=["ID"]).removesuffix("ID/")
    there = reverse("step", args=[uid, "STEP"]).removesuffix("STEP/")
    said = _("step {step}: mean {mean} of {count}")
    wide = 100 / (len(steps) or 1)
    bars = "".join(bar(one, at * wide, wide, samples, there, said) for at, one in enumerate(steps))
    base = '<rect class="base" y="26" height="2" width="100%"/>'
    return mark_safe(f'<svg width="{WIDEST * len(steps)}" height="44">{base}{bars}{labels(steps, wide)}</svg>')


def bar(one: Past, x: float, wide: float, samples: str, there: str, said: str) -> str:
    """`x` and `wide` in per cent of the row."""
    title = escape(said.format(step=one.step, mean=num(one.score) or "–", count=one.count))
    current, here = (' aria-current="true"', " here") if one.here else ("", "")
    link = f'data-past="{one.pk}" data-step="{there}{one.step}/" href="{samples}{one.pk}/"{current}'
    place = f'x="{x:.2f}%"'
    high = f'<rect class="bar{here}" {place} width="{0.9 * wide:.2f}%" y="{one.y}" height="{one.height}"/>'
    return f'<a {link}><title>{title}</title><rect class="hit" {place} width="{wide:.2f}%" height="44"/>{high}</a>'


def labels(steps: Sequence[Past], wide: float) -> str:
    """The numbers of the first step, the last, and the one that is shown; between narrow bars they keep to the row, and
    one at the end that would lie under the one that is shown is left out."""
    found = []
    shown = next((at for at, one in enumerate(steps) if one.here), None)
    for at, one in enumerate(steps):
        first, last = at == 0, at == len(steps) - 1
        covered = shown is not None and 0 < abs(at - shown) * wide < NARROW
        if not (one.here or ((first or last) and not covered)):
            continue
        x, anchor = (at + 0.5) * wide, "middle"
        if wide < NARROW and (first or last):
            x, anchor = (0, "start") if first else (100, "end")
        here = ' class="here"' if one.here else ""
        found.append(f'<text{here} x="{x:.2f}%" y="39" text-anchor="{anchor}">{one.step}</text>')
    return "".join(found)
