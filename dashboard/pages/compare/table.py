"""The parts of a comparison's page: filter chips of outcomes, rows of statistics, rows of prompts."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from dashboard.pages.common import format_number, render_text
from dashboard.pages.compare.prompt_detail import get_row_key
from rollouts import compare
from rollouts.models import Sample
from rollouts.samples import PROPERTY_CATALOG

MAX_MORE_DIGITS = 4  # of a change that is not 0 but would be shown as 0
# {measure: (digits, 1 if more is better, -1 if less is better, 0 if neither)}
MEASURES = dict.fromkeys(("score", "pass@1", "pass@k", "maj@n"), (3, 1)) | {"length": (0, 0), "truncated": (1, -1)}
OTHER_MEASURE = (3, 0)
RUN_COLOURS = 8
SHARE_MEASURE = (1, 0)
MARK_TITLES = {description.name: description.title for description in PROPERTY_CATALOG}


def name_mark(mark: str) -> str:
    return _(MARK_TITLES[mark])


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
    result: compare.Comparison, targets: Sequence[compare.ComparisonTarget], only: str, link: Callable[..., str]
) -> list[OutcomeChip]:
    """All pairs, each outcome of a pair, and the prompts that could not be evaluated or paired."""
    two, letters, outcomes = len(targets) == 2, compare.TARGET_LETTERS[: len(targets)], result.outcomes
    single = [letter for letter in letters if two or letter in outcomes]
    mixed = sorted(key for key in outcomes if len(key) not in (1, len(targets)) and key != compare.NONE_CORRECT)
    unpaired = len(result.list_unpaired_rows())
    names = {"": _("All paired"), letters: _("Both correct") if two else _("All correct")}
    names |= {key: _("{letters} only").format(letters=_(" and ").join(key)) for key in [*single, *mixed]}
    names[compare.NONE_CORRECT] = _("Both wrong") if two else _("All wrong")
    names |= {"unjudged": _("Not evaluated")} if result.unevaluated_count else {}
    names |= {"unpaired": _("Not paired")} if unpaired else {}
    counts = outcomes | {"": len(result.pairs), "unjudged": result.unevaluated_count, "unpaired": unpaired}
    return [OutcomeChip(name, counts.get(key, 0), key == only, link(only=key, start=0)) for key, name in names.items()]


def build_letter_classes(targets: Sequence[compare.ComparisonTarget]) -> dict[str, str]:
    """{letter: CSS class of its colour}: that of its run, else, if an earlier letter has it, the next free one."""
    colours: list[int] = []
    for target in targets:
        choices = (target.run.colour, *range(1, RUN_COLOURS + 1))
        colours.append(next(colour for colour in choices if colour not in colours))
    return {target.letter: f"c{colour}" for target, colour in zip(targets, colours, strict=True)}


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


def find_measures(result: compare.Comparison) -> list[tuple[str, str]]:
    """[(measure, name of its column)] of the measures with a value."""
    sources = result.sources
    measures = [
        name
        for name in MEASURES
        if any(mean.value is not None for row in sources for mean in row.statistics.get(name, ()))
    ]
    if all(source.statistics.get("score") == source.statistics.get("pass@1") for source in sources):
        measures = [name for name in measures if name != "score"]
    ks = {source.k for source in sources}
    names = {
        "score": _("score"),
        "pass@k": f"pass@{ks.pop() if len(ks) == 1 else 'k'}",
        "length": _("mean length (tokens)") if result.unit == "tokens" else _("mean length (chars)"),
        "truncated": _("truncated?") if result.truncation_inferred else _("truncated"),
    }
    return [(name, names.get(name, name)) for name in measures]


def build_statistics_rows(result: compare.Comparison) -> list[StatisticsRow]:
    names = [name for name, _ in find_measures(result)]
    rows: list[StatisticsRow] = []
    for source in result.sources:
        targets = list(zip(*(source.statistics[name] for name in names), strict=True))
        for at, means in enumerate(targets):
            values = [format_statistic(name, mean) for name, mean in zip(names, means, strict=True)]
            span = 0 if at else len(targets)
            rows.append(StatisticsRow(source.name, source.prompts, span, compare.TARGET_LETTERS[at], values))
    return rows


def format_statistic(name: str, mean: compare.ComparedMean) -> FormattedStatistic:
    is_share = name in ("truncated", "zero-variance") or name.startswith(compare.MARK)
    key = "pass@k" if name.startswith("pass@") and name not in MEASURES else name
    digits, better = MEASURES.get(key, SHARE_MEASURE if is_share else OTHER_MEASURE)
    scale, unit = (100, " %") if is_share else (1, "")

    def format_value(value: float, sign: bool = False, digits: int = digits) -> str:
        size = abs(value) * scale
        if size < 10**-digits / 2:
            return format_number(0.0, digits)
        return ("−" if value < 0 else "+" if sign else "") + format_number(size, digits)

    if mean.value is None:
        return FormattedStatistic()
    value = format_value(mean.value) + unit
    if mean.change is None:
        return FormattedStatistic(value)
    ends = mean.interval or ()
    change_digits = digits
    if mean.is_significant:  # then 0 is outside of the interval, also as it is shown
        smallest = min(abs(end) * scale for end in ends)
        while smallest < 10**-change_digits / 2 and change_digits < digits + MAX_MORE_DIGITS:
            change_digits += 1
    interval = ", ".join(format_value(end, sign=True, digits=change_digits) for end in ends)
    direction = better if mean.change > 0 else -better
    grade = {1: "good", -1: "bad", 0: "sure"}[direction] if mean.is_significant else ""
    change = format_value(mean.change, sign=True, digits=change_digits)
    if is_share:
        change = _("{points} pt").format(points=change)
    return FormattedStatistic(value, change, f"[{interval}]" if interval else "", grade)


@dataclass(frozen=True, slots=True)
class PromptAnswer:
    """A target's statistics of a prompt, and its example."""

    prompt: compare.ComparedPrompt
    sample: Sample | None


@dataclass(frozen=True, slots=True)
class PromptRow:
    row: compare.ComparisonRow
    answers: list[PromptAnswer | None]
    uid: str

    @property
    def key(self) -> str:
        return get_row_key(self.row)

    @property
    def solved_by(self) -> str:
        return self.row.solved_by if self.row.solved_by != compare.NONE_CORRECT else ""


def build_prompt_rows(
    rows: Sequence[compare.ComparisonRow], targets: Sequence[compare.ComparisonTarget]
) -> list[PromptRow]:
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
