"""What the page of a comparison shows: chips of outcomes, lines of figures, rows of prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from dashboard.pages.common.formatting import num, plain
from rollouts.compare.compare import NONE_RIGHT, Comparison, Figure, Row
from rollouts.compare.pairing import Prompt
from rollouts.compare.targets import LETTERS, Cell
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


def rules(asked: Iterable[str]) -> SafeString:
    """What counts as correct, a rule of each project as HTML; an empty one is the default."""
    default = _("acc=1 where it was logged, else score>0")
    said = (format_html("<code>{}</code>", plain(rule)) if rule else default for rule in sorted(asked))
    return format_html_join(_("; "), "{}", ((one,) for one in said))


@dataclass(frozen=True, slots=True)
class Chip:
    name: str
    count: int
    on: bool
    link: str
    title: str = ""


def chips(result: Comparison, found: Sequence[Cell], only: str, link: Callable[..., str]) -> list[Chip]:
    """All pairs, each way in which they came out, and what could not be judged or paired."""
    every = LETTERS[: len(found)]
    alone = [letter for letter in every if letter in result.outcomes or len(found) == 2]
    mixed = sorted(key for key in result.outcomes if len(key) not in (1, len(found)) and key != NONE_RIGHT)
    unpaired = len(result.unpaired())
    named = [("", _("All paired"), len(result.pairs)), (every, all_right(found), result.outcomes.get(every, 0))]
    named += [(letter, only_by(letter), result.outcomes.get(letter, 0)) for letter in alone]
    named += [(key, only_by(key), result.outcomes[key]) for key in mixed]
    wrong = _("Both wrong") if len(found) == 2 else _("All wrong")
    named += [(NONE_RIGHT, wrong, result.outcomes.get(NONE_RIGHT, 0))]
    named += [("unjudged", _("No verdict"), result.unjudged)] if result.unjudged else []
    named += [("unpaired", _("Not paired"), unpaired)] if unpaired else []
    return [Chip(name, count, key == only, link(only=key, start=0)) for key, name, count in named]


def only_by(letters: str) -> str:
    """`A and B only`."""
    return _("{letters} only").format(letters=_(" and ").join(letters))


def badges(found: Sequence[Cell]) -> dict[str, str]:
    """{letter: its classes}: the colour of its run, and whether a letter before it has the same."""
    colours = [cell.run.colour for cell in found]
    return {
        cell.letter: f"c{colours[at]}{' again' if colours[at] in colours[:at] else ''}" for at, cell in enumerate(found)
    }


def all_right(found: Sequence[Cell]) -> str:
    return _("Both right") if len(found) == 2 else _("All right")


@dataclass(frozen=True, slots=True)
class Value:
    """A figure in words. `grade` is of a change that the prompts are enough to tell: good, bad, or sure."""

    value: str = ""
    change: str = ""
    interval: str = ""
    grade: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One cell's figures for one data source; `span` rows belong to the source, told by the first of them."""

    source: str
    prompts: int
    span: int
    letter: str
    values: list[Value]


def measures(result: Comparison) -> list[tuple[str, str]]:
    """[(measure, what its column is called)], those with a figure."""
    known = [name for name in MEASURES if any(one.value is not None for s in result.sources for one in s.figures[name])]
    if all(source.figures["score"] == source.figures["pass@1"] for source in result.sources):
        known = [name for name in known if name != "score"]
    ks = {source.k for source in result.sources}
    k = str(ks.pop()) if len(ks) == 1 else "k"
    unit = _("mean length (tokens)") if result.unit == "tokens" else _("mean length (chars)")
    called = {
        "score": _("score"),
        "pass@k": f"pass@{k}",
        "length": unit,
        "truncated": _("truncated?") if result.inferred else _("truncated"),
    }
    return [(name, called.get(name, name)) for name in known]


def lines(result: Comparison) -> list[Line]:
    names = [name for name, _ in measures(result)]
    made: list[Line] = []
    for source in result.sources:
        cells = list(zip(*(source.figures[name] for name in names), strict=True))
        for at, figures in enumerate(cells):
            values = [value(name, one) for name, one in zip(names, figures, strict=True)]
            made.append(Line(source.name, source.prompts, 0 if at else len(cells), LETTERS[at], values))
    return made


def value(name: str, figure: Figure) -> Value:
    digits, better = MEASURES[name]
    scale, unit = (100, " %") if name == "truncated" else (1, "")

    def said(one: float, sign: bool = False) -> str:
        size = abs(one) * scale
        if size < 10**-digits / 2:
            return num(0.0, digits)
        before = "−" if one < 0 else "+" if sign else ""
        return f"{before}{num(size, digits)}"

    if figure.value is None:
        return Value()
    if figure.change is None:
        return Value(said(figure.value) + unit)
    span = f"[{said(figure.interval[0], True)}, {said(figure.interval[1], True)}]" if figure.interval else ""
    grade = {1: "good", -1: "bad", 0: "sure"}[better * (1 if figure.change > 0 else -1)] if figure.sure else ""
    return Value(said(figure.value) + unit, said(figure.change, True), span, grade)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one cell answered to a prompt: its figures and an example."""

    prompt: Prompt
    sample: Sample | None


@dataclass(frozen=True, slots=True)
class Shown:
    row: Row
    answers: list[Answer | None]
    uid: str
    key: str

    @property
    def right(self) -> str:
        return self.row.right if self.row.right != NONE_RIGHT else ""


def rows(page: Sequence[Row], found: Sequence[Cell]) -> list[Shown]:
    """With the samples that stand for the prompts, in one query."""
    ids = [prompt.example for row in page for prompt in row.prompts if prompt]
    samples = Sample.objects.in_bulk(ids)
    return [shown(row, found, samples) for row in page]


def shown(row: Row, found: Sequence[Cell], samples: dict[str, Sample]) -> Shown:
    answers = [Answer(prompt, samples.get(prompt.example)) if prompt else None for prompt in row.prompts]
    at, first = next((at, prompt) for at, prompt in enumerate(row.prompts) if prompt)
    return Shown(row, answers, found[at].run.uid, first.key)
