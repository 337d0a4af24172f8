"""Requests the replay plan of a run from the server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rolloutdeck.lib import RunClient, ServerClient
from rolloutdeck.protocol import SpoolHeader
from rolloutdeck.replay import DEFAULT_PLAN, PlanRevision, parse_plan


def request_plan(
    header: SpoolHeader,
    server: ServerClient | None,
    name: str,
    facts: Mapping[str, Any],
    bind: bool,
    timeout: float,
) -> PlanRevision:
    """Returns the plan that the run follows; an empty one without a server. `name` may be `name@revision`.

    Raises ServerUnreachableError, or ValueError with the server's message if it refuses.
    """
    if server is None:
        return PlanRevision()
    body = json.dumps({"plan": name or DEFAULT_PLAN, "facts": dict(facts), "bind": bind}, default=str).encode()
    headers = {"Content-Type": "application/json"}
    response = RunClient(server, header, timeout).request("POST", "replay-plan/", body=body, headers=headers)
    if not response.is_success:
        raise ValueError(response.error_message)
    return parse_plan(response.json())
