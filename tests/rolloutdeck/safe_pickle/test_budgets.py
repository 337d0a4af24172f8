"""A small file can make the verifier and the reader walk or copy the same large value again and again: by the memo, for
a few bytes each time. Each file here would take minutes or gigabytes, and is refused at once."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import pytest

from rolloutdeck.safe_pickle import SafetyReport
from rolloutdeck.safe_pickle.safety_report import check_source_safety
from rolloutdeck.safe_pickle.stream import ByteSource
from tests.rolloutdeck.safe_pickle import assembler as made

pytestmark = pytest.mark.timeout(60)
AGAIN = "it passes the same large values to calls again and again."
MANY = 200_000


def check_bytes(data: bytes) -> SafetyReport:
    return check_source_safety(ByteSource.from_bytes(data))


def get(index: int) -> bytes:
    """The memo entry with this number."""
    return b"j" + struct.pack("<I", index)


def build_doubled_tuple(levels: int) -> bytes:
    """A tuple of the tuple before it, twice; the first one has one value. Fills the memo from 0."""
    body = made.NONE + b"\x85\x94"
    for level in range(levels):
        body += b"0" + get(level) * 2 + b"\x86\x94"
    return body


# The verifier


@pytest.mark.parametrize(
    "use",
    [
        lambda key: b"0}" + key + made.NONE + b"s",
        lambda key: b"0\x8f(" + key + b"\x90",
        lambda key: b"0(" + key + b"\x91",
        lambda key: b"0" + made.call("builtins.set", made.listed(key)),
    ],
    ids=["a dict", "a set", "a frozenset", "a call of set"],
)
def test_a_key_that_unfolds_to_a_thousand_million_values_is_refused(use: Callable[[bytes], bytes]) -> None:
    report = check_bytes(made.pickled(build_doubled_tuple(30) + use(get(30))))
    assert any("a key that is not a plain value" in reason or "not plain" in reason for reason in report.reasons)


def test_a_tuple_of_plain_values_is_a_key() -> None:
    key = made.row(made.text("x" * 5000), made.number(1), made.row(), made.row(*[made.NONE] * 500))
    column = made.objects(b"}" + key + made.NONE + b"s", made.call("builtins.set", made.listed(key)))
    assert check_bytes(made.proto(columns=made.mapped(a=column))).reasons == ()
