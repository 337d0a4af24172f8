"""Files that are truncated, break the stack, or exceed a limit."""

from __future__ import annotations

import struct

from tests.rolloutdeck.safe_pickle.assembler import NONE, build_pickle, list_, proto, text
from tests.rolloutdeck.safe_pickle.hostile.case import Case, build_value_batch


def build_billion_laughs() -> bytes:
    """Nested lists, each of which contains the one before ten times."""
    body = list_(*[text("lol")] * 10) + b"r" + struct.pack("<I", 0)
    for level in range(12):
        body += b"](" + (b"j" + struct.pack("<I", level)) * 10 + b"e" + b"r" + struct.pack("<I", level + 1)
    return build_pickle(b"(" + body + b"l")


LIMITS = {
    "an empty file": Case(lambda: b"", "it ends after 0 bytes without STOP: it is empty or was cut short"),
    "no STOP": Case(lambda: proto()[:-1], "it ends after 1,680 bytes without STOP: it is empty or was cut short"),
    "no pickle at all": Case(lambda: b"\xff" * 100, "byte 0xff at N is no pickle opcode"),
    "a protocol to come": Case(lambda: build_pickle(NONE, 77), "protocol 77 at N"),
    "a protocol in the middle": Case(lambda: build_pickle(b"\x80\x04" + NONE), "protocol 4 at N"),
    "a memo index of two thousand million": Case(
        lambda: build_pickle(NONE + b"r\xff\xff\xff\x7f"), "memo index 2,147,483,647 at N after 0 entries"
    ),
    "a memo entry that was never stored": Case(lambda: build_pickle(b"h\x07"), "memo index 7 at N was never stored"),
    "a memo entry that is replaced": Case(
        lambda: build_value_batch(text("x") + b"\x94" + text("y") + b"q\x00" + b"0"),
        "it stores memo entry 0 twice",
        True,
    ),
    "more taken than put": Case(lambda: build_pickle(b"R"), "it takes more values from the stack than it put there"),
    "taken from below a mark": Case(
        lambda: build_pickle(NONE + NONE + b"(R"), "it takes more values from the stack than it put there"
    ),
    "nothing to memoize": Case(lambda: build_pickle(b"\x94"), "it takes more values from the stack than it put there"),
    "an invalid number": Case(lambda: b"Ione\n.", "an invalid number"),
    "a fraction that is none": Case(lambda: b"Fone\n.", "an invalid number"),
    "a mark that is missing": Case(lambda: build_pickle(b"t"), "TUPLE at N without a mark"),
    "values left over": Case(lambda: build_pickle(NONE + NONE), "values are left over at its end"),
    "a key without a value": Case(lambda: build_pickle(b"}(" + text("a") + b"u"), "a key without a value at N"),
    "a billion laughs": Case(
        build_billion_laughs, "it is nested more than 200 deep, or unfolds to more than 4,294,967,296 values"
    ),
    "tuples a hundred thousand deep": Case(
        lambda: build_pickle(b")" + b"\x85" * 100_000),
        "it is nested more than 200 deep, or unfolds to more than 4,294,967,296 values",
    ),
    "a hundred thousand marks": Case(lambda: build_pickle(b"(" * 100_000), "more than 10,000 nested marks"),
    "an integer of 500 MB": Case(
        lambda: build_pickle(b"\x8b" + struct.pack("<I", 500 << 20)), "an integer of 524,288,000 bytes"
    ),
    "a number with a million digits": Case(lambda: b"I" + b"9" * 1_000_000 + b"\n.", "a line of more than 1,024 bytes"),
    "a string of a terabyte": Case(
        lambda: build_pickle(b"\x8d" + struct.pack("<Q", 1 << 40)),
        "a string of 1,099,511,627,776 bytes; at most 67,108,864 are read",
    ),
    "bytes beyond the end": Case(
        lambda: build_pickle(b"\x8e" + struct.pack("<Q", 1 << 40)),
        "an argument of 1,099,511,627,776 bytes at N reaches beyond the end",
    ),
    "a length of 2**64 - 1": Case(
        lambda: build_pickle(b"\x96" + b"\xff" * 8),
        "an argument of 18,446,744,073,709,551,615 bytes at N reaches beyond the end",
    ),
    "a string that is no UTF-8": Case(lambda: build_pickle(b"X\x01\x00\x00\x00\xff"), "a string is not utf-8"),
    "a frame beyond the end": Case(
        lambda: build_pickle(b"\x95" + struct.pack("<Q", 1 << 40) + NONE),
        "a frame of 1,099,511,627,776 bytes at N reaches beyond the end",
    ),
    "a frame that ends inside an opcode": Case(
        lambda: build_pickle(b"\x95" + struct.pack("<Q", 3) + text("abc")),
        "the frame that ends at N ends inside an opcode",
    ),
    "a frame inside a frame": Case(
        lambda: build_pickle(b"\x95" + struct.pack("<Q", 10) + b"\x95" + struct.pack("<Q", 1) + NONE),
        "a frame at N inside another",
    ),
    "a name without its end": Case(lambda: b"\x80\x02cos", "it ends inside a line"),
}
