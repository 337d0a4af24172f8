"""The result of a replay plan at each step of a run."""

from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView
from dashboard.api.serializers import serialize_replay
from dashboard.api.serializers_replay import serialize_replay_timeline
from rolloutdeck.protocol import REPLAY_OUTCOMES, STEP_KINDS
from rollouts.errors import InvalidInputError
from rollouts.replay import load_replay_timeline, record_replay_outcome


class Replays(ApiView):
    """Replay events of a run."""

    scopes = {"POST": "ingest"}
    statuses = {"POST": ("201",)}
    paged = True
    takes = {
        "GET": {
            "step": "A number.",
            "outcome": f"{', '.join(REPLAY_OUTCOMES)}.",
            "strip": "true: one cell per step and totals, instead of events.",
        },
        "POST": {
            "attempt": "Key of the attempt.",
            "step": "A number.",
            "step_kind": "What the step counts, global_step by default.",
            "outcome": "hit (replayed), miss (generated) or refused (generated, see reason).",
            "pin": "Its id. Default: the pin of the plan at this step.",
            "rows": "Number of loaded rows.",
            "seconds": "Time to load them.",
            "reason": "Why it was refused or generated.",
            "selected_action": "What was done with the samples that the plan selects: mask, drop or regenerate.",
            "selected": "Number of samples masked, or of prompts dropped or generated again.",
            "guidance_version": "Version of the guidance rules that selected them.",
            "wire": "Protocol version of the client.",
        },
    }

    def get(self, request: Request, uid: str) -> Response:
        """Events in step order; `strip=true` for one cell per step with totals."""
        query = self.parse_query()
        run = permissions.run_or_404(request, uid)
        if query.boolean("strip"):
            return Response(serialize_replay_timeline(load_replay_timeline(run)))
        rows = run.replays.select_related("attempt", "pin__run").order_by("step", "attempt__number", "pk")
        return self.paginate(rows.filter(**query.filters(outcome=REPLAY_OUTCOMES)), serialize_replay)

    def post(self, request: Request, uid: str) -> Response:
        """Report the result of a step. A second report for the same step replaces the first."""
        data = self.parse_body()
        step = data.integer("step")
        if step is None:
            raise InvalidInputError("`step` is missing: the step of the result.", "step")
        event, created = record_replay_outcome(
            permissions.find_or_open_run(request, uid, request.headers),
            data.text("attempt", 120),
            step,
            data.get("outcome", ""),
            step_kind=data.choice("step_kind", STEP_KINDS, default="global_step"),
            pin=data.integer("pin"),
            rows=data.get("rows"),
            seconds=data.get("seconds"),
            reason=data.get("reason"),
            selected_action=data.get("selected_action"),
            selected=data.get("selected"),
            guidance_version=data.get("guidance_version"),
        )
        return Response(serialize_replay(event), status=201 if created else 200)
