"""What a hostile file is, and the parts that many of them share."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import NamedTuple

from tests.rolloutdeck.safe_pickle.assembler import call, mapped, objects, pickled, proto, text

COMMAND = "touch PWNED"
SYSTEM = call("os.system", text(COMMAND))


class Case(NamedTuple):
    """`reason`: a reason of the report, by `shorten_reason`. `readable`: only one value in it is bad, the rest must be
    readable."""

    build: Callable[[], bytes]
    reason: str
    readable: bool = False


def shorten_reason(reason: str) -> str:
    """The reason without positions, explanations, and the module of the object that it is about."""
    reason = re.sub(r"( \([^)]*\)|, which (is not on the list|no (known )?file) [\w ]+)?\.$", "", reason)
    reason = reason.replace("in the archive inside it: ", "inside it: ")
    reason = re.sub(r"^(inside it: )?(?:\w+\.)*([\w ]+) at [\d,]+: ", r"\1\2: ", reason)
    return re.sub(r"\bat [\d,]+", "at N", reason)


def columns(*values: bytes) -> bytes:
    """A batch with a column of these values."""
    return proto(columns=mapped(extra=objects(*values)))


def build_file(column: bytes) -> bytes:
    return proto(columns=mapped(extra=column))


def legacy(body: bytes) -> bytes:
    """torch's stream before it wrote ZIPs: three pickles, then the object's, then the storages' keys."""
    head = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
    head += pickle.dumps({"protocol_version": 1001, "little_endian": True, "type_sizes": {}}, 2)
    return head + pickled(body, 2) + pickle.dumps([], 2)
