"""Names that verl's files have, called with what they never are."""

from __future__ import annotations

from tests.rolloutdeck.safe_pickle.assembler import (
    BYTES,
    EMPTY_DICT,
    EMPTY_LIST,
    FALSE,
    NONE,
    OBJECTS,
    SIMPLE,
    TRUE,
    array,
    call,
    data,
    dtype,
    listed,
    mapped,
    named,
    new,
    number,
    objects,
    pickled,
    proto,
    row,
    saved,
    set_state,
    storage,
    text,
)
from tests.rolloutdeck.safe_pickle.hostile.case import SYSTEM, Case, build_file, columns, legacy

SHAPES = {
    "bytes that pass for object pointers": Case(
        lambda: build_file(array(data(b"A" * 16), 2, dtype("O8", (*OBJECTS[:7], number(0))))),
        "dtype: a state that does not match its dtype",
        True,
    ),
    "numbers that pass for objects": Case(
        lambda: build_file(array(listed(NONE), 1, dtype("i8", (*SIMPLE[:7], number(63))))),
        "dtype: a state that does not match its dtype",
        True,
    ),
    "a dtype with fields": Case(
        lambda: build_file(
            array(data(bytes(8)), 1, dtype("V8", (*SIMPLE[:3], row(text("a")), mapped(a=NONE), *SIMPLE[5:])))
        ),
        "dtype: the dtype 'V8'",
        True,
    ),
    "a dtype that is a list of objects": Case(
        lambda: build_file(array(data(bytes(8)), 1, dtype("O,O"))), "dtype: the dtype 'O,O'", True
    ),
    "a dtype whose size is not its own": Case(
        lambda: build_file(array(data(bytes(8)), 1, dtype("i8", (*SIMPLE[:5], number(1), *SIMPLE[6:])))),
        "dtype: a state that does not match its dtype",
        True,
    ),
    "a dtype that is given two states": Case(
        lambda: build_file(array(data(bytes(16)), 2, set_state(dtype(), row(*SIMPLE)))),
        "dtype: a state that does not match its dtype",
        True,
    ),
    "a dtype of gigabytes": Case(
        lambda: build_file(array(data(b""), 0, dtype("U999999999"))), "dtype: the dtype 'U999999999'", True
    ),
    "a dtype without its state": Case(
        lambda: build_file(array(data(bytes(8)), 1, call("numpy.dtype", text("i8"), FALSE, TRUE))),
        "array: an invalid array state",
    ),
    "an array larger than its bytes": Case(
        lambda: build_file(array(data(bytes(16)), 1 << 40)), "array: an array whose content does not fit its shape"
    ),
    "an array smaller than its bytes": Case(
        lambda: build_file(array(data(bytes(16)), 1)), "array: an array whose content does not fit its shape"
    ),
    "an object array with fewer objects": Case(
        lambda: build_file(array(listed(NONE), 2, dtype("O8", OBJECTS))),
        "array: an array whose content does not fit its shape",
    ),
    "an array of classes": Case(
        lambda: build_file(objects(named("torch.Size"))), "array: an array of values that are not plain"
    ),
    "an array that is filled twice": Case(
        lambda: build_file(
            set_state(array(data(bytes(8)), 1), row(number(1), row(number(1)), dtype(), FALSE, data(bytes(8))))
        ),
        "array: an array that is filled twice",
    ),
    "an array of another class": Case(
        lambda: build_file(
            call("numpy._core.multiarray._reconstruct", named("numpy.memmap"), row(number(0)), data(b"b"))
        ),
        "it names 'numpy.memmap'",
        True,
    ),
    "an array that begins with a size": Case(
        lambda: build_file(
            call("numpy._core.multiarray._reconstruct", named("numpy.ndarray"), row(number(1 << 40)), data(b"b"))
        ),
        "_reconstruct: an array that does not begin empty",
        True,
    ),
    "a number of the wrong size": Case(
        lambda: columns(call("numpy._core.multiarray.scalar", dtype(), data(bytes(4)))),
        "scalar: a number of another size than its dtype",
        True,
    ),
    "a number that is an object": Case(
        lambda: columns(call("numpy._core.multiarray.scalar", dtype("O8", OBJECTS), data(bytes(8)))),
        "scalar: an invalid number",
        True,
    ),
    "a buffer that is read as objects": Case(
        lambda: columns(
            call("numpy._core.numeric._frombuffer", data(bytes(8)), dtype("O8", OBJECTS), row(number(1)), text("C"))
        ),
        "_frombuffer: an invalid array",
        True,
    ),
    "another text encoding": Case(
        lambda: columns(call("_codecs.encode", text("x"), text("rot13"))), "encode: another encoding than latin1", True
    ),
    "a set of something": Case(
        lambda: columns(call("builtins.set", NONE)), "set: a set that is not created from a list", True
    ),
    "a batch that is filled twice": Case(
        lambda: pickled(
            set_state(
                set_state(new("verl.protocol.DataProto"), row(NONE, EMPTY_DICT, EMPTY_DICT)),
                row(data(legacy(SYSTEM)), EMPTY_DICT, EMPTY_DICT),
            )
        ),
        "batch: an invalid batch, or one that is filled twice",
    ),
    "a batch in a legacy torch stream": Case(lambda: proto(data(legacy(SYSTEM))), "it is not a ZIP"),
    "a batch in an array of bytes": Case(
        lambda: proto(
            array(data(legacy(SYSTEM)), len(legacy(SYSTEM)), dtype("u1", (number(3), text("|"), *SIMPLE[2:])))
        ),
        "batch: an invalid batch",
    ),
    "a batch in text": Case(
        lambda: proto(call("_codecs.encode", text("x" * 100), text("latin1"))), "an archive that was written as text"
    ),
    "a batch whose archive runs something": Case(lambda: proto(data(saved(SYSTEM))), "inside it: it names 'os.system'"),
    "a batch that is no tensordict": Case(
        lambda: proto(data(saved(EMPTY_LIST))), "batch: a batch without a tensordict"
    ),
    "a column that is no array": Case(
        lambda: proto(columns=mapped(a=EMPTY_LIST)), "batch: the column 'a' is not an array", True
    ),
    "a raw field of a type that torch has by that name": Case(
        lambda: proto(
            row(
                row(number(2)),
                NONE,
                mapped(a=row(text("load"), call("torch.Size", row(number(2))), array(data(BYTES), 2))),
            )
        ),
        "batch: the field 'a' is invalid",
    ),
    "a raw field with fewer bytes": Case(
        lambda: proto(
            row(
                row(number(2)),
                NONE,
                mapped(a=row(text("int64"), call("torch.Size", row(number(9))), array(data(BYTES), 2))),
            )
        ),
        "batch: the field 'a' does not have as many bytes as its shape",
    ),
    "a raw nested field of another layout": Case(
        lambda: proto(row(row(number(2)), NONE, mapped(a=row(text("hub"), EMPTY_LIST)))),
        "batch: an invalid nested field",
    ),
    "torch's bytes in a legacy stream": Case(
        lambda: columns(call("torch.storage._load_from_bytes", data(legacy(SYSTEM)))),
        "_load_from_bytes: the bytes in it can't be loaded: it is not a ZIP",
        True,
    ),
    "torch's bytes in an archive that runs something": Case(
        lambda: columns(call("torch.storage._load_from_bytes", data(saved(SYSTEM)))),
        "inside it: it names 'os.system'",
        True,
    ),
    "an archive that is loaded again and again": Case(
        lambda: proto(
            meta=mapped(
                a=data(saved(storage(16), BYTES))
                + b"\x94"
                + b"".join(call("torch.storage._load_from_bytes", b"h\x00") + b"0" for _ in range(500))
            )
        ),
        "archives inside archives inside archives, or one that is loaded again and again",
    ),
}
