"""Dumps of a run: which have arrived, and indexing them again. PUT is in `dashboard/uploads/app.py`."""

from dataclasses import asdict

from django.http import Http404
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView
from dashboard.api.serializers import serialize_dump
from rolloutdeck.protocol import SHA256_PATTERN, SPLITS
from rollouts.errors import InvalidInputError
from rollouts.ingest import summarize_ingest
from rollouts.models import Dump
from rollouts.runs import reindex_runs


class Dumps(ApiView):
    """Dumps that have arrived."""

    paged = True
    takes = {
        "GET": {
            "state": "received, indexing, indexed, failed, unsafe or superseded.",
            "split": "train or eval.",
            "step": "A number.",
        }
    }

    def get(self, request: Request, uid: str) -> Response:
        """The run's dumps, newest first, filtered by `state`, `split` and `step`."""
        query = self.parse_query()
        rows = permissions.run_or_404(request, uid).dumps.select_related("attempt").order_by("-pk")
        return self.paginate(rows.filter(**query.filters(state=Dump.State.values, split=SPLITS)), serialize_dump)


class OneDump(ApiView):
    """Dumps with this sha256."""

    def get(self, request: Request, uid: str, sha256: str) -> Response:
        """The run's dumps with these bytes, one for each identity that they have arrived with."""
        if not SHA256_PATTERN.match(sha256):
            raise InvalidInputError("The URL must end in a sha256: 64 lower-case hex digits.", "sha256")
        rows = permissions.run_or_404(request, uid).dumps.filter(sha256=sha256).select_related("attempt").order_by("pk")
        if not rows:
            raise Http404("This run has no dump with these bytes.")
        return Response({"results": [serialize_dump(row) for row in rows]})


class Ingest(ApiView):
    """What became of the run's dumps."""

    scopes = {"GET": "ingest"}
    takes = {"GET": {"source": "Only dumps whose source starts with this.", "attempt": "Only dumps of this attempt."}}

    def get(self, request: Request, uid: str) -> Response:
        """How many rows were indexed and `rejected`, and why; how many dumps wait, and which failed or are `partial`,
        with rejected rows. Clients ask at the end of a run."""
        query = self.parse_query()
        run = permissions.run_or_404(request, uid)
        return Response(asdict(summarize_ingest(run, query.text("source", 500), query.text("attempt", 120))))


class Index(ApiView):
    """Indexing again."""

    scopes = {"POST": "ingest"}
    takes = {"POST": {}}

    def post(self, request: Request, uid: str) -> Response:
        """Index the run's dumps again from the stored bytes. Ids, flags and links stay the same. `dumps` is the number
        of dumps that will be indexed."""
        self.parse_body()
        run = permissions.run_or_404(request, uid, role="maintainer")
        return Response({"dumps": reindex_runs([run], self.user)})
