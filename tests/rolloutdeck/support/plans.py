"""A fake server with a replay plan: one pin of one file, replayed at one step."""

from __future__ import annotations

import hashlib
import json

from tests.rolloutdeck.support.fake_server import Handler, Receiver


class PlanServer(Receiver):
    """`content` is the bytes of the pinned file `name`, which is replayed at step `target`. `flagged` is the number of
    its samples that the plan excludes. The first `failures` requests for the plan get an error."""

    failures = 0

    def __init__(self, content: bytes, target: int, name: str = "0.pt", flagged: int = 0) -> None:
        self.content, self.target, self.name, self.flagged = content, target, name, flagged
        super().__init__()

    def handler(self) -> type[Handler]:
        return PlanHandler

    def plan(self) -> dict[str, object]:
        file = {"sha256": hashlib.sha256(self.content).hexdigest(), "bytes": len(self.content)}
        pinned = {"id": "a", "role": "rollout", "step": 0, "files": {self.name: file}}
        source = {"run": "old", "flagged": self.flagged}
        entry = {"target_step": self.target, "pin": 5, "source": source, "artifacts": [pinned]}
        values = {"plan": "default", "revision": 1, "action": "cache", "on_mismatch": "generate"}
        return {**values, "exclude_flagged": bool(self.flagged), "entries": [entry]}


class PlanHandler(Handler):
    receiver: PlanServer

    def do_GET(self) -> None:
        self.body()
        self.send_raw(200, self.receiver.content, is_ours=True)

    def do_POST(self) -> None:
        if not self.path.endswith("/replay-plan/"):
            return super().do_POST()
        self.receiver.posts.append((self.path, json.loads(self.body())))
        if self.receiver.failures:
            self.receiver.failures -= 1
            return self.send_raw(502, b"Bad Gateway", is_ours=False)
        self.answer(200, self.receiver.plan())
