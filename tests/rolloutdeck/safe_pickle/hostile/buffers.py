"""ROLL's batches with one part that ROLL never writes; `torch.load` reads the content of their buffer."""

from __future__ import annotations

from tests.rolloutdeck.safe_pickle.assembler import (
    EMPTY_DICT,
    NONE,
    buffer,
    build_pickle,
    bytes_,
    dict_,
    global_name,
    new_object,
    number,
    roll_batch,
    set_state,
    text,
    torch_file,
    tuple_,
)
from tests.rolloutdeck.safe_pickle.hostile.case import SYSTEM, Case, build_legacy_stream

ROLL = "roll.distributed.scheduler.protocol.DataProto"
EMPTY_BUFFER = set_state(new_object("_io.BytesIO"), tuple_(bytes_(b""), number(0), NONE))


def build_roll_state(*parts: bytes) -> bytes:
    return build_pickle(set_state(new_object(ROLL), tuple_(*parts)))


BUFFERS = {
    "a legacy stream in a buffer": Case(
        lambda: roll_batch(buffer(bytes_(build_legacy_stream(SYSTEM)))), "it is not a ZIP"
    ),
    "code in the archive of a buffer": Case(
        lambda: roll_batch(buffer(bytes_(torch_file(SYSTEM)))), "inside it: it names 'os.system'"
    ),
    "code in ROLL's meta info": Case(lambda: roll_batch(meta=dict_(a=SYSTEM)), "it names 'os.system'", True),
    "a buffer that is read from beyond its end": Case(
        lambda: roll_batch(buffer(position=number(1 << 40))), "buffer: an invalid buffer, or one with attributes"
    ),
    "a buffer with attributes": Case(
        lambda: roll_batch(buffer(attributes=EMPTY_DICT)), "buffer: an invalid buffer, or one with attributes"
    ),
    "a buffer of text": Case(
        lambda: roll_batch(buffer(text("x"))), "buffer: an invalid buffer, or one with attributes"
    ),
    "a buffer made of bytes": Case(
        lambda: roll_batch(global_name("_io.BytesIO") + tuple_(bytes_(b"x")) + b"\x81"),
        "BytesIO: an object created with arguments",
    ),
    "a buffer that is called": Case(
        lambda: roll_batch(global_name("_io.BytesIO") + tuple_() + b"R"),
        "BytesIO: it is called with arguments that no known file uses",
    ),
    "a buffer that is filled twice": Case(
        lambda: roll_batch(set_state(buffer(), tuple_(bytes_(b""), number(0), NONE))),
        "buffer: an invalid buffer, or one that is filled twice",
    ),
    "a batch of ROLL without a buffer": Case(lambda: roll_batch(NONE), "rollout: a batch that is not in the file"),
    "a batch of ROLL whose buffer was never filled": Case(
        lambda: roll_batch(new_object("_io.BytesIO")), "rollout: a batch that is not in the file"
    ),
    "a batch of ROLL with a remote batch": Case(
        lambda: roll_batch(remote_batch=EMPTY_DICT), "rollout: a batch that is not in the file"
    ),
    "a batch of ROLL in verl's three parts": Case(
        lambda: build_roll_state(buffer(), EMPTY_DICT, EMPTY_DICT),
        "rollout: an invalid batch, or one that is filled twice",
    ),
    "a buffer among ROLL's columns": Case(
        lambda: build_roll_state(buffer(), dict_(a=buffer()), NONE, EMPTY_DICT),
        "rollout: the column 'a' is not an array",
    ),
    "a buffer in ROLL's meta info": Case(
        lambda: roll_batch(meta=dict_(a=EMPTY_BUFFER)), "rollout: meta info that is not a dict of plain values"
    ),
    "a buffer in the place of a batch": Case(
        lambda: build_pickle(buffer()), "it does not contain a batch of verl or ROLL"
    ),
}
