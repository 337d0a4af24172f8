"""JSON bodies of requests, and how rows are split into them."""

from __future__ import annotations

import json

import pytest

from rolloutdeck.cli.common.requests import MAX_REQUEST_BYTES, split_rows
from rolloutdeck.lib import ServerClient


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies that are sent."""
    sent: list[bytes] = []
    monkeypatch.setattr(ServerClient, "request", lambda *args, body, **options: sent.append(body))
    return sent


@pytest.mark.parametrize(
    "text", ["数学" * 100, "é", "🙂", '\x00\n\\"', "\x7f\u2028", "\\\ud83d", "\ud83d\ude42 \udcff"]
)
def test_a_text_is_sent_in_utf_8_and_unpaired_surrogates_as_escapes(bodies: list[bytes], text: str) -> None:
    ServerClient("http://deck").send_json("POST", "runs/", {text: [text, float("nan")]})
    (body,) = bodies
    assert repr(json.loads(body.decode("utf-8"))) == repr(json.loads(json.dumps({text: [text, float("nan")]})))
    if text.isprintable():
        assert text.encode() in body


def test_rows_are_split_by_the_bytes_that_are_sent(bodies: list[bytes]) -> None:
    rows = [{"value": "数" * 600_000}] * 5 + [{"value": "\ud800" * 600_000}] * 2
    parts = list(split_rows(rows, 1000))
    for part in parts:
        ServerClient("http://deck").send_json("POST", "labels/", part)
    assert [len(part) for part in parts] == [2, 2, 1, 1, 1]
    assert max(map(len, bodies)) < MAX_REQUEST_BYTES + 100
