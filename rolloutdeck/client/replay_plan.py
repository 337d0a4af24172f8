"""Asks the server which replay plan a run follows."""

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
    """Asks which plan the run follows; `name` may be `name@revision`. Empty without a server.

    Raises ServerUnreachableError, and ValueError with the server's sentence when it says no.
    """
    if server is None:
        return PlanRevision()
    body = json.dumps({"plan": name or DEFAULT_PLAN, "facts": dict(facts), "bind": bind}, default=str).encode()
    told = {"Content-Type": "application/json"}
    answer = RunClient(server, header, timeout).request("POST", "replay-plan/", body=body, headers=told)
    if not answer.is_success:
        raise ValueError(answer.error_message)
    return parse_plan(answer.json())
