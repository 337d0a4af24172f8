"""One prompt of a comparison, opened: what each cell answered to it, whole and side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dashboard.pages.common import SampleRow, build_sample_rows
from rollouts.compare import ComparedPrompt, ComparisonRow, ComparisonTarget
from rollouts.models import Sample
from rollouts.samples import SampleBody, load_bodies

Link = Callable[..., str]


@dataclass(frozen=True, slots=True)
class AnswerColumn:
    """One cell's answer, or that it was not asked. `head` is None where it has fewer responses, `text` where its body
    is lost; `at` counts the response among those of the prompt, from 1."""

    cell: ComparisonTarget
    prompt: ComparedPrompt | None
    head: SampleRow | None = None
    text: str | None = None
    at: int = 0

    @property
    def sample(self) -> Sample | None:
        return self.head.sample if self.head else None


@dataclass(frozen=True, slots=True)
class PromptDetail:
    """`at` counts the prompt in the list from 1, `nth` its responses; links are empty at the ends of either."""

    key: str
    at: int
    prompt: str
    columns: list[AnswerColumn]
    nth: int
    responses: int
    before: str
    after: str
    response_before: str
    response_after: str

    @property
    def texts(self) -> int:
        return sum(column.text is not None for column in self.columns)


def key_of(row: ComparisonRow) -> str:
    """Names the row in an address: the prompt's key in the first cell that has it."""
    return next(prompt.key for prompt in row.prompts if prompt)


def find_row_position(rows: Sequence[ComparisonRow], key: str) -> int | None:
    return next((at for at, row in enumerate(rows) if key_of(row) == key), None) if key else None


def build_prompt_detail(
    rows: Sequence[ComparisonRow], at: int, nth: int, found: Sequence[ComparisonTarget], link: Link
) -> PromptDetail:
    """`nth` response of each cell, from 1; 0 for the one that stands for the prompt. Raises StorageUnavailable."""
    row = rows[at]
    most = max(len(prompt.ids) for prompt in row.prompts if prompt)
    nth = min(nth, most)
    columns, asked = load_answer_columns(row, nth, found)

    def to(place: int) -> str:
        return link(sel=key_of(rows[place])) if 0 <= place < len(rows) else ""

    def response(number: int) -> str:
        return link(sel=key_of(row), nth=number) if 1 <= number <= most and most > 1 else ""

    return PromptDetail(
        key_of(row), at + 1, asked, columns, nth, most, to(at - 1), to(at + 1),
        response(nth - 1), response(nth + 1),
    )  # fmt: skip


def load_answer_columns(
    row: ComparisonRow, nth: int, found: Sequence[ComparisonTarget]
) -> tuple[list[AnswerColumn], str]:
    """A column per cell, and the prompt's text."""
    ids = [choose_sample_id(prompt, nth) if prompt else "" for prompt in row.prompts]
    heads = {head.sample.pk: head for head in build_sample_rows(Sample.objects.filter(pk__in=[pk for pk in ids if pk]))}
    told = load_bodies([head.sample for head in heads.values()])
    columns = [
        build_answer_column(cell, prompt, heads.get(pk), told.get(pk))
        for cell, prompt, pk in zip(found, row.prompts, ids, strict=True)
    ]
    return columns, next((told[pk].prompt for pk in ids if pk in told and told[pk].prompt), "")


def choose_sample_id(prompt: ComparedPrompt, nth: int) -> str:
    """The sample to show; empty where the cell has fewer responses."""
    if not nth:
        return prompt.example_id
    return prompt.ids[nth - 1] if nth <= len(prompt.ids) else ""


def build_answer_column(
    cell: ComparisonTarget, prompt: ComparedPrompt | None, head: SampleRow | None, body: SampleBody | None
) -> AnswerColumn:
    at = prompt.ids.index(head.sample.pk) + 1 if prompt and head else 0
    return AnswerColumn(cell, prompt, head, None if body is None or body.textless else body.response, at)
