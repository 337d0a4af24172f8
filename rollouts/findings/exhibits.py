"""What a finding holds of a sample, a query or a chart: copies of all that is shown, so that later data, a re-index or
the deletion of the run cannot change them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from django.db.models import Avg, Max, Min
from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.flags import load_flags
from rollouts.metrics import load_curves
from rollouts.models import Run, Sample
from rollouts.query import find_samples
from rollouts.samples import SampleBody, prefetch_step_relations, serialize_index_row

MAX_SNAPSHOT_CHARS: Final = 200_000  # characters of a prompt or a response
MOST_QUOTED: Final = 20_000
MOST_ROWS: Final = 12
MOST_CURVES: Final = 64
POINTS: Final = 500
FIELDS: Final = ("response", "prompt")
# What a browser's selection may have otherwise than the text: white space, and characters that pages show by name.
SEEN: Final = re.compile(r"[^\s\x00-\x1f\x7f\x85\u200b\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
SLIM: Final = (
    "group", "index", "trajectory", "final", "prompt_key", "score", "correct", "advantage", "chars", "tokens",
    "truncated", "facets", "data_source",
)  # fmt: skip
BODY: Final = ("finish_reason", "rewards", "policy_version")


@dataclass(frozen=True, slots=True)
class Quote:
    """A range of a sample's prompt or response, in characters, and what stands there."""

    field: str
    start: int
    end: int
    text: str


def build_quote(body: SampleBody, field: str, start: int, end: int) -> Quote:
    """The quote of a range. Raises BadInput."""
    if field not in FIELDS:
        raise InvalidInputError(
            _("`field` of a quote must be one of {known}.").format(known=", ".join(FIELDS)), "quotes"
        )
    whole = getattr(body, field)
    if not 0 <= start < end <= len(whole):
        said = _("{start}–{end} is not a valid range: the {field} has {count} characters.")
        raise InvalidInputError(said.format(field=field, count=f"{len(whole):,}", start=start, end=end), "quotes")
    return checked(Quote(field, start, end, whole[start:end]))


def find_quote(body: SampleBody, said: str, near: int = 0) -> Quote:
    """The quote of a text that somebody selected on a page, at the place nearest to `near`. White space and control
    characters may differ, as they do in a browser. Raises BadInput for a text that the sample does not have."""
    for field in FIELDS:
        whole = getattr(body, field)
        places = exactly(whole, said.strip()) or loosely(whole, said)
        if places:
            start, end = min(places, key=lambda place: abs(place[0] - near))
            return checked(Quote(field, start, end, whole[start:end]))
    said = _("The selected text is not in the recorded sample. Select it in the raw view.")
    raise InvalidInputError(said, "quotes")


def checked(quote: Quote) -> Quote:
    if len(quote.text) > MOST_QUOTED:
        said = _("A quote can have at most {most} characters; this one has {count}.")
        raise InvalidInputError(said.format(most=f"{MOST_QUOTED:,}", count=f"{len(quote.text):,}"), "quotes")
    return quote


def exactly(whole: str, said: str) -> list[tuple[int, int]]:
    return [found.span() for found in re.finditer(re.escape(said), whole)] if said else []


def loosely(whole: str, said: str) -> list[tuple[int, int]]:
    """Where the visible characters of `said` stand in a row."""
    wanted = "".join(SEEN.findall(said))
    if not wanted:
        return []
    places = [found.start() for found in SEEN.finditer(whole)]
    packed = "".join(whole[at] for at in places)
    return [(places[first], places[last - 1] + 1) for first, last in exactly(packed, wanted)]


def of_run(run: Run) -> dict[str, str]:
    return {"uid": run.uid, "name": run.name}


def snapshot_sample(sample: Sample, body: SampleBody, quotes: Iterable[Quote]) -> dict[str, Any]:
    """A sample with its texts, cut after `MOST_HELD` characters, what was recorded of it, and its standing flags."""
    slim = serialize_index_row(sample)
    step = sample.step
    texts = {name: getattr(body, name)[:MAX_SNAPSHOT_CHARS] for name in FIELDS}
    return {
        "sample": sample.pk,
        "run": of_run(step.run),
        **{name: slim[name] for name in ("attempt", "split", "step_kind", "step")},
        **{name: slim[name] for name in SLIM},
        **{name: getattr(body, name) for name in BODY},
        "ground_truth": None if body.ground_truth is None else body.ground_truth[:MAX_SNAPSHOT_CHARS],
        **texts,
        "lengths": {name: len(getattr(body, name)) for name in FIELDS},
        "textless": body.textless,
        "flags": [
            {"label": flag.label, "reason": flag.reason, "text": flag.text, "user": flag.user.get_username()}
            for flag in load_flags([sample.pk]).get(sample.pk, [])
        ],
        "quotes": [asdict(quote) for quote in quotes],
    }


def snapshot_query(
    run: Run,
    *,
    split: str,
    step: int | None,
    step_kind: str,
    attempt: str,
    q: str,
    ordering: str,
    reader: int | None = None,
) -> dict[str, Any]:
    """A query's counts, figures and first rows, as they are for `reader`, the id of who asks. Raises BadInput."""
    where: dict[str, Any] = {"split": split, "step": step, "step_kind": step_kind, "attempt": attempt}
    answer = find_samples(run, **where, q=q, ordering=ordering, reader=reader)
    scores = (
        answer.samples.order_by().filter(final=True).aggregate(mean=Avg("score"), low=Min("score"), high=Max("score"))
    )
    rows = prefetch_step_relations(answer.samples)[:MOST_ROWS]
    return {
        "run": of_run(run),
        **where,
        "q": q,
        "ordering": ordering,
        "total": answer.total,
        "of": find_samples(run, **where).total,
        "notes": list(answer.notes),
        "scores": scores,
        "counts": {term: count for term, count in answer.count_properties().items() if count},
        "rows": [serialize_index_row(row) for row in rows],
    }


def snapshot_charts(runs: Sequence[Run], names: Sequence[str], attempt: str = "current") -> dict[str, Any]:
    """Metrics of runs as points, thinned as the overview's. Raises NotThere where none has any."""
    wanted = list(dict.fromkeys(names))
    if not wanted or len(wanted) * len(runs) > MOST_CURVES:
        said = _("A chart can have 1 to {most} curves, not {count}.")
        raise InvalidInputError(said.format(most=MOST_CURVES, count=len(wanted) * len(runs)), "names")
    read = load_curves(list(runs), wanted, max_points=POINTS, attempt=attempt)
    curves = [
        {"run": {**of_run(run), "colour": run.colour}, "name": name, **curve}
        for run in runs
        for name in wanted
        for curve in read[run.uid][name]
    ]
    if not curves:
        raise NotFoundError(
            _("{run} has no metric called {name}.").format(run=runs[0].name, name=wanted[0][:80]), "names"
        )
    return {"names": wanted, "runs": [of_run(run) for run in runs], "curves": curves}
