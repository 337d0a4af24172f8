"""Samples: previews in lists, the whole one by one, its prompt over steps, its tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api import serializers as shown
from dashboard.api.pagination import Pages
from dashboard.api.parsers import asked, counted
from dashboard.api.schema import Takes
from rolloutdeck.protocol import wire
from rollouts.errors import BadInput
from rollouts.flags import flags
from rollouts.indexing import detokenize
from rollouts.lib.validation import number, one_of, text
from rollouts.models import Sample
from rollouts.prompts import history
from rollouts.query import search
from rollouts.samples import bodies, export

MOST_TOKENS = 20_000  # in one answer
PER_TOKEN = ("response_ids", "response_mask", "logprobs", "ref_logprobs", "advantages")
WHERE = {
    "run": "Its id; needed.",
    "split": "train or eval; both unless told.",
    "step": "A number, latest, or all (default).",
    "step_kind": "What the number counts.",
    "attempt": "`current` (default), `all`, or one attempt's key.",
    "q": "The query language of the pages.",
    "ordering": f"One of {', '.join(search.ORDERINGS)}; `-` before it turns it round.",
}


def place(request: Request, query: dict[str, str]) -> dict[str, Any]:
    """Where the parameters ask, as `search.find` takes it; `run` is needed. Raises BadInput, Http404."""
    if not query.get("run"):
        raise BadInput("`run` is missing: samples are asked for within one run.", "run")
    step = query.get("step", "")
    run = permissions.run_or_404(request, query["run"])
    split = one_of(query.get("split"), "split", wire.SPLITS, default="")
    if step == "latest":
        steps = run.steps.current().filter(split=split or "train")
        step = str(steps.order_by("-step").values_list("step", flat=True).first() or 0)
    return {
        "run": run,
        "reader": permissions.person(request).pk,
        "split": split,
        "step": None if step == "all" else number(step, "step"),
        "step_kind": one_of(query.get("step_kind"), "step_kind", wire.STEP_KINDS, default=""),
        "attempt": "" if query.get("attempt") == "current" else text(query.get("attempt"), "attempt", most=120),
    }


def found(request: Request, query: dict[str, str]) -> search.Found:
    """What the parameters ask for. Raises BadInput, Http404."""
    where = place(request, query)
    return search.find(**where, q=query.get("q", ""), ordering=query.get("ordering") or "score")


@dataclass
class Counted:
    """What a paginator needs of a `Found`: slices, and a count that is cheaper than the database's."""

    answer: search.Found

    def count(self) -> int:
        return self.answer.total

    def __len__(self) -> int:
        return self.answer.total

    def __getitem__(self, span: slice) -> list[Sample]:
        return list(export.with_places(self.answer.samples)[span])


class Samples(APIView):
    """Samples of a run."""

    paged = True
    takes: ClassVar[Takes] = {"GET": WHERE}

    def get(self, request: Request) -> Response:
        """Previews that answer `q` within `run split step attempt`, in `ordering`; `step` may be `latest` or `all`."""
        answer = found(request, asked(request, self))
        pages = Pages()
        page = pages.paginate_queryset(Counted(answer), request, self) or []
        response = pages.get_paginated_response([export.slim(sample) for sample in page])
        if answer.notes and isinstance(response.data, dict):
            response.data["notes"] = list(answer.notes)
        return response


class OneSample(APIView):
    """One sample."""

    def get(self, request: Request, pk: str) -> Response:
        """Everything the dumps tell of a sample, the dumps it was seen in, and its flags."""
        sample = permissions.sample_or_404(request, pk)
        body = bodies.whole(sample)
        marks = flags.flags_of([pk], withdrawn=True).get(pk, [])
        dumps = [{"id": dump.pk, "source": dump.source, "format": dump.format} for dump in body.seen_in]
        return Response(
            {
                **export.whole(sample, body),
                "visible": sample.visible and not sample.step.superseded,
                "seen_in": dumps,
                "flags": [shown.flag(mark) for mark in marks],
            }
        )


