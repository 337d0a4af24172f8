"""Requests the replay plan of a run from the server, and words the line about a replayed step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rolloutdeck.lib import RunClient, ServerUnreachableError
from rolloutdeck.replay import DEFAULT_PLAN, PlanRevision, parse_plan

RETRY_STATUSES = (429, *range(500, 600))


def request_plan(client: RunClient, name: str, facts: Mapping[str, Any], bind: bool) -> PlanRevision:
    """Returns the plan that the run follows. `name` may be `name@revision`; with "" it is the default plan.

    Raises ServerUnreachableError if a later request may succeed, or ValueError with the server's message if it refuses.
    """
    body = json.dumps({"plan": name or DEFAULT_PLAN, "facts": dict(facts), "bind": bind}, default=str).encode()
    headers = {"Content-Type": "application/json"}
    response = client.request("POST", "replay-plan/", body=body, headers=headers)
    if not response.is_from_server or response.status in RETRY_STATUSES:  # a proxy of a server that restarts
        raise ServerUnreachableError(response.error_message)
    if not response.is_success:
        raise ValueError(response.error_message)
    return parse_plan(response.json())


SELECTED_TEXTS = {"mask": ("sample", "masked"), "drop": ("prompt", "dropped")}


def describe_replayed_step(body: Mapping[str, Any], source: str) -> str:
    """Returns `Step 3 replays step 3 of first: 256 rows in 12 ms, 3 samples masked by version 2 of the rules.`"""
    step, pin, rows, seconds = (body[name] for name in ("step", "pin", "rows", "seconds"))
    label = "Rollout" if body["step_kind"] == "rollout_id" else "Step"
    details = [f"{rows:,} rows"] if rows is not None else []
    if seconds is not None:
        details.append(f"in {seconds:.1f} s" if seconds >= 1 else f"in {seconds * 1000:.0f} ms")
    selection = describe_selection(body)
    what = source or (f"pin {pin}" if pin is not None else "a pinned step")
    return f"{label} {step} replays {what}{': ' if details else ''}{' '.join(details)}{selection}."


def describe_selection(body: Mapping[str, Any]) -> str:
    """Returns what was done with selected samples, or that none were; "" for a plan that keeps all."""
    words = SELECTED_TEXTS.get(str(body.get("selected_action") or ""))
    if words is None:
        return ""
    count, version = int(body.get("selected") or 0), body.get("guidance_version")
    by = " as flagged bad" if version is None else f" by version {version} of the guidance rules"
    return f", {count:,} {words[0]}{'' if count == 1 else 's'} {words[1]}{by}"
