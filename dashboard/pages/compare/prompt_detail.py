"""One prompt of a comparison, opened: what each cell answered to it, whole and side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dashboard.pages.common import sample_rows
from rollouts.compare.compare import Row
from rollouts.compare.pairing import Prompt
from rollouts.compare.targets import Cell
from rollouts.models import Sample
from rollouts.samples import bodies
from rollouts.samples.bodies import Body

Link = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Column:
    """One cell's answer, or that it was not asked. `head` is None where it has fewer responses, `text` where its body
    is lost; `at` counts the response among those of the prompt, from 1."""

    cell: Cell
    prompt: Prompt | None
    head: sample_rows.Row | None = None
    text: str | None = None
    at: int = 0

    @property
    def sample(self) -> Sample | None:
        return self.head.sample if self.head else None


@dataclass(frozen=True, slots=True)
class Opened:
    """`at` counts the prompt in the list from 1, `nth` its responses; links are empty at the ends of either."""

    key: str
    at: int
    prompt: str
    columns: list[Column]
    nth: int
    responses: int
    before: str
    after: str
    response_before: str
    response_after: str

    @property
    def texts(self) -> int:
        return sum(column.text is not None for column in self.columns)


def key_of(row: Row) -> str:
    """Names the row in an address: the prompt's key in the first cell that has it."""
    return next(prompt.key for prompt in row.prompts if prompt)


def place(rows: Sequence[Row], key: str) -> int | None:
    return next((at for at, row in enumerate(rows) if key_of(row) == key), None) if key else None


def opened(rows: Sequence[Row], at: int, nth: int, found: Sequence[Cell], link: Link) -> Opened:
    """`nth` response of each cell, from 1; 0 for the one that stands for the prompt. Raises StorageUnavailable."""
    row = rows[at]
    most = max(len(prompt.ids) for prompt in row.prompts if prompt)
    nth = min(nth, most)
    columns, asked = answers(row, nth, found)

    def to(place: int) -> str:
        return link(sel=key_of(rows[place])) if 0 <= place < len(rows) else ""

    def response(number: int) -> str:
        return link(sel=key_of(row), nth=number) if 1 <= number <= most and most > 1 else ""

    return Opened(
        key_of(row), at + 1, asked, columns, nth, most, to(at - 1), to(at + 1),
        response(nth - 1), response(nth + 1),
    )  # fmt: skip


def answers(row: Row, nth: int, found: Sequence[Cell]) -> tuple[list[Column], str]:
    """A column per cell, and the prompt's text."""
    ids = [chosen(prompt, nth) if prompt else "" for prompt in row.prompts]
    heads = {head.sample.pk: head for head in sample_rows.rows(Sample.objects.filter(pk__in=[pk for pk in ids if pk]))}
    told = bodies.read([head.sample for head in heads.values()])
    columns = [
        column(cell, prompt, heads.get(pk), told.get(pk))
        for cell, prompt, pk in zip(found, row.prompts, ids, strict=True)
    ]
    return columns, next((told[pk].prompt for pk in ids if pk in told and told[pk].prompt), "")


def chosen(prompt: Prompt, nth: int) -> str:
    """The sample to show; empty where the cell has fewer responses."""
    if not nth:
        return prompt.example
    return prompt.ids[nth - 1] if nth <= len(prompt.ids) else ""


def column(cell: Cell, prompt: Prompt | None, head: sample_rows.Row | None, body: Body | None) -> Column:
    at = prompt.ids.index(head.sample.pk) + 1 if prompt and head else 0
    return Column(cell, prompt, head, None if body is None or body.textless else body.response, at)
