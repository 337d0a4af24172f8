"""Damages the bytes of a real dump in the ways of broken writers and of attackers. The seed decides everything."""

from __future__ import annotations

import io
import json
import random
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

DEEP = 100_000
STRANGE_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**31, -(2**63), 2**64, 10**400, 1e308, float("nan"), float("inf"), "", "\0", "\ud800", "\u202e",
    "1e999", "NaN", "x" * 100_000, [], {}, [[]], [None] * 1000, {"": None}, {"a": {"b": {"c": []}}}, [{}] * 100,
)  # fmt: skip
STRANGE_BYTES = (
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\n", b"\r", b'"', b"[" * DEEP, b'{"a":' * DEEP, b"1" * 5000, b"-1e99999",
    b"\xff" * 8, (2**63 - 1).to_bytes(8, "little"), (2**31 - 1).to_bytes(4, "little"), b"\x80\x04\x95", b"PK\x03\x04",
)  # fmt: skip


def mutate(body: bytes, chance: random.Random) -> bytes:
    """Returns the body with one to four damages."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        body = chance.choice(_list_damages(body))(body, chance)
    return body


def _list_damages(body: bytes) -> list[Damage]:
    if body.startswith(b"PK\x03\x04"):
        return [*BYTE_DAMAGES, damage_zip_member, damage_zip_member, damage_zip_member]
    start = body.lstrip()[:1]
    return [*BYTE_DAMAGES, *[damage_json] * 8] if start in (b"{", b"[") else BYTE_DAMAGES


def flip_bytes(body: bytes, chance: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(min(len(body), chance.choice((1, 2, 8, 64)))):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def cut_end(body: bytes, chance: random.Random) -> bytes:
    return body[: chance.randrange(len(body) + 1)]


def remove_part(body: bytes, chance: random.Random) -> bytes:
    start, size = _choose_part(body, chance)
    return body[:start] + body[start + size :]


def duplicate_part(body: bytes, chance: random.Random) -> bytes:
    start, size = _choose_part(body, chance)
    return body[:start] + body[start : start + size] * chance.choice((2, 2, 50)) + body[start + size :]


def move_part(body: bytes, chance: random.Random) -> bytes:
    start, size = _choose_part(body, chance)
    position = chance.randrange(len(body) + 1)
    return body[:position] + body[start : start + size] + body[position:]


def insert_strange_bytes(body: bytes, chance: random.Random) -> bytes:
    position, strange = chance.randrange(len(body) + 1), chance.choice(STRANGE_BYTES)
    return body[:position] + strange + body[position + chance.choice((0, len(strange))) :]


def damage_json(body: bytes, chance: random.Random) -> bytes:
    """Replaces, wraps, renames or removes a value at a random place of a random line, or of the document."""
    lines = body.split(b"\n")
    position = chance.randrange(len(lines))
    with suppress(ValueError, RecursionError):
        lines[position] = _damage_document(lines[position], chance)
        return b"\n".join(lines)
    with suppress(ValueError, RecursionError):
        return _damage_document(body, chance)
    return insert_strange_bytes(body, chance)


def damage_zip_member(body: bytes, chance: random.Random) -> bytes:
    """Damages one member and builds the ZIP again, so that its checksums are right."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            members = [(info, archive.read(info)) for info in archive.infolist()]
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, OSError, EOFError, ValueError):
        return flip_bytes(body, chance)
    if not members:
        return body
    position = chance.randrange(len(members))
    members[position] = (members[position][0], mutate(members[position][1], chance))
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for info, content in members:
            archive.writestr(info.filename, content, info.compress_type)
    return sink.getvalue()


Damage = Callable[[bytes, random.Random], bytes]
BYTE_DAMAGES: list[Damage] = [flip_bytes, cut_end, remove_part, duplicate_part, move_part, insert_strange_bytes]


def _choose_part(body: bytes, chance: random.Random) -> tuple[int, int]:
    return chance.randrange(len(body) + 1), chance.choice((1, 4, 100, len(body) // 4 + 1))


def _damage_document(text: bytes, chance: random.Random) -> bytes:
    document = json.loads(text)
    places = list(_list_places(document))
    if not places:
        return json.dumps(chance.choice(STRANGE_VALUES)).encode()
    parent, key = chance.choice(places)
    value = parent[key]
    match chance.randrange(6):
        case 0:
            del parent[key]
        case 1:
            parent[key] = [value]
        case 2:
            parent[key] = {"value": value}
        case 3:  # the value of another place
            other, other_key = chance.choice(places)
            parent[key] = other[other_key] if other is not parent else [value, value]
        case 4:
            deep = (b"[", b"]") if chance.random() < 0.5 else (b'{"a":', b"}")
            depth = chance.choice((100, 2000, DEEP))
            parent[key] = "\ue000"
            nested = deep[0] * depth + b"1" + deep[1] * depth
            return json.dumps(document).encode().replace(b'"\\ue000"', nested)
        case _:
            parent[key] = chance.choice(STRANGE_VALUES)
    return json.dumps(document).encode()


def _list_places(value: Any) -> list[tuple[Any, Any]]:
    places: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        parent = waiting.pop()
        items = parent.items() if isinstance(parent, dict) else enumerate(parent) if isinstance(parent, list) else ()
        for key, child in items:
            places.append((parent, key))
            waiting.append(child)
    return places
