"""What a reviewer of an open blind queue does not see in a finding: what others say about samples, and re-scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rollouts.charts import ChartQuery
from rollouts.errors import InvalidInputError
from rollouts.findings.charts import QUERY_PREFIX
from rollouts.metrics import RESCORE_METRICS
from rollouts.models import EvidenceItem, Queue
from rollouts.query import RESCORE_PREFIX, Query, parse_query

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User

    from rollouts.models import Project

KEPT_KEYS: Final = ("run", "runs", "split", "step")  # they say where the item is from


def reviews_blind_queue(user: User | AnonymousUser, project: Project) -> bool:
    """Returns whether an open blind queue of the project has items for the user."""
    if user.pk is None:
        return False
    queues = Queue.objects.blind_for(user.pk).queues
    return bool(queues) and Queue.objects.filter(pk__in=queues, project=project).exists()


def serialize_evidence(row: EvidenceItem, *, is_blind: bool) -> dict[str, Any]:
    """Returns the content of the item. If `is_blind`, rates, counts and curves of labels and re-scores are
    `{"hidden": true}` with their run and step, and samples have no flags."""
    snapshot = row.shown
    if not is_blind:
        return snapshot
    if depends_on_labels(row.kind, snapshot):
        return {key: snapshot[key] for key in KEPT_KEYS if key in snapshot} | {"hidden": True}
    if row.kind == EvidenceItem.Kind.QUERY:
        counts = {term: count for term, count in snapshot.get("counts", {}).items() if term != "is:flagged"}
        return snapshot | {"counts": counts}
    return snapshot | {"flags": []} if "flags" in snapshot else snapshot


def depends_on_labels(kind: str, snapshot: dict[str, Any]) -> bool:
    match kind:
        case EvidenceItem.Kind.RATES:
            return True
        case EvidenceItem.Kind.QUERY:
            return RESCORE_PREFIX in snapshot.get("ordering", "") or query_depends_on_labels(snapshot.get("q", ""))
        case EvidenceItem.Kind.CHART:
            if any(name.startswith(RESCORE_METRICS) for name in snapshot["names"]):
                return True
            names = [name.removeprefix(QUERY_PREFIX) for name in snapshot["names"] if name.startswith(QUERY_PREFIX)]
            return any(map(chart_depends_on_labels, names))
    return False


def chart_depends_on_labels(chart: str) -> bool:
    try:
        return any(may_depend_on_labels(query) for query in ChartQuery.parse(chart).parse_queries() if query)
    except InvalidInputError:  # of a version whose queries were different
        return True


def query_depends_on_labels(q: str) -> bool:
    try:
        return may_depend_on_labels(parse_query(q))
    except InvalidInputError:
        return True


def may_depend_on_labels(query: Query) -> bool:
    """Whether the result may depend on labels or re-scores."""
    return query.asks_labels or query.may_ask_rescores
