"""Re-scores: results of another reward function or of a judge on the samples of a run."""

from dataclasses import asdict
from typing import Any

from django.core.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView, Params, filter_by_owner
from dashboard.api.serializers import pick_fields
from dashboard.api.views.samples import SAMPLE_QUERY_PARAMS, parse_sample_scope
from rolloutdeck.protocol import SPLITS
from rollouts import rescores
from rollouts.errors import InvalidInputError
from rollouts.models import Queue, Rescore
from rollouts.samples import RescoreResult

WRITE_ROLE = permissions.ROLE_BY_SCOPE["annotate"]
KINDS = tuple(Rescore.Kind.values)
MAX_PENDING = 500
DEFAULT_PENDING = 100
SCOPE_PARAMS = {name: SAMPLE_QUERY_PARAMS[name] for name in ("split", "step", "step_kind", "attempt", "q")}


class Rescores(ApiView):
    """Re-scores."""

    scopes = {"POST": "annotate"}
    statuses = {"POST": ("201",)}
    paged = True
    takes = {
        "GET": {"project": "Its slug.", "run": "Its id.", "name": "The name of a re-score."},
        "POST": {
            "run": "Its id.",
            "name": "The name of its column, such as score.v2.",
            "kind": "function (default) or judge.",
            "source": "The function, or the model of the judge.",
            "digest": "Identifies the version of the function or the judge, for example a hash of its source.",
            "threshold": "A sample is correct above this number; by default if its part `acc` is 1, else above 0.",
            "replace": "true: delete the results of another version with this name.",
        },
    }

    def get(self, request: Request) -> Response:
        """Re-scores of the runs that you may see, newest first. A reviewer of a blind queue sees none."""
        query = self.parse_query()
        rows = permissions.visible_rescores(request)
        if "project" in query:
            rows = rows.filter(run__project=permissions.project_or_404(request, query["project"]))
        rows = filter_by_owner(rows, request, Params({name: query[name] for name in ("run",) if name in query}))
        if query.get("name"):
            rows = rows.filter(name=query["name"])
        return self.paginate(rows.order_by("-pk"), serialize_rescore)

    def post(self, request: Request) -> Response:
        """Start a re-score, or return that of the same name and version, which continues. 409 if the name has results
        of another version, or if the trainer logged the name."""
        data = self.parse_body()
        run = permissions.run_or_404(request, data.text("run", 64), role=WRITE_ROLE)
        if Queue.objects.blind_for(self.user.pk).queues:
            raise PermissionDenied("You review a blind queue. Until it is closed, re-scores are hidden from you.")
        rescore, created = rescores.create_rescore(
            run,
            self.user,
            name=data.get("name"),
            kind=data.choice("kind", KINDS, "function"),
            source=data.get("source"),
            digest=data.get("digest"),
            threshold=data.get("threshold"),
            replace=data.boolean("replace"),
        )
        return Response(serialize_rescore(rescore), status=201 if created else 200)


class OneRescore(ApiView):
    """One re-score."""

    scopes = {"DELETE": "annotate"}
    takes = {"DELETE": {}}

    def get(self, request: Request, pk: int) -> Response:
        """A re-score with the numbers of its results and errors."""
        return Response(serialize_rescore(permissions.rescore_or_404(request, pk)))

    def delete(self, request: Request, pk: int) -> Response:
        """Delete a re-score with all its results. Yours, or any as a maintainer."""
        self.parse_query()
        rescores.delete_rescore(changeable_rescore_or_404(request, pk), self.user)
        return Response(status=204)


