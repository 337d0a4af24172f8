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
from dashboard.api.pagination import ApiPagination
from dashboard.api.parsers import parse_count, parse_query_params
from dashboard.api.schema import AcceptedParams
from rolloutdeck.protocol import SPLITS, STEP_KINDS
from rollouts.errors import InvalidInputError
from rollouts.flags import load_flags
from rollouts.indexing import decode_tokens
from rollouts.lib import parse_choice, parse_integer, parse_text
from rollouts.models import Sample
from rollouts.prompts import find_prompt_samples
from rollouts.query import SAMPLE_ORDERINGS, QueryResult, find_samples
from rollouts.samples import (
    SampleBody,
    export_jsonl,
    export_parquet,
    load_body,
    prefetch_step_relations,
    serialize_full_sample,
    serialize_index_row,
)

MAX_TOKENS = 20_000  # in one answer
PER_TOKEN = ("response_ids", "response_mask", "logprobs", "ref_logprobs", "advantages")
SAMPLE_QUERY_PARAMS = {
    "run": "Its id; needed.",
    "split": "train or eval; both unless told.",
    "step": "A number, latest, or all (default).",
    "step_kind": "What the number counts.",
    "attempt": "`current` (default), `all`, or one attempt's key.",
    "q": "The query language of the pages.",
    "ordering": f"One of {', '.join(SAMPLE_ORDERINGS)}; `-` before it turns it round.",
}


def parse_sample_scope(request: Request, query: dict[str, str]) -> dict[str, Any]:
    """Where the parameters ask, as `search.find` takes it; `run` is needed. Raises BadInput, Http404."""
    if not query.get("run"):
        raise InvalidInputError("`run` is missing: samples are asked for within one run.", "run")
    step = query.get("step", "")
    run = permissions.run_or_404(request, query["run"])
    split = parse_choice(query.get("split"), "split", SPLITS, default="")
    if step == "latest":
        steps = run.steps.current().filter(split=split or "train")
        step = str(steps.order_by("-step").values_list("step", flat=True).first() or 0)
    return {
        "run": run,
        "reader": permissions.require_user(request).pk,
        "split": split,
        "step": None if step == "all" else parse_integer(step, "step"),
        "step_kind": parse_choice(query.get("step_kind"), "step_kind", STEP_KINDS, default=""),
        "attempt": "" if query.get("attempt") == "current" else parse_text(query.get("attempt"), "attempt", most=120),
    }


def search_requested_samples(request: Request, query: dict[str, str]) -> QueryResult:
    """What the parameters ask for. Raises BadInput, Http404."""
    where = parse_sample_scope(request, query)
    return find_samples(**where, q=query.get("q", ""), ordering=query.get("ordering") or "score")


@dataclass
class PaginatedMatches:
    """What a paginator needs of a `Found`: slices, and a count that is cheaper than the database's."""

    answer: QueryResult

    def count(self) -> int:
        return self.answer.total

    def __len__(self) -> int:
        return self.answer.total

    def __getitem__(self, span: slice) -> list[Sample]:
        return list(prefetch_step_relations(self.answer.samples)[span])


class Samples(APIView):
    """Samples of a run."""

    paged = True
    takes: ClassVar[AcceptedParams] = {"GET": SAMPLE_QUERY_PARAMS}

    def get(self, request: Request) -> Response:
        """Previews that answer `q` within `run split step attempt`, in `ordering`; `step` may be `latest` or `all`."""
        answer = search_requested_samples(request, parse_query_params(request, self))
        pages = ApiPagination()
        page = pages.paginate_queryset(PaginatedMatches(answer), request, self) or []
        response = pages.get_paginated_response([serialize_index_row(sample) for sample in page])
        if answer.notes and isinstance(response.data, dict):
            response.data["notes"] = list(answer.notes)
        return response


class OneSample(APIView):
    """One sample."""

    def get(self, request: Request, pk: str) -> Response:
        """Everything the dumps tell of a sample, the dumps it was seen in, and its flags."""
        sample = permissions.sample_or_404(request, pk)
        body = load_body(sample)
        marks = load_flags([pk], withdrawn=True).get(pk, [])
        dumps = [{"id": dump.pk, "source": dump.source, "format": dump.format} for dump in body.source_dumps]
        return Response(
            {
                **serialize_full_sample(sample, body),
                "visible": sample.visible and not sample.step.superseded,
                "seen_in": dumps,
                "flags": [shown.serialize_flag(mark) for mark in marks],
            }
        )


