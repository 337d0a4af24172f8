"""ROLL's batches with one part that they never have; `torch.load` reads what is in their buffer."""

from __future__ import annotations

from tests.rolloutdeck.safe_pickle.assembler import (
    EMPTY_DICT,
    NONE,
    buffer,
    data,
    mapped,
    named,
    new,
    number,
    pickled,
    rollout,
    row,
    saved,
    set_state,
    text,
)
from tests.rolloutdeck.safe_pickle.hostile.case import SYSTEM, Case, legacy

ROLL = "roll.distributed.scheduler.protocol.DataProto"
NOTHING = set_state(new("_io.BytesIO"), row(data(b""), number(0), NONE))


def stated(*parts: bytes) -> bytes:
    return pickled(set_state(new(ROLL), row(*parts)))


BUFFERS = {
    "a legacy stream in a buffer": Case(lambda: rollout(buffer(data(legacy(SYSTEM)))), "it is not a ZIP"),
    "code in the archive of a buffer": Case(
        lambda: rollout(buffer(data(saved(SYSTEM)))), "inside it: it names 'os.system'"
    ),
    "code in ROLL's meta info": Case(lambda: rollout(meta=mapped(a=SYSTEM)), "it names 'os.system'", True),
    "a buffer that is read from behind its end": Case(
        lambda: rollout(buffer(position=number(1 << 40))), "buffer: an invalid buffer, or one with attributes"
    ),
    "a buffer with attributes": Case(
        lambda: rollout(buffer(attributes=EMPTY_DICT)), "buffer: an invalid buffer, or one with attributes"
    ),
    "a buffer of text": Case(lambda: rollout(buffer(text("x"))), "buffer: an invalid buffer, or one with attributes"),
    "a buffer made of bytes": Case(
        lambda: rollout(named("_io.BytesIO") + row(data(b"x")) + b"\x81"), "BytesIO: an object created with arguments"
    ),
    "a buffer that is called": Case(
        lambda: rollout(named("_io.BytesIO") + row() + b"R"),
        "BytesIO: it is called with arguments that no known file uses",
    ),
    "a buffer that is filled twice": Case(
        lambda: rollout(set_state(buffer(), row(data(b""), number(0), NONE))),
        "buffer: an invalid buffer, or one that is filled twice",
    ),
    "a batch of ROLL without a buffer": Case(lambda: rollout(NONE), "rollout: a batch that is not in the file"),
    "a batch of ROLL whose buffer was never filled": Case(
        lambda: rollout(new("_io.BytesIO")), "rollout: a batch that is not in the file"
    ),
    "a batch of ROLL with another elsewhere": Case(
        lambda: rollout(elsewhere=EMPTY_DICT), "rollout: a batch that is not in the file"
    ),
    "a batch of ROLL in verl's three parts": Case(
        lambda: stated(buffer(), EMPTY_DICT, EMPTY_DICT), "rollout: an invalid batch, or one that is filled twice"
    ),
    "a buffer among ROLL's columns": Case(
        lambda: stated(buffer(), mapped(a=buffer()), NONE, EMPTY_DICT), "rollout: the column 'a' is not an array"
    ),
    "a buffer in ROLL's meta info": Case(
        lambda: rollout(meta=mapped(a=NOTHING)), "rollout: meta info that is not a dict of plain values"
    ),
    "a buffer in the place of a batch": Case(lambda: pickled(buffer()), "it does not contain a batch of verl or ROLL"),
}
