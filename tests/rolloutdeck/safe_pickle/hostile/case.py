"""The class of a hostile file, and helpers that build many of them."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import NamedTuple

from tests.rolloutdeck.safe_pickle.assembler import build_pickle, call, dict_, object_array, proto, text

COMMAND = "touch PWNED"
SYSTEM = call("os.system", text(COMMAND))


class Case(NamedTuple):
    """`reason`: a reason of the report, shortened by `shorten_reason`. `readable`: only one value is invalid, and the
    others must be readable."""

    build: Callable[[], bytes]
    reason: str
    readable: bool = False


def shorten_reason(reason: str) -> str:
    """The reason without positions, explanations and the module of its object."""
    reason = re.sub(r"( \([^)]*\)|, which (is not on the list|no (known )?file) [\w ]+)?\.$", "", reason)
    reason = reason.replace("in the archive inside it: ", "inside it: ")
    reason = re.sub(r"^(inside it: )?(?:\w+\.)*([\w ]+) at [\d,]+: ", r"\1\2: ", reason)
    return re.sub(r"\bat [\d,]+", "at N", reason)


def build_value_batch(*values: bytes) -> bytes:
    """A batch with a column of these values."""
    return proto(columns=dict_(extra=object_array(*values)))


def build_column_batch(column: bytes) -> bytes:
    return proto(columns=dict_(extra=column))


def build_legacy_stream(body: bytes) -> bytes:
    """torch's format before it wrote ZIPs: three pickles, then the object, then the keys of the storages."""
    head = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
    head += pickle.dumps({"protocol_version": 1001, "little_endian": True, "type_sizes": {}}, 2)
    return head + build_pickle(body, 2) + pickle.dumps([], 2)
