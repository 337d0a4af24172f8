"""Samples: lists of previews, one full sample, its prompt over steps, its tokens and its images."""

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView, Params
from dashboard.api.serializers import pick_fields, serialize_flag
from dashboard.image_response import build_image_response
from rolloutdeck.protocol import SPLITS, STEP_KINDS
from rollouts import samples
from rollouts.errors import InvalidInputError
from rollouts.flags import load_flags
from rollouts.indexing import decode_tokens
from rollouts.models import Run
from rollouts.prompts import find_prompt_samples
from rollouts.query import SAMPLE_ORDERINGS, QueryResult, find_samples

MAX_TOKENS = 20_000  # in one response
PER_TOKEN_FIELDS = ("response_ids", "response_mask", "logprobs", "ref_logprobs", "advantages")
SAMPLE_QUERY_PARAMS = {
    "run": "Its id; required.",
    "split": "train or eval; both by default.",
    "step": "A number, latest, or all (default).",
    "step_kind": "What the number counts.",
    "attempt": "`current` (default), `all`, or the key of an attempt.",
    "q": "The query language of the pages.",
    "ordering": f"One of {', '.join(SAMPLE_ORDERINGS)}, `part:` and a reward part, or `rescore:` and a re-score; a "
    "leading `-` reverses it.",
}


def parse_sample_scope(request: Request, query: Params) -> dict[str, Any]:
    """Arguments of `find_samples`. `run` is required. Raises InvalidInputError, Http404."""
    if not query.get("run"):
        raise InvalidInputError("`run` is missing: samples are searched within one run.", "run")
    run = permissions.run_or_404(request, query["run"])
    split, step_kind = query.choice("split", SPLITS), query.choice("step_kind", STEP_KINDS)
    step: int | None = None
    if query.get("step") == "latest":
        step, split, step_kind = find_latest_step(run, split, step_kind)
    elif query.get("step") != "all":
        step = query.step()
    return {
        "run": run,
        "reader": permissions.require_user(request).pk,
        "split": split,
        "step": step,
        "step_kind": step_kind,
        "attempt": query.attempt(),
    }


def find_latest_step(run: Run, split: str, step_kind: str) -> tuple[int, str, str]:
    """Returns number, split and kind of the newest step. Without a split or a kind: of the first of them that has
    samples, since steps of different ones have unrelated numbers."""
    steps = run.steps.current().filter(samples__gt=0)
    found = set(steps.order_by().values_list("split", "step_kind").distinct())
    split = split or next((name for name in SPLITS if name in {own for own, _kind in found}), SPLITS[0])
    step_kind = step_kind or next((kind for kind in STEP_KINDS if (split, kind) in found), "")
    latest = steps.filter(split=split, step_kind=step_kind).order_by("-step").values_list("step", flat=True).first()
    return latest or 0, split, step_kind


def search_requested_samples(request: Request, query: Params, ordering: str = "score") -> QueryResult:
    """Raises InvalidInputError, Http404."""
    scope = parse_sample_scope(request, query)
    return find_samples(**scope, q=query.get("q", ""), ordering=query.get("ordering", ordering) or "score")


@dataclass
class PaginatedMatches:
    """What a paginator needs of a query result: slices of previews, and a count that is cheaper than the database's."""

    result: QueryResult
    reader: User

    def count(self) -> int:
        return self.result.total

    def __len__(self) -> int:
        return self.result.total

    def __getitem__(self, span: slice) -> list[dict[str, Any]]:
        found = self.result.find_first_samples(span.stop)
        rows = list(samples.prefetch_step_relations(found)[span])
        rescores = samples.load_rescore_values(rows, self.reader)
        return [samples.serialize_index_row(row) | {"rescores": rescores.get(row.pk, {})} for row in rows]


