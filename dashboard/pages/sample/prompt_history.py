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

from dashboard.pages.common import format_number, load_step_strip
from rollouts.models import Run, Sample

MAX_PROMPT_STEPS = 60
# Steps to each side that are looked through before all are: a prompt of an evaluation is in every one of thousands.
NEAR = (MAX_PROMPT_STEPS, 6 * MAX_PROMPT_STEPS, 36 * MAX_PROMPT_STEPS)
MAX_BAR_WIDTH = 48  # pixels of a bar
MIN_LABEL_WIDTH = 8  # per cent of the row: below that a number is wider than its bar
MAX_BAR_HEIGHT, BASE = 28, 26  # pixels

HistoryKey = tuple[int, str, int, str]  # run id, split, step, prompt key
SampleScore = tuple[int, float | None, str]  # step, score, sample id


@dataclass(slots=True)
class PromptStep:
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


def build_history_key(sample: Sample) -> HistoryKey:
    return sample.step.run_id, sample.step.split, sample.step.step, sample.prompt_key


def load_prompt_scores(samples: Iterable[Sample]) -> dict[HistoryKey, list[SampleScore]]:
    """The samples of the same prompts in the same run and split, step by step: at least those of the `MOST_STEPS`
    steps around the sample's that have the prompt."""
    wanted: dict[tuple[Run, str, int], set[str]] = defaultdict(set)
    for one in samples:
        wanted[one.step.run, one.step.split, one.step.step].add(one.prompt_key)
    found: dict[HistoryKey, list[SampleScore]] = defaultdict(list)
    for (run, split, step), keys in wanted.items():
        for key, told in load_nearest_scores(run, split, step, keys):
            found[run.pk, split, step, key] = told
    return found


def load_nearest_scores(run: Run, split: str, step: int, keys: set[str]) -> Iterator[tuple[str, list[SampleScore]]]:
    rows = Sample.objects.visible().filter(step__run=run, step__split=split, final=True)
    bars = load_step_strip(run, split).bars
    reach = max(step - bars[0].first, bars[-1].last - step) if bars else 0
    left = set(keys)
    for near in [one for one in NEAR if one < reach]:
        for key, told in group_by_prompt(rows.filter(step__step__range=(step - near, step + near)), left):
            if len({number for number, _score, _pk in told}) >= MAX_PROMPT_STEPS:
                left = left - {key}
                yield key, told
        if not left:
            return
    yield from group_by_prompt(rows, left)


def group_by_prompt(rows: QuerySet[Sample], keys: set[str]) -> Iterable[tuple[str, list[SampleScore]]]:
    found: dict[str, list[SampleScore]] = defaultdict(list)
    shown = rows.filter(prompt_key__in=keys).order_by("step__step", "score", "pk")
    for key, step, score, pk in shown.values_list("prompt_key", "step__step", "score", "pk"):
        found[key].append((step, score, pk))
    return found.items()


def build_prompt_steps(rows: Iterable[SampleScore], here: int) -> list[PromptStep]:
    """A prompt's steps: those around `here`, at most `MOST_STEPS` that have it."""
    steps: dict[int, list[tuple[float | None, str]]] = {}
    for number, score, pk in rows:
        steps.setdefault(number, []).append((score, pk))
    before = sum(number < here for number in steps)
    start = max(0, min(before - MAX_PROMPT_STEPS // 2, len(steps) - MAX_PROMPT_STEPS))
    return [
        build_prompt_step(number, found, number == here)
        for number, found in islice(steps.items(), start, start + MAX_PROMPT_STEPS)
    ]


def build_prompt_step(number: int, found: list[tuple[float | None, str]], here: bool) -> PromptStep:
    scores = [score for score, _pk in found if score is not None]
    mean = sum(scores) / len(scores) if scores else None
    height = 0.0 if mean is None else round(MAX_BAR_HEIGHT * (6 + 88 * min(max(mean, 0.0), 1.0)) / 100, 1)
    return PromptStep(number, mean, len(found), found[0][1], height, here)


def render_prompt_bars(steps: Sequence[PromptStep], uid: str) -> SafeString:
    """A bar a step, each a link to the prompt's sample there, in one picture: a hundred of them would take the browser
    half as long again. A template takes four times as long."""
    samples = reverse("sample", args=["ID"]).removesuffix("ID/")
    there = reverse("step", args=[uid, "STEP"]).removesuffix("STEP/")
    said = _("step {step}: mean {mean}, responses: {count}")
    wide = 100 / (len(steps) or 1)
    bars = "".join(render_prompt_bar(one, at * wide, wide, samples, there, said) for at, one in enumerate(steps))
    base = '<rect class="base" y="26" height="2" width="100%"/>'
    return mark_safe(
        f'<svg width="{MAX_BAR_WIDTH * len(steps)}" height="44">{base}{bars}{render_step_labels(steps, wide)}</svg>'
    )


def render_prompt_bar(one: PromptStep, x: float, wide: float, samples: str, there: str, said: str) -> str:
    """`x` and `wide` in per cent of the row."""
    title = escape(said.format(step=one.step, mean=format_number(one.score) or "–", count=one.count))
    current, here = (' aria-current="true"', " here") if one.here else ("", "")
    link = f'data-past="{one.pk}" data-step="{there}{one.step}/" href="{samples}{one.pk}/"{current}'
    place = f'x="{x:.2f}%"'
    high = f'<rect class="bar{here}" {place} width="{0.9 * wide:.2f}%" y="{one.y}" height="{one.height}"/>'
    return f'<a {link}><title>{title}</title><rect class="hit" {place} width="{wide:.2f}%" height="44"/>{high}</a>'


def render_step_labels(steps: Sequence[PromptStep], wide: float) -> str:
    """The numbers of the first step, the last, and the one that is shown; between narrow bars they keep to the row, and
    one at the end that would lie under the one that is shown is left out."""
    found = []
    shown = next((at for at, one in enumerate(steps) if one.here), None)
    for at, one in enumerate(steps):
        first, last = at == 0, at == len(steps) - 1
        covered = shown is not None and 0 < abs(at - shown) * wide < MIN_LABEL_WIDTH
        if not (one.here or ((first or last) and not covered)):
            continue
        x, anchor = (at + 0.5) * wide, "middle"
        if wide < MIN_LABEL_WIDTH and (first or last):
            x, anchor = (0, "start") if first else (100, "end")
        here = ' class="here"' if one.here else ""
        found.append(f'<text{here} x="{x:.2f}%" y="39" text-anchor="{anchor}">{one.step}</text>')
    return "".join(found)