class History(APIView):
    """A prompt over steps."""

    paged = True
    takes: ClassVar[Takes] = {
        "GET": {"split": "train or eval; both unless told.", "attempt": "`current` (default), `all`, or a key."}
    }

    def get(self, request: Request, pk: str) -> Response:
        """The samples of the same prompt in this run, oldest step first; `split`, `attempt` as elsewhere."""
        query = asked(request, self)
        sample = permissions.sample_or_404(request, pk)
        split = one_of(query.get("split"), "split", wire.SPLITS, default="")
        attempt = "" if query.get("attempt") == "current" else query.get("attempt", "")
        rows = history.prompt_history(sample.step.run, sample.prompt_key, split=split, attempt=attempt)
        pages = Pages()
        page = pages.paginate_queryset(export.with_places(rows), request, self) or []
        return pages.get_paginated_response([export.slim(row) for row in page])


class Tokens(APIView):
    """Token by token."""

    takes: ClassVar[Takes] = {
        "GET": {
            "start": "First token, from 0.",
            "count": f"How many; 1000 unless told, at most {MOST_TOKENS}.",
            "prompt_start": f"First token of the prompt, from 0; `prompt_ids` are at most {MOST_TOKENS} from there on.",
        }
    }

    def get(self, request: Request, pk: str) -> Response:
        """`count` tokens of the response from `start` on, each array that was recorded, and the prompt's token ids.

        `prompt_total` says how many ids the prompt has: where that is more than `prompt_ids` holds, ask again with
        `prompt_start`. `texts` is each token's text by itself, where the run's tokenizer is known.
        """
        query = asked(request, self)
        start = number(query.get("start"), "start", most=2**31) or 0
        count = counted(query.get("count"), "count", most=MOST_TOKENS, default=1000)
        sample = permissions.sample_or_404(request, pk)
        body = bodies.whole(sample)
        arrays: dict[str, list[Any] | None] = {name: getattr(body, name) for name in PER_TOKEN}
        total = max((len(array) for array in arrays.values() if array), default=0)
        cut = {name: None if array is None else array[start : start + count] for name, array in arrays.items()}
        shown = {"start": start, "count": max(0, min(count, total - start)), "total": total}
        shown |= prompt_of(body, number(query.get("prompt_start"), "prompt_start", most=2**31) or 0)
        return Response({**shown, "texts": detokenize.pieces_of(sample.step.run, cut["response_ids"]), **cut})


def prompt_of(body: bodies.Body, start: int) -> dict[str, Any]:
    """The prompt's token ids from `start` on, as many as one answer holds, and how many there are; None for both where
    they were not recorded."""
    if body.prompt_ids is None:
        return {"prompt_start": start, "prompt_total": None, "prompt_ids": None}
    ids = body.prompt_ids[start : start + MOST_TOKENS]
    return {"prompt_start": start, "prompt_total": len(body.prompt_ids), "prompt_ids": ids}


FORMATS = {
    "jsonl": ("application/x-ndjson", export.jsonl),
    "parquet": ("application/vnd.apache.parquet", export.parquet),
}


class AnyFormat(DefaultContentNegotiation):
    """`?format=` here names the file, not DRF's renderer."""

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


class ExportedSamples(APIView):
    """Whole samples as a file."""

    content_negotiation_class = AnyFormat
    takes: ClassVar[Takes] = {"GET": {**WHERE, "format": "jsonl (default) or parquet."}}

    def get(self, request: Request) -> StreamingHttpResponse:
        """Everything that answers `q`, as `format` jsonl (default) or parquet, streamed."""
        query = asked(request, self)
        kind = one_of(query.get("format"), "format", tuple(FORMATS), default="jsonl")
        answer = found(request, {"ordering": "order", **query})  # as the bodies lie on disk: ten times faster
        media_type, write = FORMATS[kind]
        response = StreamingHttpResponse(in_pieces(write(answer.samples)), content_type=media_type)
        response["Content-Disposition"] = f'attachment; filename="samples.{kind}"'
        return response


async def in_pieces(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Asks for one piece at a time; given a plain iterator, Django under ASGI would gather the whole file first."""

    def following() -> bytes | None:
        return next(pieces, None)

    while (piece := await sync_to_async(following)()) is not None:
        yield piece
