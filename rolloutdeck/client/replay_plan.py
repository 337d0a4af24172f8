"""Asks the server which replay plan a run follows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rolloutdeck.lib.http import RunClient, Server
from rolloutdeck.protocol import wire
from rolloutdeck.replay.plan import DEFAULT, Plan, read_plan


def request_plan(
    header: wire.SpoolHeader,
    server: Server | None,
    name: str,
    facts: Mapping[str, Any],
    bind: bool,
    timeout: float,
) -> Plan:
    """Asks which plan the run follows; `name` may be `name@revision`. Empty without a server.

    Raises NotReachable, and ValueError with the server's sentence when it says no.
    """
    if server is None:
        return Plan()
    body = json.dumps({"plan": name or DEFAULT, "facts": dict(facts), "bind": bind}, default=str).encode()
    told = {"Content-Type": "application/json"}
    answer = RunClient(server, header, timeout).request("POST", "replay-plan/", body=body, headers=told)
    if not answer.ok:
        raise ValueError(answer.error)
    return read_plan(answer.json())
