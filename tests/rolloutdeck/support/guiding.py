"""A fake server with guidance rules."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

from rolloutdeck.protocol import get_prompt_key, get_response_key
from tests.rolloutdeck.support.fake_server import Handler, Receiver


def build_rules(
    *rules: dict[str, Any], baseline: str = "trainer", prompts: Any = (), responses: Any = ()
) -> dict[str, Any]:
    """`prompts` are (text, rules), `responses` (prompt, response, rules); rules by their positions."""
    defaults = {"action": "mask", "target": "prompt", "value": 1.0}
    return {
        "version": 3,
        "baseline": baseline,
        "rules": [{**defaults, **rule} for rule in rules],
        "prompts": {get_prompt_key(text): own for text, own in prompts},
        "responses": {f"{get_prompt_key(text)}/{get_response_key(response)}": own for text, response, own in responses},
    }


class GuidanceServer(Receiver):
    """`rules` is the selection that the server sends, after `delay` seconds. Without `has_project` the status is 404.
    Without `is_ours` a proxy answers."""

    def __init__(self, rules: dict[str, Any]) -> None:
        self.rules, self.delay, self.has_project, self.is_ours = rules, 0.0, True, True
        self.statuses: list[int] = []
        super().__init__()

    def handler(self) -> type[Handler]:
        return GuidanceHandler


class GuidanceHandler(Handler):
    receiver: GuidanceServer

    def do_GET(self) -> None:
        assert self.path.endswith("/guidance/selection/"), self.path
        time.sleep(self.receiver.delay)
        body = json.dumps(self.receiver.rules).encode()
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        status = 304 if self.headers["If-None-Match"] == etag else 200 if self.receiver.has_project else 404
        self.receiver.statuses.append(status)
        self.send_response(status)
        if self.receiver.is_ours:
            self.send_header("X-Rolloutdeck", self.receiver.version)
        self.send_header("ETag", etag)
        if status == 200:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status == 200:
            self.wfile.write(body)
