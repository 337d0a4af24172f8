"""Exports: full samples of a run as a file, and tables or training data as a ZIP file with a card."""

from collections.abc import Iterable
from typing import Any

from django.http import StreamingHttpResponse
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.request import Request

from dashboard import permissions
from dashboard.api.base import ApiView, Params
from dashboard.api.views.samples import SAMPLE_QUERY_PARAMS, parse_sample_scope, search_requested_samples
from dashboard.streaming import iterate_in_threads
from rollouts import exports, samples
from rollouts.errors import InvalidInputError
from rollouts.models import Run
from rollouts.query import InvalidQueryError, QueryResult, find_samples

FORMATS = {
    "jsonl": ("application/x-ndjson", samples.export_jsonl),
    "parquet": ("application/vnd.apache.parquet", samples.export_parquet),
}
DATASET_PARAMS = {
    "project": "A slug: samples of all its runs that are not archived, without those that lack a key of the query. "
    "Either this or `run`.",
    **{name: text for name, text in SAMPLE_QUERY_PARAMS.items() if name != "ordering"},
    "run": "Ids of runs of one project, separated by commas.",
    "step": "A number, or all (default).",
    "layout": f"One of {', '.join(exports.LAYOUTS)}.",
    "format": f"One of {', '.join(exports.FORMATS)}.",
    "signal": "What is better: score (default), label, or rank.",
    "question": "With signal=label: key of a question of the rubric; the first one by default.",
    "good": "With signal=label: good answers, separated by commas; by default the first one.",
    "threshold": "With layout=kto and signal=score: a response is good from this score on; 0.5 by default.",
    "min_margin": "Pairs need a difference of scores above it; 0 by default. With signal=label or rank, 0 asks for "
    "none, except with layout=reward.",
    "pairs": "best-worst (default): one pair of each group; all: each pair.",
    "max_per_prompt": "Rows of one prompt at most.",
    "drop_near_duplicates": "true: texts that are almost the same as one before are left out.",
    "corrections": "false: corrected responses are not used.",
    "ids": "With layout=labels, true: also the ids of this server: sample, run_id and attempt.",
    "form": "text, messages, or auto (default): as the first sample.",
}


class AnyFormat(DefaultContentNegotiation):
    """`?format=` selects the file format here, not DRF's renderer."""

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


class ExportedSamples(ApiView):
    """Full samples as a file."""

    content_negotiation_class = AnyFormat
    searches = ("GET",)
    sends = tuple(media_type for media_type, _ in FORMATS.values())
    takes = {"GET": {**SAMPLE_QUERY_PARAMS, "format": "jsonl (default) or parquet."}}

    def get(self, request: Request) -> StreamingHttpResponse:
        """All samples that match `q`, as `format` jsonl (default) or parquet, streamed."""
        query = self.parse_query()
        name = query.choice("format", tuple(FORMATS), default="jsonl")
        # The order of the bodies on disk makes it ten times faster.
        result = search_requested_samples(request, query, ordering="order")
        media_type, export = FORMATS[name]
        response = StreamingHttpResponse(
            iterate_in_threads(export(result.samples, request.user)), content_type=media_type
        )
        response["Content-Disposition"] = f'attachment; filename="samples.{name}"'
        return response


class ExportedDataset(ApiView):
    """Samples, labels or training data with a card, as a ZIP file."""

    content_negotiation_class = AnyFormat
    searches = ("GET",)
    sends = ("application/zip",)
    takes = {"GET": DATASET_PARAMS}

    def get(self, request: Request) -> StreamingHttpResponse:
        """The samples that match `q` as a `layout` that `datasets.load_dataset` opens, streamed. The header
        `X-Total-Samples` says how many samples are read."""
        return build_dataset_response(request, self.parse_query())


def build_dataset_response(request: Request, query: Params) -> StreamingHttpResponse:
    """Raises InvalidInputError, Http404."""
    runs = find_exported_runs(request, query)
    options = exports.parse_options(runs[0].project, query)
    if options.layout == "labels":  # the same on every server
        runs.sort(key=lambda run: run.name)
    scopes = [parse_sample_scope(request, Params({**query, "run": run.uid})) for run in runs]
    results, skipped = search_runs(scopes, query.get("q", ""))
    described = {name: query.get(name, "") for name in ("project", "run", "split", "step", "step_kind", "attempt", "q")}
    names = ", ".join(sorted(run.name for run in runs))
    described["run"] = names if query.get("run") else "all that are not archived"
    export = exports.Export(
        project=runs[0].project,
        options=options,
        samples=[result.samples for result in results],
        query=described,
        # A table may have both splits, whose name must not promise training data.
        split="train" if options.is_training_data else query.get("split") or options.layout,
        reader=permissions.require_user(request),
        skipped_runs=skipped,
    )
    response = StreamingHttpResponse(iterate_in_threads(exports.stream_archive(export)), content_type="application/zip")
    response["Content-Disposition"] = f'attachment; filename="{export.file_name}"'
    response["X-Total-Samples"] = str(sum(result.total for result in results))
    return response


def search_runs(scopes: Iterable[dict[str, Any]], q: str) -> tuple[list[QueryResult], list[str]]:
    """Returns the samples of each run, and the names of runs without a key of the query: another run may have logged
    it. Raises InvalidInputError if all runs with samples lack one."""
    results: list[QueryResult] = []
    skipped: list[str] = []
    first_problem: InvalidQueryError | None = None
    for scope in scopes:
        try:
            results.append(find_samples(**scope, q=q, ordering="order"))
        except InvalidQueryError as error:
            skipped.append(scope["run"].name)
            first_problem = first_problem or error
    if first_problem and not any(result.scope.samples().exists() for result in results):
        raise first_problem
    return results, skipped


def find_exported_runs(request: Request, query: Params) -> list[Run]:
    """The runs of the request, of one project, the oldest first. Raises InvalidInputError, Http404."""
    if query.get("run"):
        runs = [permissions.run_or_404(request, uid.strip()) for uid in query["run"].split(",")]
        if len({run.project_id for run in runs}) > 1:
            raise InvalidInputError("The runs must be of one project.", "run")
    elif query.get("project"):
        project = permissions.project_or_404(request, query["project"])
        rows = permissions.visible_runs(request).filter(project=project, archived_at=None).select_related("project")
        runs = list(rows)
        if not runs:
            raise InvalidInputError("The project has no runs.", "project")
    else:
        raise InvalidInputError("Send `run` or `project`.", "run")
    return sorted(set(runs), key=lambda run: (run.created_at, run.pk))
