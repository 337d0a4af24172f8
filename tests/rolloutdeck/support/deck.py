"""A fake server that answers the requests of `import` and `watch`, and lists the dumps as a page shows them."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.rolloutdeck.support.fake_server import Handler, Receiver


class Deck(Receiver):
    """`may_read`: whether the token has the scope read. `failed`: the message of each source that could not be indexed.
    `new_projects`: projects that do not exist until their first token is created."""

    def __init__(self) -> None:
        self.may_read = True
        self.created = False
        self.server_id = "deck"
        self.failed: dict[str, str] = {}
        self.new_projects: set[str] = set()
        self.answers: dict[str, Any] = {}
        super().__init__()

    def handler(self) -> type[Handler]:
        return DeckHandler

    def attempts(self) -> list[str]:
        return list(dict.fromkeys(query["attempt"] for _, query, _ in self.dumps))

    def steps(self, split: str = "train") -> list[tuple[str, int]]:
        """(attempt, step) of each whole file that arrived, in order of arrival."""
        values = [query for _, query, _ in self.dumps if "step" in query and query["split"] == split]
        return [(query["attempt"], int(query["step"])) for query in values]

    def latest_files(self) -> dict[tuple[str, str, str], bytes]:
        """The last version of each whole file, by attempt, split and source."""
        return {
            (query["attempt"], query["split"], query["source"]): body
            for _, query, body in self.dumps
            if "step" in query
        }

    def visible_steps(self, split: str) -> dict[int, bytes]:
        """The steps that are not superseded: an attempt supersedes those of earlier ones from its first step on."""
        steps: dict[int, bytes] = {}
        for attempt in self.attempts():
            own_steps = {
                int(query["step"]): body
                for _, query, body in self.dumps
                if query["attempt"] == attempt and query["split"] == split and "step" in query
            }
            steps = {step: body for step, body in steps.items() if step < min(own_steps, default=step + 1)} | own_steps
        return steps

    def metrics(self) -> list[tuple[str, int, int, bytes]]:
        """(attempt, generation, offset, bytes) of each chunk."""
        return [
            (query["attempt"], int(query.get("generation", 0)), int(query["offset"]), body)
            for _, query, body in self.dumps
            if "offset" in query
        ]


class DeckHandler(Handler):
    receiver: Deck

    def do_HEAD(self) -> None:
        self.body()
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        sha256 = parts.path.split("/")[-2]
        known = any(
            query == result and hashlib.sha256(body).hexdigest() == sha256 for _, result, body in self.receiver.dumps
        )
        self.send_raw(200 if known else 404, b"", is_ours=True)

    def do_GET(self) -> None:
        self.body()
        if self.answer_with_failure(b""):
            return
        path = urlsplit(self.path).path.partition("/api/v1/")[2]
        if path in self.receiver.answers:
            return self.answer(200, self.receiver.answers[path])
        if not self.receiver.may_read:
            return self.send_raw(403, b'{"error":{"code":"x","message":"This token may not read."}}', is_ours=True)
        if path.endswith("/dumps/"):
            return self.answer(200, {"results": self.list_dumps(), "next": None, "count": 0})
        if path.count("/") == 2 and path.startswith("runs/"):
            keys = [{"key": key, "number": number} for number, key in enumerate(self.receiver.attempts(), 1)]
            return self.answer(200, {"attempts": keys, "dumps": {"indexed": len(self.receiver.dumps)}})
        self.send_raw(404, b'{"error":{"code":"x","message":"There is no such thing."}}', is_ours=True)

    def list_dumps(self) -> list[dict[str, Any]]:
        return [
            {
                "id": number,
                "attempt": query["attempt"],
                "source": query["source"],
                "sha256": hashlib.sha256(body).hexdigest(),
                "bytes": len(body),
                "step": query.get("step"),
                "format": query.get("format", ""),
                "state": "failed" if query["source"] in self.receiver.failed else "indexed",
                "message": self.receiver.failed.get(query["source"], ""),
                "rows": body.count(b"\n") if "step" in query else 0,
                "left_out": {},
                "problems": [],
            }
            for number, (_, query, body) in enumerate(self.receiver.dumps, 1)
        ]

    def do_POST(self) -> None:
        body = self.body()
        if self.answer_with_failure(body):
            return
        result = json.loads(body)
        self.receiver.posts.append((self.path, result))
        if self.path.endswith("/tokens/"):
            created = result["project"] in self.receiver.new_projects
            expiry = "2026-12-06T10:00:00Z" if result.get("days") else None
            token = {"name": result["name"], "token": "rd_secret", "expires_at": expiry}
            return self.answer(201, {**token, "project_created": created})
        uid = result.get("uid") or "x"
        answer = {"id": uid, "name": result.get("name", "x"), "url": "", "server": self.receiver.server_id}
        self.answer(201 if self.receiver.created else 200, answer)
