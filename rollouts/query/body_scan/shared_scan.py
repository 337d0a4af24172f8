"""A long scan that workers of other machines help with.

The files to scan are a list in Redis. The process that searches and its helpers take the next ones from it, newest step
first, so a helper that comes late or never costs nothing. A search that ends deletes the list, and its helpers stop.

Keys, for `<id>` of a scan: `rolloutdeck:scan:<id>` is JSON, `{"parts": [[path, pieces], ...], "node", "seconds"}`;
`...:todo` is a list of positions in `parts`; `...:found` is a list of JSON, `[position, ids, keys]`, or
`[position, null, null]` for a file that a helper could not scan.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

import redis
from django.conf import settings
from django.utils.module_loading import import_string

from rollouts.query.ast import And, LoggedKeyTerm, Not, Or, QueryNode, RegexTerm, TextTerm
from rollouts.query.body_scan.parts import BodyFilePart
from rollouts.query.body_scan.request import get_scan_request

if TYPE_CHECKING:
    from rollouts.query.body_scan.reader import PartMatches

log = logging.getLogger(__name__)

PREFIX: Final = "rolloutdeck:scan:"
ANSWER_SECONDS: Final = 2.0  # of Redis
SPARE_SECONDS: Final = 60  # that the keys exist longer than the search may take
NODES: Final = {cls.__name__: cls for cls in (And, Or, Not, TextTerm, RegexTerm, LoggedKeyTerm)}


def dump_node(node: QueryNode) -> dict[str, Any]:
    """Returns JSON of a node about bodies."""
    match node:
        case And(parts) | Or(parts):
            values: dict[str, Any] = {"parts": [dump_node(part) for part in parts]}
        case Not(part):
            values = {"part": dump_node(part)}
        case _:
            values = {name: getattr(node, name) for name in node.__slots__}
    return {"type": type(node).__name__, **values}


def load_node(values: Mapping[str, Any]) -> QueryNode:
    fields = dict(values)
    cls: Any = NODES[fields.pop("type")]
    if "parts" in fields:
        fields["parts"] = tuple(map(load_node, fields["parts"]))
    if "part" in fields:
        fields["part"] = load_node(fields["part"])
    if "span" in fields:
        fields["span"] = tuple(fields["span"])
    return cast(QueryNode, cls(**fields))


@dataclass(frozen=True)
class SharedScan:
    """Raises redis.RedisError."""

    id: str
    parts: Sequence[BodyFilePart]
    node: QueryNode
    seconds: float  # that the search may still take

    @cached_property
    def redis(self) -> Any:  # redis-py says of each answer that it may be awaited
        return redis.Redis.from_url(
            settings.REDIS_URL, socket_timeout=ANSWER_SECONDS, socket_connect_timeout=ANSWER_SECONDS
        )

    @property
    def key(self) -> str:
        return PREFIX + self.id

    def publish(self) -> None:
        parts = [[part.path, part.pieces] for part in self.parts]
        job = {"parts": parts, "node": dump_node(self.node), "seconds": self.seconds}
        with self.redis.pipeline() as commands:
            expires = int(self.seconds) + SPARE_SECONDS
            commands.set(self.key, json.dumps(job), ex=expires)
            commands.rpush(f"{self.key}:todo", *range(len(self.parts)))
            commands.expire(f"{self.key}:todo", expires)
            commands.execute()

    @classmethod
    def load(cls, pk: str) -> SharedScan | None:
        """Returns None if the search is over."""
        scan = cls(pk, (), And(()), 0.0)
        text = scan.redis.get(scan.key)
        if text is None:
            return None
        job = json.loads(text)
        parts = [BodyFilePart(path, tuple((first, count) for first, count in pieces)) for path, pieces in job["parts"]]
        return cls(pk, parts, load_node(job["node"]), job["seconds"])

    def take(self, count: int) -> list[int]:
        """Returns the positions of the next files for this process; none if all are taken or the search is over."""
        return [int(position) for position in self.redis.lpop(f"{self.key}:todo", count) or ()]

    def send(self, positions: Sequence[int], matches: Sequence[PartMatches | None]) -> None:
        """Sends the matches of files to the process that searches, if it still does; None if they could not be
        scanned."""
        if not self.redis.exists(self.key):
            return
        found = [
            json.dumps([position, *((each[0], sorted(each[1])) if each else (None, None))])
            for position, each in zip(positions, matches, strict=True)
        ]
        with self.redis.pipeline() as commands:
            commands.rpush(f"{self.key}:found", *found)
            commands.expire(f"{self.key}:found", int(self.seconds) + SPARE_SECONDS)
            commands.execute()

    def receive(self) -> dict[int, PartMatches | None]:
        """Returns what helpers have sent since the last call, by position."""
        texts = self.redis.lpop(f"{self.key}:found", len(self.parts)) or ()
        return {
            position: None if ids is None else (tuple(ids), frozenset(keys))
            for position, ids, keys in map(json.loads, texts)
        }

    def end(self) -> None:
        self.redis.delete(self.key, f"{self.key}:todo", f"{self.key}:found")


@contextmanager
def share_scan(parts: Sequence[BodyFilePart], node: QueryNode) -> Iterator[SharedScan | None]:
    """Asks the workers of other machines for help. The value is None if there are none, or if Redis does not answer."""
    scan = SharedScan(secrets.token_hex(8), parts, node, get_scan_request().remaining)
    try:
        ask = import_string(settings.SEARCH_HELP)
        scan.publish()
        has_helpers = ask(scan.id) > 0
    except redis.RedisError as error:
        log.warning("A search is not shared: %s", error)
        has_helpers = False
    try:
        yield scan if has_helpers else None
    finally:
        with suppress(redis.RedisError):  # the keys expire
            scan.end()