class Samples(ApiView):
    """Samples of a run."""

    paged = True
    searches = ("GET",)
    takes = {"GET": SAMPLE_QUERY_PARAMS}

    def get(self, request: Request) -> Response:
        """Previews that match `q` within `run split step attempt`, in `ordering`; `step` may be `latest` or `all`."""
        result = search_requested_samples(request, self.parse_query())
        extra = {"notes": list(result.notes)} if result.notes else None
        return self.paginate(PaginatedMatches(result, self.user), dict, extra)


class OneSample(ApiView):
    """One sample."""

    def get(self, request: Request, pk: str) -> Response:
        """All recorded values of a sample, the dumps that contain it, and its labels; flags are labels too."""
        sample = permissions.sample_or_404(request, pk)
        body = samples.load_body(sample)
        flags = load_flags([pk], withdrawn=True, reader=request.user).get(pk, [])
        labels = samples.load_exported_labels([pk], request.user).get(pk, [])
        rescores = samples.load_rescore_values([sample], request.user)
        return Response(
            {
                **samples.serialize_full_sample(sample, body, labels, rescores.get(pk)),
                "visible": sample.visible and not sample.step.superseded,
                "seen_in": [{"id": dump.pk, **pick_fields(dump, "source", "format")} for dump in body.source_dumps],
                "flags": [serialize_flag(flag) for flag in flags],
            }
        )


class History(ApiView):
    """A prompt over steps."""

    paged = True
    takes = {"GET": {"split": "train or eval; both by default.", "attempt": "`current` (default), `all`, or a key."}}

    def get(self, request: Request, pk: str) -> Response:
        """The samples of the same prompt in this run, oldest step first, filtered by `split` and `attempt`."""
        query = self.parse_query()
        sample = permissions.sample_or_404(request, pk)
        split, attempt = query.choice("split", SPLITS), query.attempt()
        rows = find_prompt_samples(sample.step.run, sample.prompt_key, split=split, attempt=attempt)
        return self.paginate(samples.prefetch_step_relations(rows), samples.serialize_index_row)


class Tokens(ApiView):
    """The tokens of a sample."""

    takes = {
        "GET": {
            "start": "First token, from 0.",
            "count": f"Number of tokens, 1000 by default, at most {MAX_TOKENS}.",
            "prompt_start": f"First token of the prompt, from 0. `prompt_ids` has at most {MAX_TOKENS} tokens.",
        }
    }

    def get(self, request: Request, pk: str) -> Response:
        """`count` tokens of the response from `start`, each recorded array, and the prompt's token ids.

        `prompt_total` is the number of ids of the prompt. If it is larger than `prompt_ids`, ask again with
        `prompt_start`. `texts` has the text of each token, if the run's tokenizer is known.
        """
        query = self.parse_query()
        start = query.integer("start", maximum=2**31) or 0
        count = query.integer("count", minimum=1, maximum=MAX_TOKENS) or 1000
        prompt_start = query.integer("prompt_start", maximum=2**31) or 0
        sample = permissions.sample_or_404(request, pk)
        body = samples.load_body(sample)
        arrays: dict[str, list[Any] | None] = {name: getattr(body, name) for name in PER_TOKEN_FIELDS}
        total = max((len(array) for array in arrays.values() if array), default=0)
        parts = {name: None if array is None else array[start : start + count] for name, array in arrays.items()}
        ids = body.prompt_ids
        return Response(
            {
                "start": start,
                "count": max(0, min(count, total - start)),
                "total": total,
                "prompt_start": prompt_start,
                "prompt_total": None if ids is None else len(ids),
                "prompt_ids": None if ids is None else ids[prompt_start : prompt_start + MAX_TOKENS],
                "texts": decode_tokens(sample.step.run, parts["response_ids"]),
                **parts,
            }
        )


class ImageFile(ApiView):
    """An image of a sample."""

    sends = ("image/png", "image/jpeg", "image/gif", "image/webp")

    def get(self, request: Request, pk: str, sha256: str) -> HttpResponse:
        """The bytes of an image that `messages` or a key of the sample names as `image:<sha256>:…`."""
        owner = permissions.sample_or_404(request, pk).step.run.image_owner
        return build_image_response(request._request, owner, sha256)
