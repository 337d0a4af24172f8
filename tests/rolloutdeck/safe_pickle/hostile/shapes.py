"""Globals that verl's files use, called with invalid arguments."""

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
    build_pickle,
    bytes_,
    call,
    dict_,
    dtype,
    global_name,
    list_,
    new_object,
    number,
    object_array,
    proto,
    set_state,
    storage,
    text,
    torch_file,
    tuple_,
)
from tests.rolloutdeck.safe_pickle.hostile.case import (
    SYSTEM,
    Case,
    build_column_batch,
    build_legacy_stream,
    build_value_batch,
)

SHAPES = {
    "bytes that pass for object pointers": Case(
        lambda: build_column_batch(array(bytes_(b"A" * 16), 2, dtype("O8", (*OBJECTS[:7], number(0))))),
        "dtype: a state that does not match its dtype",
        True,
    ),
    "numbers that pass for objects": Case(
        lambda: build_column_batch(array(list_(NONE), 1, dtype("i8", (*SIMPLE[:7], number(63))))),
        "dtype: a state that does not match its dtype",
        True,
    ),
    "a dtype with fields": Case(
        lambda: build_column_batch(
            array(bytes_(bytes(8)), 1, dtype("V8", (*SIMPLE[:3], tuple_(text("a")), dict_(a=NONE), *SIMPLE[5:])))
        ),
        "dtype: the dtype 'V8'",
        True,
    ),
    "a dtype that is a list of objects": Case(
        lambda: build_column_batch(array(bytes_(bytes(8)), 1, dtype("O,O"))), "dtype: the dtype 'O,O'", True
    ),
    "a dtype whose size is not its own": Case(
        lambda: build_column_batch(array(bytes_(bytes(8)), 1, dtype("i8", (*SIMPLE[:5], number(1), *SIMPLE[6:])))),
        "dtype: a state that does not match its dtype",
        True,
    ),
    "a dtype that is given two states": Case(
        lambda: build_column_batch(array(bytes_(bytes(16)), 2, set_state(dtype(), tuple_(*SIMPLE)))),
        "dtype: a state that does not match its dtype",
        True,
    ),
    "a dtype of gigabytes": Case(
        lambda: build_column_batch(array(bytes_(b""), 0, dtype("U999999999"))), "dtype: the dtype 'U999999999'", True
    ),
    "a dtype without its state": Case(
        lambda: build_column_batch(array(bytes_(bytes(8)), 1, call("numpy.dtype", text("i8"), FALSE, TRUE))),
        "array: an invalid array state",
    ),
    "an array larger than its bytes": Case(
        lambda: build_column_batch(array(bytes_(bytes(16)), 1 << 40)),
        "array: an array whose content does not fit its shape",
    ),
    "an array smaller than its bytes": Case(
        lambda: build_column_batch(array(bytes_(bytes(16)), 1)), "array: an array whose content does not fit its shape"
    ),
    "an object array with fewer objects": Case(
        lambda: build_column_batch(array(list_(NONE), 2, dtype("O8", OBJECTS))),
        "array: an array whose content does not fit its shape",
    ),
    "an array of classes": Case(
        lambda: build_column_batch(object_array(global_name("torch.Size"))),
        "array: an array of values that are not plain",
    ),
    "an array that is filled twice": Case(
        lambda: build_column_batch(
            set_state(
                array(bytes_(bytes(8)), 1), tuple_(number(1), tuple_(number(1)), dtype(), FALSE, bytes_(bytes(8)))
            )
        ),
        "array: an array that is filled twice",
    ),
    "an array of another class": Case(
        lambda: build_column_batch(
            call("numpy._core.multiarray._reconstruct", global_name("numpy.memmap"), tuple_(number(0)), bytes_(b"b"))
        ),
        "it names 'numpy.memmap'",
        True,
    ),
    "an array that begins with a size": Case(
        lambda: build_column_batch(
            call(
                "numpy._core.multiarray._reconstruct",
                global_name("numpy.ndarray"),
                tuple_(number(1 << 40)),
                bytes_(b"b"),
            )
        ),
        "_reconstruct: an array that does not begin empty",
        True,
    ),
    "a number of the wrong size": Case(
        lambda: build_value_batch(call("numpy._core.multiarray.scalar", dtype(), bytes_(bytes(4)))),
        "scalar: a number of another size than its dtype",
        True,
    ),
    "a number that is an object": Case(
        lambda: build_value_batch(call("numpy._core.multiarray.scalar", dtype("O8", OBJECTS), bytes_(bytes(8)))),
        "scalar: an invalid number",
        True,
    ),
    "a buffer that is read as objects": Case(
        lambda: build_value_batch(
            call(
                "numpy._core.numeric._frombuffer", bytes_(bytes(8)), dtype("O8", OBJECTS), tuple_(number(1)), text("C")
            )
        ),
        "_frombuffer: an invalid array",
        True,
    ),
    "another text encoding": Case(
        lambda: build_value_batch(call("_codecs.encode", text("x"), text("rot13"))),
        "encode: another encoding than latin1",
        True,
    ),
    "a set of something": Case(
        lambda: build_value_batch(call("builtins.set", NONE)), "set: a set that is not created from a list", True
    ),
    "a batch that is filled twice": Case(
        lambda: build_pickle(
            set_state(
                set_state(new_object("verl.protocol.DataProto"), tuple_(NONE, EMPTY_DICT, EMPTY_DICT)),
                tuple_(bytes_(build_legacy_stream(SYSTEM)), EMPTY_DICT, EMPTY_DICT),
            )
        ),
        "batch: an invalid batch, or one that is filled twice",
    ),
    "a batch in a legacy torch stream": Case(lambda: proto(bytes_(build_legacy_stream(SYSTEM))), "it is not a ZIP"),
    "a batch in an array of bytes": Case(
        lambda: proto(
            array(
                bytes_(build_legacy_stream(SYSTEM)),
                len(build_legacy_stream(SYSTEM)),
                dtype("u1", (number(3), text("|"), *SIMPLE[2:])),
            )
        ),
        "batch: an invalid batch",
    ),
    "a batch in text": Case(
        lambda: proto(call("_codecs.encode", text("x" * 100), text("latin1"))), "an archive that was written as text"
    ),
    "a batch whose archive runs something": Case(
        lambda: proto(bytes_(torch_file(SYSTEM))), "inside it: it names 'os.system'"
    ),
    "a batch that is no tensordict": Case(
        lambda: proto(bytes_(torch_file(EMPTY_LIST))), "batch: a batch without a tensordict"
    ),
    "a column that is no array": Case(
        lambda: proto(columns=dict_(a=EMPTY_LIST)), "batch: the column 'a' is not an array", True
    ),
    "a raw field of a type that torch has by that name": Case(
        lambda: proto(
            tuple_(
                tuple_(number(2)),
                NONE,
                dict_(a=tuple_(text("load"), call("torch.Size", tuple_(number(2))), array(bytes_(BYTES), 2))),
            )
        ),
        "batch: the field 'a' is invalid",
    ),
    "a raw field with fewer bytes": Case(
        lambda: proto(
            tuple_(
                tuple_(number(2)),
                NONE,
                dict_(a=tuple_(text("int64"), call("torch.Size", tuple_(number(9))), array(bytes_(BYTES), 2))),
            )
        ),
        "batch: the field 'a' does not have as many bytes as its shape",
    ),
    "a raw nested field of another layout": Case(
        lambda: proto(tuple_(tuple_(number(2)), NONE, dict_(a=tuple_(text("hub"), EMPTY_LIST)))),
        "batch: an invalid nested field",
    ),
    "torch's bytes in a legacy stream": Case(
        lambda: build_value_batch(call("torch.storage._load_from_bytes", bytes_(build_legacy_stream(SYSTEM)))),
        "_load_from_bytes: the bytes in it can't be loaded: it is not a ZIP",
        True,
    ),
    "torch's bytes in an archive that runs something": Case(
        lambda: build_value_batch(call("torch.storage._load_from_bytes", bytes_(torch_file(SYSTEM)))),
        "inside it: it names 'os.system'",
        True,
    ),
    "an archive that is loaded again and again": Case(
        lambda: proto(
            meta=dict_(
                a=bytes_(torch_file(storage(16), BYTES))
                + b"\x94"
                + b"".join(call("torch.storage._load_from_bytes", b"h\x00") + b"0" for _ in range(500))
            )
        ),
        "archives inside archives inside archives, or one that is loaded again and again",
    ),
}