class PendingSamples(ApiView):
    """Samples without a result."""

    searches = ("GET",)
    takes = {
        "GET": {
            **SCOPE_PARAMS,
            "limit": f"Samples in one response, {DEFAULT_PENDING} by default, at most {MAX_PENDING}.",
            "cursor": "Of the last response; empty for the first page.",
            "retry": "true: also samples whose result is an error.",
        }
    }

    def get(self, request: Request, pk: int) -> Response:
        """The next samples of a query that have no result, with their texts. `done` and `failed` were passed over since
        the last page, because they have one. Repeat it with `cursor` until that is null. `step=latest` is the step that
        was the newest at the first page."""
        query = self.parse_query()
        rescore = permissions.rescore_or_404(request, pk)
        scope = parse_sample_scope(request, Params({**query, "run": rescore.run.uid}))
        cursor = query.text("cursor", 80)
        if query.get("step") == "latest" and (step := rescores.find_cursor_step(rescore.run, cursor)):
            scope |= {name: getattr(step, name) for name in ("split", "step", "step_kind")}
        found = rescores.find_pending_samples(
            rescore,
            scope,
            query.get("q", ""),
            limit=query.integer("limit", minimum=1, maximum=MAX_PENDING) or DEFAULT_PENDING,
            cursor=cursor,
            retry=query.boolean("retry"),
        )
        return Response(asdict(found))


class RescoreResults(ApiView):
    """Results of a re-score."""

    scopes = {"POST": "annotate"}
    takes = {
        "GET": {
            "split": "train or eval; both by default.",
            "step": "A number; required.",
            "errors": "true: only errors.",
        },
        "POST": {
            "results": f"1 to {rescores.MAX_RESULTS:,} objects {{sample, value, error, parts, rationale}}: a number, "
            "or an error that says why there is none; more numbers and short texts by name; what a judge says."
        },
    }

    def get(self, request: Request, pk: int) -> Response:
        """The results of a step: {sample, value, error, parts, rationale}."""
        query = self.parse_query()
        rescore = permissions.rescore_or_404(request, pk)
        step, split = query.step(), query.choice("split", SPLITS)
        if step is None:
            raise InvalidInputError("`step` is required: results are listed step by step.", "step")
        rows = rescores.list_results(rescore, step=step, split=split, only_errors=query.boolean("errors"))
        return Response({"results": [serialize_result(sample, result) for sample, result in rows]})

    def post(self, request: Request, pk: int) -> Response:
        """Store results. A sample's earlier result is replaced; samples that the run no longer has are left out."""
        results = rescores.parse_results(self.parse_body().get("results"))
        rescore = changeable_rescore_or_404(request, pk)
        return Response({"stored": rescores.save_results(rescore, results)})


class ComparedRescore(ApiView):
    """A re-score compared with the score."""

    searches = ("GET",)
    takes = {"GET": {"split": "train or eval; both by default."}}

    def get(self, request: Request, pk: int) -> Response:
        """Old and new per data source: counts, means, agreement of correct and wrong, correlation; and the samples with
        the largest difference."""
        split = self.parse_query().choice("split", SPLITS)
        rescore = permissions.rescore_or_404(request, pk)
        found = rescores.compare_rescore(rescore.pk, rescore.created_at, rescore.run.version, split)
        examples = [
            {"id": row.pk, "step": row.step.step, "score": row.score, "value": (row.rescores or {}).get(rescore.key)}
            for row in found.examples
        ]
        return Response(
            {
                "rescore": serialize_rescore(rescore),
                "total": serialize_source(found.total),
                "sources": [serialize_source(source) for source in found.sources],
                "missing": found.missing,
                "examples": examples,
            }
        )


def serialize_source(source: rescores.RescoredSource) -> dict[str, Any]:
    return {**asdict(source), "agreement": source.agreement}


def serialize_rescore(row: Rescore) -> dict[str, Any]:
    fields = ("name", "kind", "source", "digest", "threshold", "parts", "results", "errors", "author", "created_at")
    return {"id": row.pk, "run": row.run.uid, **pick_fields(row, *fields)}


def serialize_result(sample: str, result: RescoreResult) -> dict[str, Any]:
    return {"sample": sample, **asdict(result)}


def changeable_rescore_or_404(request: Request, pk: int) -> Rescore:
    """Raises Http404, and PermissionDenied if it is another user's."""
    rescore = permissions.rescore_or_404(request, pk)
    permissions.require_role(request, rescore.run.project, WRITE_ROLE)
    if not rescore.may_be_changed_by(request.user, rescore.run.project.role_of(request.user)):
        raise PermissionDenied("This is another user's re-score. Only a maintainer can change it.")
    return rescore
