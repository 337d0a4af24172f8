"""An opened prompt of a comparison: the full response of each target, side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dashboard.pages.common import SampleRow, ShownImage, build_sample_rows, build_shown_images
from rollouts.compare import ComparedPrompt, ComparisonRow, ComparisonTarget
from rollouts.models import BlindQueues, Sample
from rollouts.samples import SampleBody, SampleImage, list_images, load_bodies, split_shared_images


@dataclass(frozen=True, slots=True)
class AnswerColumn:
    """The response of one target, number `at` (from 1) of those to the prompt. `prompt` is None if the target does not
    have the prompt, `head` if it has fewer responses, `text` if the body is missing."""

    target: ComparisonTarget
    prompt: ComparedPrompt | None
    head: SampleRow | None = None
    text: str | None = None
    at: int = 0
    images: list[ShownImage] = field(default_factory=list)

    @property
    def sample(self) -> Sample | None:
        return self.head.sample if self.head else None


@dataclass(frozen=True, slots=True)
class PromptDetail:
    """Prompt number `at` of the list and its response `nth`, both from 1. Links to neighbours are empty at the ends."""

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
    images: list[ShownImage]

    @property
    def text_count(self) -> int:
        return sum(column.text is not None for column in self.columns)


def get_row_key(row: ComparisonRow) -> str:
    """Identifies the row in a URL: the prompt's key in the first target that has it."""
    return next(prompt.key for prompt in row.prompts if prompt)


def find_row_position(rows: Sequence[ComparisonRow], key: str) -> int | None:
    return next((at for at, row in enumerate(rows) if get_row_key(row) == key), None) if key else None


def build_prompt_detail(
    rows: Sequence[ComparisonRow],
    at: int,
    nth: int,
    targets: Sequence[ComparisonTarget],
    link: Callable[..., str],
    blind: BlindQueues,
) -> PromptDetail:
    """Response `nth` of each target, from 1; 0 for the example of the prompt. Raises StorageUnavailableError."""
    row = rows[at]
    count = max(len(prompt.ids) for prompt in row.prompts if prompt)
    nth = min(nth, count)
    ids = [choose_sample_id(prompt, nth) if prompt else "" for prompt in row.prompts]
    shown = Sample.objects.filter(pk__in=filter(None, ids))
    heads = {head.sample.pk: head for head in build_sample_rows(shown, blind)}
    bodies = load_bodies([head.sample for head in heads.values()])
    shared, own = split_shared_images([list_images(body) for body in bodies.values()])
    images = dict(zip(bodies, own, strict=True))
    columns = [
        build_answer_column(target, prompt, heads.get(pk), bodies.get(pk), images.get(pk, []))
        for target, prompt, pk in zip(targets, row.prompts, ids, strict=True)
    ]

    def link_row(position: int) -> str:
        return link(sel=get_row_key(rows[position])) if 0 <= position < len(rows) else ""

    def link_response(number: int) -> str:
        return link(sel=get_row_key(row), nth=number) if 1 <= number <= count and count > 1 else ""

    prompt = next((bodies[pk].prompt for pk in ids if pk in bodies and bodies[pk].prompt), "")
    links = (link_row(at - 1), link_row(at + 1), link_response(nth - 1), link_response(nth + 1))
    prompt_images = build_shown_images(shared, next(iter(bodies), ""))
    return PromptDetail(get_row_key(row), at + 1, prompt, columns, nth, count, *links, prompt_images)


def choose_sample_id(prompt: ComparedPrompt, nth: int) -> str:
    """Empty if there are fewer responses."""
    if not nth:
        return prompt.example_id
    return prompt.ids[nth - 1] if nth <= len(prompt.ids) else ""


def build_answer_column(
    target: ComparisonTarget,
    prompt: ComparedPrompt | None,
    head: SampleRow | None,
    body: SampleBody | None,
    images: list[SampleImage],
) -> AnswerColumn:
    at = prompt.ids.index(head.sample.pk) + 1 if prompt and head else 0
    text = None if body is None or body.textless else body.response
    return AnswerColumn(target, prompt, head, text, at, build_shown_images(images, head.sample.pk) if head else [])
