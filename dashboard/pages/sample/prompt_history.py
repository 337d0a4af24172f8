"""The same prompt at the steps of a run: its scores, and the chart of bars that shows them."""

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
# Steps to each side that are searched before all are: a prompt of an evaluation set is in each of thousands of steps.
SEARCH_DISTANCES = (MAX_PROMPT_STEPS, 6 * MAX_PROMPT_STEPS, 36 * MAX_PROMPT_STEPS)
MAX_BAR_WIDTH = 48  # pixels
MIN_LABEL_WIDTH = 8  # percent of the chart; a label is wider than a narrower bar
MAX_BAR_HEIGHT, BASELINE = 28, 26  # pixels

HistoryKey = tuple[int, str, str, int, str]  # run id, split, step kind, step, prompt key
SampleScore = tuple[int, float | None, str]  # step, score, sample id


@dataclass(slots=True)
class PromptStep:
    """The prompt at one step: `score` is the mean of its samples, `pk` one of them, `height` of the bar in pixels."""

    step: int
    score: float | None
    count: int
    pk: str
    height: float
    here: bool

    @property
    def y(self) -> float:
        return round(BASELINE - self.height, 1)


def build_history_key(sample: Sample) -> HistoryKey:
    step = sample.step
    return step.run_id, step.split, step.step_kind, step.step, sample.prompt_key


def load_prompt_scores(samples: Iterable[Sample]) -> dict[HistoryKey, list[SampleScore]]:
    """The samples of the same prompts in the same run, split and step kind, by step: at least those of the
    `MAX_PROMPT_STEPS` steps with the prompt that are nearest to the sample's step."""
    wanted: dict[tuple[Run, str, str, int], set[str]] = defaultdict(set)
    for sample in samples:
        step = sample.step
        wanted[step.run, step.split, step.step_kind, step.step].add(sample.prompt_key)
    scores: dict[HistoryKey, list[SampleScore]] = defaultdict(list)
    for (run, split, kind, number), keys in wanted.items():
        for key, prompt_scores in load_nearest_scores(run, split, kind, number, keys):
            scores[run.pk, split, kind, number, key] = prompt_scores
    return scores


def load_nearest_scores(
    run: Run, split: str, kind: str, step: int, keys: set[str]
) -> Iterator[tuple[str, list[SampleScore]]]:
    rows = Sample.objects.current_and_visible().filter(step__run=run, step__split=split, final=True)
    rows = rows.filter(step__step_kind=kind)
    bars = load_step_strip(run, split).bars
    reach = max(step - bars[0].first, bars[-1].last - step) if bars else 0
    left = set(keys)
    for distance in SEARCH_DISTANCES:
        if distance >= reach:
            break
        for key, scores in group_by_prompt(rows.filter(step__step__range=(step - distance, step + distance)), left):
            if len({number for number, _score, _pk in scores}) >= MAX_PROMPT_STEPS:
                left = left - {key}
                yield key, scores
        if not left:
            return
    yield from group_by_prompt(rows, left)


def group_by_prompt(rows: QuerySet[Sample], keys: set[str]) -> Iterable[tuple[str, list[SampleScore]]]:
    groups: dict[str, list[SampleScore]] = defaultdict(list)
    rows = rows.filter(prompt_key__in=keys).order_by("step__step", "score", "pk")
    for key, step, score, pk in rows.values_list("prompt_key", "step__step", "score", "pk"):
        groups[key].append((step, score, pk))
    return groups.items()


def build_prompt_steps(rows: Iterable[SampleScore], here: int) -> list[PromptStep]:
    """At most `MAX_PROMPT_STEPS` steps with the prompt, those around step `here`."""
    steps: dict[int, list[tuple[float | None, str]]] = {}
    for number, score, pk in rows:
        steps.setdefault(number, []).append((score, pk))
    before = sum(number < here for number in steps)
    start = max(0, min(before - MAX_PROMPT_STEPS // 2, len(steps) - MAX_PROMPT_STEPS))
    nearest = islice(steps.items(), start, start + MAX_PROMPT_STEPS)
    return [build_prompt_step(number, samples, number == here) for number, samples in nearest]


def build_prompt_step(number: int, samples: list[tuple[float | None, str]], here: bool) -> PromptStep:
    scores = [score for score, _pk in samples if score is not None]
    mean = sum(scores) / len(scores) if scores else None
    height = 0.0 if mean is None else round(MAX_BAR_HEIGHT * (6 + 88 * min(max(mean, 0.0), 1.0)) / 100, 1)
    return PromptStep(number, mean, len(samples), samples[0][1], height, here)


def render_prompt_bars(steps: Sequence[PromptStep], uid: str, split: str) -> SafeString:
    """A bar for each step, a link to the prompt's sample there. One SVG renders in two thirds of the time of separate
    elements; a template takes four times as long."""
    sample_url = reverse("sample", args=["ID"]).removesuffix("ID/")
    step_url = reverse("step", args=[uid, "STEP"]).removesuffix("STEP/")
    query = "?split=eval" if split == "eval" else ""
    title = _("step {step}: mean {mean}, responses: {count}")
    width = 100 / (len(steps) or 1)
    bars = "".join(
        render_prompt_bar(step, at * width, width, sample_url, step_url, query, title) for at, step in enumerate(steps)
    )
    base = '<rect class="base" y="26" height="2" width="100%"/>'
    labels = render_step_labels(steps, width)
    return mark_safe(f'<svg width="{MAX_BAR_WIDTH * len(steps)}" height="44">{base}{bars}{labels}</svg>')


def render_prompt_bar(
    step: PromptStep, x: float, width: float, sample_url: str, step_url: str, query: str, title: str
) -> str:
    """`x` and `width` in percent of the chart; `query` is that of the step's page."""
    title = escape(title.format(step=step.step, mean=format_number(step.score) or "–", count=step.count))
    current, here = (' aria-current="true"', " here") if step.here else ("", "")
    link = f'data-past="{step.pk}" data-step="{step_url}{step.step}/{query}" href="{sample_url}{step.pk}/"{current}'
    left = f'x="{x:.2f}%"'
    bar = f'<rect class="bar{here}" {left} width="{0.9 * width:.2f}%" y="{step.y}" height="{step.height}"/>'
    return f'<a {link}><title>{title}</title><rect class="hit" {left} width="{width:.2f}%" height="44"/>{bar}</a>'


def render_step_labels(steps: Sequence[PromptStep], width: float) -> str:
    """The numbers of the first, the last and the current step. In a narrow chart those at the ends are aligned with the
    ends, and left out if they would overlap the current one."""
    labels = []
    current = next((at for at, step in enumerate(steps) if step.here), None)
    for at, step in enumerate(steps):
        first, last = at == 0, at == len(steps) - 1
        covered = current is not None and 0 < abs(at - current) * width < MIN_LABEL_WIDTH
        if not (step.here or ((first or last) and not covered)):
            continue
        x, anchor = (at + 0.5) * width, "middle"
        if width < MIN_LABEL_WIDTH and (first or last):
            x, anchor = (0, "start") if first else (100, "end")
        here = ' class="here"' if step.here else ""
        labels.append(f'<text{here} x="{x:.2f}%" y="39" text-anchor="{anchor}">{step.step}</text>')
    return "".join(labels)
