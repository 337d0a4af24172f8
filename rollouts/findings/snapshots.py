"""Snapshots of samples, query results and charts, so that later data, a re-index or the deletion of the run cannot
change what a finding shows."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from django.db.models import Avg, Max, Min
from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError
from rollouts.flags import load_flags
from rollouts.models import Queue, Run, Sample
from rollouts.query import find_samples
from rollouts.samples import SampleBody, list_images, prefetch_step_relations, serialize_index_row
from rollouts.samples.responses import find_passage
from rollouts.storage import copy_image

MAX_SNAPSHOT_CHARS: Final = 200_000  # of a prompt or a response
MAX_QUOTE_CHARS: Final = 20_000
MAX_ROWS: Final = 12
MAX_COUNTED_SAMPLES: Final = 50_000  # of the filter chips, as on the page of all steps: counts of more take seconds
TEXT_FIELDS: Final = ("response", "prompt")
INDEX_ROW_FIELDS: Final = (
    "attempt", "split", "step_kind", "step", "group", "index", "trajectory", "final", "prompt_key", "score", "correct",
    "advantage", "chars", "tokens", "truncated", "staleness", "duration", "facets", "data_source",
)  # fmt: skip
SNAPSHOT_BODY_FIELDS: Final = ("finish_reason", "rewards", "policy_version", "textless")


@dataclass(frozen=True, slots=True)
class Quote:
    """A range of a sample's prompt or response, in characters, and its text."""

    field: str
    start: int
    end: int
    text: str


def build_quote(body: SampleBody, field: str, start: int, end: int) -> Quote:
    """Returns the quote of a range. Raises InvalidInputError."""
    if field not in TEXT_FIELDS:
        message = _("`field` of a quote must be one of {known}.")
        raise InvalidInputError(message.format(known=", ".join(TEXT_FIELDS)), "quotes")
    text = getattr(body, field)
    if not 0 <= start < end <= len(text):
        message = _("{start}–{end} is not a valid range: the {field} has {count} characters.")
        raise InvalidInputError(message.format(field=field, count=f"{len(text):,}", start=start, end=end), "quotes")
    if end - start > MAX_QUOTE_CHARS:
        message = _("A quote can have at most {limit} characters; this one has {count}.")
        raise InvalidInputError(message.format(limit=f"{MAX_QUOTE_CHARS:,}", count=f"{end - start:,}"), "quotes")
    return Quote(field, start, end, text[start:end])


def find_quote(body: SampleBody, selected: str, near: int = 0) -> Quote:
    """Returns the quote of a text that the user selected on a page, the occurrence nearest to `near`. White space and
    control characters may differ, as they do in a browser. Raises InvalidInputError if the sample does not contain the
    text."""
    for field in TEXT_FIELDS:
        if span := find_passage(getattr(body, field), selected, near):
            return build_quote(body, field, *span)
    raise InvalidInputError(_("The selected text is not in the recorded sample. Select it in the raw view."), "quotes")


def serialize_run(run: Run) -> dict[str, str]:
    return {"uid": run.uid, "name": run.name}


def snapshot_sample(sample: Sample, body: SampleBody, quotes: Iterable[Quote]) -> dict[str, Any]:
    """Returns a sample with its recorded values, its active flags, and texts of at most `MAX_SNAPSHOT_CHARS`."""
    row = serialize_index_row(sample)
    return {
        "sample": sample.pk,
        "run": serialize_run(sample.step.run),
        **{name: row[name] for name in INDEX_ROW_FIELDS},
        **{name: getattr(body, name) for name in SNAPSHOT_BODY_FIELDS},
        "ground_truth": None if body.ground_truth is None else body.ground_truth[:MAX_SNAPSHOT_CHARS],
        **{name: getattr(body, name)[:MAX_SNAPSHOT_CHARS] for name in TEXT_FIELDS},
        "lengths": {name: len(getattr(body, name)) for name in TEXT_FIELDS},
        "flags": [
            {"label": flag.value, "reason": flag.reason, "text": flag.rationale, "user": flag.author}
            for flag in load_flags([sample.pk]).get(sample.pk, [])
        ],
        "quotes": [asdict(quote) for quote in quotes],
        "images": [asdict(image) for image in list_images(body) if copy_to_project(image.sha256, sample.step.run)],
    }


def copy_to_project(digest: str, run: Run) -> bool:
    """Copies an image of a run to the project, so that it survives the run. Returns False if it is not stored."""
    return not digest or copy_image(run.image_owner, run.project.image_owner, digest)


def snapshot_query(
    run: Run, *, q: str = "", ordering: str = "score", reader: int | None = None, **scope: Any
) -> dict[str, Any]:
    """Returns the counts, statistics and first rows of a query for the user `reader`. `scope` are split, step,
    step_kind and attempt, as in `find_samples`. Raises InvalidInputError."""
    scope = {"split": "", "step": None, "step_kind": "", "attempt": "", **scope}
    result = find_samples(run, **scope, q=q, ordering=ordering, reader=reader)
    trajectories = result.samples.order_by().filter(final=True)
    rows = prefetch_step_relations(result.find_first_samples(MAX_ROWS))[:MAX_ROWS]
    newest = result.limit_to_newest(MAX_COUNTED_SAMPLES)
    counts = {term: count for term, count in newest.count_properties().items() if count}
    notes = list(result.notes)
    if newest is not result:
        message = _("The filter chips count the newest {newest} of {all} steps.")
        steps = {"newest": newest.scope.steps.count(), "all": result.scope.steps.count()}
        notes.append(message.format(**{name: f"{count:,}" for name, count in steps.items()}))
    if reader is not None and Queue.objects.blind_for(reader).queues:
        counts.pop("is:flagged", None)  # the flags of others
    return {
        "run": serialize_run(run),
        **scope,
        "q": q,
        "ordering": ordering,
        "total": result.total,
        "of": find_samples(run, **scope).total,
        "notes": notes,
        "scores": trajectories.aggregate(mean=Avg("score"), low=Min("score"), high=Max("score")),
        "counts": counts,
        "rows": [serialize_index_row(row) for row in rows],
    }
