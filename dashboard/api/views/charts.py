"""Charts: the curve of a query over steps, groups of runs as mean and range, and how a project arranges its charts."""

from dataclasses import asdict

from django.http import Http404
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView
from rolloutdeck.protocol import SPLITS
from rollouts.charts import MEASURES, ChartQuery, load_arrangement, load_query_curve, save_arrangement
from rollouts.errors import InvalidInputError
from rollouts.lib import parse_text
from rollouts.metrics import select_readable_metrics
from rollouts.models import Queue
from rollouts.runs import compute_group_curves, find_run_group, list_group_names

SEARCH_SECONDS = 0.7  # of one request
MAX_GROUP_METRICS = 50  # in one response


class QueryCurve(ApiView):
    """The curve of a query."""

    searches = ("GET",)
    takes = {
        "GET": {
            "q": "The query to chart, see the user guide.",
            "measure": "`share` of the matching samples (default), their `count`, mean `score` or mean `length`.",
            "among": "A second query: the share refers to its samples instead of all.",
            "split": "train (default) or eval.",
            "max_points": "Downsample to this number of points; extremes are kept.",
        }
    }

    def get(self, request: Request, uid: str) -> Response:
        """{steps, values, counts, done, total, complete}: the points that are known. Until `complete`, each request
        searches more steps, the newest first; repeat it. Steps that were searched once are stored."""
        query = self.parse_query()
        run = permissions.run_or_404(request, uid)
        chart = ChartQuery(
            query.text("q", 8000),
            query.choice("measure", MEASURES, "share"),
            query.choice("split", SPLITS, "train"),
            query.text("among", 8000),
        )
        max_points = query.integer("max_points", maximum=1_000_000) or 0
        chart.check_reader(self.user.pk, run)
        result = load_query_curve(run, chart, seconds=SEARCH_SECONDS, max_points=max_points)
        return Response({**asdict(result), "complete": result.complete})


class RunGroups(ApiView):
    """Groups of runs."""

    takes = {
        "GET": {
            "key": "A group: `tag:NAME`, or `seeds` for the runs that differ from this one only in the seed.",
            "name": "A metric; may be repeated.",
            "max_points": "Downsample to this number of points.",
        }
    }

    def get(self, request: Request, uid: str) -> Response:
        """Without `key`, the `groups` [{key, runs}] of the run's project with 2 or more runs. With `key`, the `runs` of
        the group, and of each `name` the mean over its runs, with `low` and `high` where 2 or more have a point."""
        query = self.parse_query()
        run, visible = permissions.run_or_404(request, uid), permissions.visible_runs(request)
        if not query.get("key"):
            return Response({"groups": [{"key": key, "runs": count} for key, count in list_group_names(run, visible)]})
        group = find_run_group(query.text("key", 200), run, visible)
        if group is None:
            raise Http404("This project has no such group of runs. Without `key`, the response lists them.")
        names = [parse_text(name, "name", max_chars=300) for name in request.query_params.getlist("name")]
        if len(names) > MAX_GROUP_METRICS:
            raise InvalidInputError(f"At most {MAX_GROUP_METRICS} names in one request.", "name")
        max_points = query.integer("max_points", maximum=1_000_000) or 0
        runs = [{"id": each.uid, "name": each.name} for each in group.runs]
        names = select_readable_metrics(names, Queue.objects.blind_for(self.user.pk))
        series = compute_group_curves(group.runs, names, max_points)
        return Response({"key": group.key, "name": group.name, "runs": runs, "series": series})


class Charts(ApiView):
    """How a project arranges its charts."""

    scopes = {"PATCH": "admin"}
    takes = {
        "PATCH": {
            "version": "The version that the change is based on.",
            "pinned": "Keys of the pinned charts, in order.",
            "order": "Keys of charts, in the order inside of their sections.",
            "wide": "Keys of the charts that are twice as wide.",
            "queries": "Charts of queries: `measure|split|among|query`. The key of such a chart is `query:` and this.",
        }
    }

    def get(self, request: Request, slug: str) -> Response:
        """{pinned, order, wide, queries, version}. A chart's key is its English title or the name of its metric."""
        self.parse_query()
        return Response(load_arrangement(permissions.project_or_404(request, slug)).serialize())

    def patch(self, request: Request, slug: str) -> Response:
        """Replace some of the lists. Needs the role maintainer. 412 if another user changed them since `version`."""
        data = self.parse_body()
        project = permissions.project_or_404(request, slug, role="maintainer")
        version = data.integer("version")
        if version is None:
            raise InvalidInputError("`version` is missing.", "version")
        return Response(save_arrangement(project, data, version, self.user).serialize())