class History(APIView):
    """A prompt over steps."""

    paged = True
    takes: ClassVar[AcceptedParams] = {
        "GET": {"split": "train or eval; both unless told.", "attempt": "`current` (default), `all`, or a key."}
    }

    def get(self, request: Request, pk: str) -> Response:
        """The samples of the same prompt in this run, oldest step first; `split`, `attempt` as elsewhere."""
        query = parse_query_params(request, self)
        sample = permissions.sample_or_404(request, pk)
        split = parse_choice(query.get("split"), "split", SPLITS, default="")
        attempt = "" if query.get("attempt") == "current" else query.get("attempt", "")
        rows = find_prompt_samples(sample.step.run, sample.prompt_key, split=split, attempt=attempt)
        pages = ApiPagination()
        page = pages.paginate_queryset(prefetch_step_relations(rows), request, self) or []
        return pages.get_paginated_response([serialize_index_row(row) for row in page])


class Tokens(APIView):
    """Token by token."""

    takes: ClassVar[AcceptedParams] = {
        "GET": {
            "start": "First token, from 0.",
            "count": f"How many; 1000 unless told, at most {MAX_TOKENS}.",
            "prompt_start": f"First token of the prompt, from 0; `prompt_ids` are at most {MAX_TOKENS} from there on.",
        }
    }

    def get(self, request: Request, pk: str) -> Response:
        """`count` tokens of the response from `start` on, each array that was recorded, and the prompt's token ids.

        `prompt_total` says how many ids the prompt has: where that is more than `prompt_ids` holds, ask again with
        `prompt_start`. `texts` is each token's text by itself, where the run's tokenizer is known.
        """
        query = parse_query_params(request, self)
        start = parse_integer(query.get("start"), "start", most=2**31) or 0
        count = parse_count(query.get("count"), "count", most=MAX_TOKENS, default=1000)
        sample = permissions.sample_or_404(request, pk)
        body = load_body(sample)
        arrays: dict[str, list[Any] | None] = {name: getattr(body, name) for name in PER_TOKEN}
        total = max((len(array) for array in arrays.values() if array), default=0)
        cut = {name: None if array is None else array[start : start + count] for name, array in arrays.items()}
        shown = {"start": start, "count": max(0, min(count, total - start)), "total": total}
        shown |= prompt_of(body, parse_integer(query.get("prompt_start"), "prompt_start", most=2**31) or 0)
        return Response({**shown, "texts": decode_tokens(sample.step.run, cut["response_ids"]), **cut})


def prompt_of(body: SampleBody, start: int) -> dict[str, Any]:
    """The prompt's token ids from `start` on, as many as one answer holds, and how many there are; None for both where
    they were not recorded."""
    if body.prompt_ids is None:
        return {"prompt_start": start, "prompt_total": None, "prompt_ids": None}
    ids = body.prompt_ids[start : start + MAX_TOKENS]
    return {"prompt_start": start, "prompt_total": len(body.prompt_ids), "prompt_ids": ids}


FORMATS = {
    "jsonl": ("application/x-ndjson", export_jsonl),
    "parquet": ("application/vnd.apache.parquet", export_parquet),
}


class AnyFormat(DefaultContentNegotiation):
    """`?format=` here names the file, not DRF's renderer."""

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


class ExportedSamples(APIView):
    """Whole samples as a file."""

    content_negotiation_class = AnyFormat
    takes: ClassVar[AcceptedParams] = {"GET": {**SAMPLE_QUERY_PARAMS, "format": "jsonl (default) or parquet."}}

    def get(self, request: Request) -> StreamingHttpResponse:
        """Everything that answers `q`, as `format` jsonl (default) or parquet, streamed."""
        query = parse_query_params(request, self)
        kind = parse_choice(query.get("format"), "format", tuple(FORMATS), default="jsonl")
        answer = search_requested_samples(
            request, {"ordering": "order", **query}
        )  # as the bodies lie on disk: ten times faster
        media_type, write = FORMATS[kind]
        response = StreamingHttpResponse(stream_pieces(write(answer.samples)), content_type=media_type)
        response["Content-Disposition"] = f'attachment; filename="samples.{kind}"'
        return response


async def stream_pieces(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Asks for one piece at a time; given a plain iterator, Django under ASGI would gather the whole file first."""

    def following() -> bytes | None:
        return next(pieces, None)

    while (piece := await sync_to_async(following)()) is not None:
        yield piece
