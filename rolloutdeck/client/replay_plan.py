"""Requests the replay plan of a run from the server, and words the line about a replayed step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rolloutdeck.lib import RunClient
from rolloutdeck.replay import DEFAULT_PLAN, PlanRevision, parse_plan


def request_plan(client: RunClient, name: str, facts: Mapping[str, Any], bind: bool) -> PlanRevision:
    """Returns the plan that the run follows. `name` may be `name@revision`; with "" it is the default plan.

    Raises ServerUnreachableError, or ValueError with the server's message if it refuses.
    """
    body = json.dumps({"plan": name or DEFAULT_PLAN, "facts": dict(facts), "bind": bind}, default=str).encode()
    headers = {"Content-Type": "application/json"}
    response = client.request("POST", "replay-plan/", body=body, headers=headers)
    if not response.is_success:
        raise ValueError(response.error_message)
    return parse_plan(response.json())


def describe_replayed_step(
    step: int, pin: int | None, rows: int | None, seconds: float | None, step_kind: str, source: str
) -> str:
    """Returns `Step 3 replays step 3 of first: 256 rows in 12 ms.`"""
    label = "Rollout" if step_kind == "rollout_id" else "Step"
    details = [f"{rows:,} rows"] if rows is not None else []
    if seconds is not None:
        details.append(f"in {seconds:.1f} s" if seconds >= 1 else f"in {seconds * 1000:.0f} ms")
    what = source or (f"pin {pin}" if pin is not None else "a pinned step")
    return f"{label} {step} replays {what}{': ' if details else ''}{' '.join(details)}."
