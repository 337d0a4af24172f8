"""What the page of a comparison shows: chips of outcomes, lines of figures, rows of prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from dashboard.pages.common import format_number, render_text
from rollouts.compare import (
    NONE_CORRECT,
    TARGET_LETTERS,
    ComparedMean,
    ComparedPrompt,
    Comparison,
    ComparisonRow,
    ComparisonTarget,
)
from rollouts.models import Sample

# Measure -> digits, and whether more is better (0: neither).
MEASURES = {
    "score": (3, 1),
    "pass@1": (3, 1),
    "pass@k": (3, 1),
    "maj@n": (3, 1),
    "length": (0, 0),
    "truncated": (1, -1),
}


def render_correctness_rules(asked: Iterable[str]) -> SafeString:
    """What counts as correct, a rule of each project as HTML; an empty one is the default."""
    default = _("acc=1 if logged, else score>0")
    said = (format_html("<code>{}</code>", render_text(rule)) if rule else default for rule in sorted(asked))
    return format_html_join(_("; "), "{}", ((one,) for one in said))


@dataclass(frozen=True, slots=True)
class OutcomeChip:
    name: str
    count: int
    on: bool
    link: str
    title: str = ""


def build_outcome_chips(
    result: Comparison, found: Sequence[ComparisonTarget], only: str, link: Callable[..., str]
) -> list[OutcomeChip]:
    """All pairs, each way in which they came out, and what could not be judged or paired."""
    every = TARGET_LETTERS[: len(found)]
    alone = [letter for letter in every if letter in result.outcomes or len(found) == 2]
    mixed = sorted(key for key in result.outcomes if len(key) not in (1, len(found)) and key != NONE_CORRECT)
    unpaired = len(result.list_unpaired_rows())
    named = [
        ("", _("All paired"), len(result.pairs)),
        (every, format_all_correct(found), result.outcomes.get(every, 0)),
    ]
    named += [(letter, format_correct_only_in(letter), result.outcomes.get(letter, 0)) for letter in alone]
    named += [(key, format_correct_only_in(key), result.outcomes[key]) for key in mixed]
    wrong = _("Both wrong") if len(found) == 2 else _("All wrong")
    named += [(NONE_CORRECT, wrong, result.outcomes.get(NONE_CORRECT, 0))]
    named += [("unjudged", _("Not evaluated"), result.unevaluated_count)] if result.unevaluated_count else []
    named += [("unpaired", _("Not paired"), unpaired)] if unpaired else []
    return [OutcomeChip(name, count, key == only, link(only=key, start=0)) for key, name, count in named]


def format_correct_only_in(letters: str) -> str:
    """`A and B only`."""
    return _("{letters} only").format(letters=_(" and ").join(letters))


def build_letter_classes(found: Sequence[ComparisonTarget]) -> dict[str, str]:
    """{letter: its classes}: the colour of its run, and whether a letter before it has the same."""
    colours = [cell.run.colour for cell in found]
    return {
        cell.letter: f"c{colours[at]}{' again' if colours[at] in colours[:at] else ''}" for at, cell in enumerate(found)
    }


def format_all_correct(found: Sequence[ComparisonTarget]) -> str:
    return _("Both correct") if len(found) == 2 else _("All correct")


@dataclass(frozen=True, slots=True)
class FormattedStatistic:
    """A figure in words. `grade` is of a change that the prompts are enough to tell: good, bad, or sure."""

    value: str = ""
    change: str = ""
    interval: str = ""
    grade: str = ""


@dataclass(frozen=True, slots=True)
class StatisticsRow:
    """One cell's figures for one data source; `span` rows belong to the source, told by the first of them."""

    source: str
    prompts: int
    span: int
    letter: str
    values: list[FormattedStatistic]


def find_measures(result: Comparison) -> list[tuple[str, str]]:
    """[(measure, what its column is called)], those with a figure."""
    known = [
        name for name in MEASURES if any(one.value is not None for s in result.sources for one in s.statistics[name])
    ]
    if all(source.statistics["score"] == source.statistics["pass@1"] for source in result.sources):
        known = [name for name in known if name != "score"]
    ks = {source.k for source in result.sources}
    k = str(ks.pop()) if len(ks) == 1 else "k"
    unit = _("mean length (tokens)") if result.unit == "tokens" else _("mean length (chars)")
    called = {
        "score": _("score"),
        "pass@k": f"pass@{k}",
        "length": unit,
        "truncated": _("truncated?") if result.truncation_inferred else _("truncated"),
    }
    return [(name, called.get(name, name)) for name in known]


def build_statistics_rows(result: Comparison) -> list[StatisticsRow]:
    names = [name for name, _ in find_measures(result)]
    made: list[StatisticsRow] = []
    for source in result.sources:
        cells = list(zip(*(source.statistics[name] for name in names), strict=True))
        for at, figures in enumerate(cells):
            values = [format_statistic(name, one) for name, one in zip(names, figures, strict=True)]
            made.append(StatisticsRow(source.name, source.prompts, 0 if at else len(cells), TARGET_LETTERS[at], values))
    return made


def format_statistic(name: str, figure: ComparedMean) -> FormattedStatistic:
    digits, better = MEASURES[name]
    scale, unit = (100, " %") if name == "truncated" else (1, "")

    def said(one: float, sign: bool = False) -> str:
        size = abs(one) * scale
        if size < 10**-digits / 2:
            return format_number(0.0, digits)
        before = "−" if one < 0 else "+" if sign else ""
        return f"{before}{format_number(size, digits)}"

    if figure.value is None:
        return FormattedStatistic()
    if figure.change is None:
        return FormattedStatistic(said(figure.value) + unit)
    span = f"[{said(figure.interval[0], True)}, {said(figure.interval[1], True)}]" if figure.interval else ""
    grade = (
        {1: "good", -1: "bad", 0: "sure"}[better * (1 if figure.change > 0 else -1)] if figure.is_significant else ""
    )
    return FormattedStatistic(said(figure.value) + unit, said(figure.change, True), span, grade)


@dataclass(frozen=True, slots=True)
class PromptAnswer:
    """What one cell answered to a prompt: its figures and an example."""

    prompt: ComparedPrompt
    sample: Sample | None


@dataclass(frozen=True, slots=True)
class PromptRow:
    row: ComparisonRow
    answers: list[PromptAnswer | None]
    uid: str
    key: str

    @property
    def right(self) -> str:
        return self.row.solved_by if self.row.solved_by != NONE_CORRECT else ""


def build_prompt_rows(page: Sequence[ComparisonRow], found: Sequence[ComparisonTarget]) -> list[PromptRow]:
    """With the samples that stand for the prompts, in one query."""
    ids = [prompt.example_id for row in page for prompt in row.prompts if prompt]
    samples = Sample.objects.in_bulk(ids)
    return [build_prompt_row(row, found, samples) for row in page]


def build_prompt_row(row: ComparisonRow, found: Sequence[ComparisonTarget], samples: dict[str, Sample]) -> PromptRow:
    answers = [PromptAnswer(prompt, samples.get(prompt.example_id)) if prompt else None for prompt in row.prompts]
    at, first = next((at, prompt) for at, prompt in enumerate(row.prompts) if prompt)
    return PromptRow(row, answers, found[at].run.uid, first.key)
