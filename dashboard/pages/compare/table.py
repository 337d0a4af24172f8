"""The parts of a comparison's page: filter chips of outcomes, rows of statistics, rows of prompts."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from dashboard.pages.common import format_number, render_text
from dashboard.pages.compare.prompt_detail import get_row_key
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

# {measure: (digits, 1 if more is better, -1 if less is better, 0 if neither)}
MEASURES = dict.fromkeys(("score", "pass@1", "pass@k", "maj@n"), (3, 1)) | {"length": (0, 0), "truncated": (1, -1)}


def render_correctness_rules(rules: Iterable[str]) -> SafeString:
    """The projects' correctness rules; an empty one is the default."""
    default = _("acc=1 if logged, else score>0")
    items = (format_html("<code>{}</code>", render_text(rule)) if rule else default for rule in sorted(rules))
    return format_html_join(_("; "), "{}", ((item,) for item in items))


@dataclass(frozen=True, slots=True)
class OutcomeChip:
    name: str
    count: int
    on: bool
    link: str


def build_outcome_chips(
    result: Comparison, targets: Sequence[ComparisonTarget], only: str, link: Callable[..., str]
) -> list[OutcomeChip]:
    """All pairs, each outcome of a pair, and the prompts that could not be evaluated or paired."""
    two, letters, outcomes = len(targets) == 2, TARGET_LETTERS[: len(targets)], result.outcomes
    single = [letter for letter in letters if two or letter in outcomes]
    mixed = sorted(key for key in outcomes if len(key) not in (1, len(targets)) and key != NONE_CORRECT)
    unpaired = len(result.list_unpaired_rows())
    names = {"": _("All paired"), letters: _("Both correct") if two else _("All correct")}
    names |= {key: _("{letters} only").format(letters=_(" and ").join(key)) for key in [*single, *mixed]}
    names[NONE_CORRECT] = _("Both wrong") if two else _("All wrong")
    names |= {"unjudged": _("Not evaluated")} if result.unevaluated_count else {}
    names |= {"unpaired": _("Not paired")} if unpaired else {}
    counts = outcomes | {"": len(result.pairs), "unjudged": result.unevaluated_count, "unpaired": unpaired}
    return [OutcomeChip(name, counts.get(key, 0), key == only, link(only=key, start=0)) for key, name in names.items()]


def build_letter_classes(targets: Sequence[ComparisonTarget]) -> dict[str, str]:
    """{letter: CSS classes}: the colour of its run, and `again` if an earlier letter has the same colour."""
    colours = [target.run.colour for target in targets]
    return {
        target.letter: f"c{colour}{' again' if colour in colours[:at] else ''}"
        for at, (target, colour) in enumerate(zip(targets, colours, strict=True))
    }


@dataclass(frozen=True, slots=True)
class FormattedStatistic:
    """`grade` is of a significant change: good, bad, or sure if the measure is neither."""

    value: str = ""
    change: str = ""
    interval: str = ""
    grade: str = ""


@dataclass(frozen=True, slots=True)
class StatisticsRow:
    """The statistics of one target for one data source. `span` is the number of rows of the source in its first row,
    0 in the others."""

    source: str
    prompts: int
    span: int
    letter: str
    values: list[FormattedStatistic]


def find_measures(result: Comparison) -> list[tuple[str, str]]:
    """[(measure, name of its column)] of the measures with a value."""
    sources = result.sources
    measures = [
        name for name in MEASURES if any(mean.value is not None for row in sources for mean in row.statistics[name])
    ]
    if all(source.statistics["score"] == source.statistics["pass@1"] for source in sources):
        measures = [name for name in measures if name != "score"]
    ks = {source.k for source in sources}
    names = {
        "score": _("score"),
        "pass@k": f"pass@{ks.pop() if len(ks) == 1 else 'k'}",
        "length": _("mean length (tokens)") if result.unit == "tokens" else _("mean length (chars)"),
        "truncated": _("truncated?") if result.truncation_inferred else _("truncated"),
    }
    return [(name, names.get(name, name)) for name in measures]


def build_statistics_rows(result: Comparison) -> list[StatisticsRow]:
    names = [name for name, _ in find_measures(result)]
    rows: list[StatisticsRow] = []
    for source in result.sources:
        targets = list(zip(*(source.statistics[name] for name in names), strict=True))
        for at, means in enumerate(targets):
            values = [format_statistic(name, mean) for name, mean in zip(names, means, strict=True)]
            span = 0 if at else len(targets)
            rows.append(StatisticsRow(source.name, source.prompts, span, TARGET_LETTERS[at], values))
    return rows


def format_statistic(name: str, mean: ComparedMean) -> FormattedStatistic:
    digits, better = MEASURES[name]
    scale, unit = (100, " %") if name == "truncated" else (1, "")

    def format_value(value: float, sign: bool = False) -> str:
        size = abs(value) * scale
        if size < 10**-digits / 2:
            return format_number(0.0, digits)
        return ("−" if value < 0 else "+" if sign else "") + format_number(size, digits)

    if mean.value is None:
        return FormattedStatistic()
    value = format_value(mean.value) + unit
    if mean.change is None:
        return FormattedStatistic(value)
    interval = ", ".join(format_value(end, sign=True) for end in mean.interval or ())
    direction = better if mean.change > 0 else -better
    grade = {1: "good", -1: "bad", 0: "sure"}[direction] if mean.is_significant else ""
    return FormattedStatistic(value, format_value(mean.change, sign=True), f"[{interval}]" if interval else "", grade)


@dataclass(frozen=True, slots=True)
class PromptAnswer:
    """A target's statistics of a prompt, and its example."""

    prompt: ComparedPrompt
    sample: Sample | None


@dataclass(frozen=True, slots=True)
class PromptRow:
    row: ComparisonRow
    answers: list[PromptAnswer | None]
    uid: str

    @property
    def key(self) -> str:
        return get_row_key(self.row)

    @property
    def solved_by(self) -> str:
        return self.row.solved_by if self.row.solved_by != NONE_CORRECT else ""


def build_prompt_rows(rows: Sequence[ComparisonRow], targets: Sequence[ComparisonTarget]) -> list[PromptRow]:
    """With the examples of all prompts in one query."""
    samples = Sample.objects.in_bulk([prompt.example_id for row in rows for prompt in row.prompts if prompt])
    return [
        PromptRow(
            row,
            [PromptAnswer(prompt, samples.get(prompt.example_id)) if prompt else None for prompt in row.prompts],
            next(target.run.uid for target, prompt in zip(targets, row.prompts, strict=True) if prompt),
        )
        for row in rows
    ]
