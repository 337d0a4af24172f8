"""Global names and calls that no file of verl has."""

from __future__ import annotations

import pickle

from tests.rolloutdeck.safe_pickle.assembler import (
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_TUPLE,
    NONE,
    TRUE,
    build_pickle,
    bytes_,
    call,
    dict_,
    dtype,
    empty_array,
    global_name,
    list_,
    new_object,
    number,
    proto,
    set_state,
    text,
    tuple_,
)
from tests.rolloutdeck.safe_pickle.hostile.case import COMMAND, SYSTEM, Case, build_value_batch

CALLS = {
    "os.system": Case(lambda: build_pickle(SYSTEM), "it names 'os.system'"),
    "posix.system by GLOBAL": Case(
        lambda: build_pickle(b"cposix\nsystem\n" + tuple_(text(COMMAND)) + b"R"), "it names 'posix.system'"
    ),
    "nt.system": Case(lambda: build_pickle(call("nt.system", text(COMMAND))), "it names 'nt.system'"),
    "eval": Case(lambda: build_value_batch(call("builtins.eval", text("1"))), "it names 'builtins.eval'", True),
    "exec in protocol 2's name": Case(
        lambda: build_value_batch(call("__builtin__.exec", text("1"))), "it names '__builtin__.exec'", True
    ),
    "import": Case(
        lambda: build_value_batch(call("builtins.__import__", text("antigravity"))),
        "it names 'builtins.__import__'",
        True,
    ),
    "subprocess": Case(
        lambda: build_value_batch(call("subprocess.Popen", text(COMMAND))), "it names 'subprocess.Popen'", True
    ),
    "getattr": Case(
        lambda: build_value_batch(call("builtins.getattr", global_name("torch.Size"), text("x"))),
        "it names 'builtins.getattr'",
        True,
    ),
    "attrgetter": Case(
        lambda: build_value_batch(call("operator.attrgetter", text("system"))), "it names 'operator.attrgetter'", True
    ),
    "partial": Case(lambda: build_value_batch(call("functools.partial", SYSTEM)), "it names 'functools.partial'", True),
    "torch.load": Case(lambda: build_value_batch(call("torch.load", text("x"))), "it names 'torch.load'", True),
    "torch.hub": Case(
        lambda: build_value_batch(call("torch.hub.load", text("a/b"), text("x"))), "it names 'torch.hub.load'", True
    ),
    "numpy's own loader": Case(
        lambda: build_value_batch(call("numpy.load", text("x"), NONE, TRUE)), "it names 'numpy.load'", True
    ),
    "torch.jit through an unused name": Case(
        lambda: build_value_batch(call("torch.jit._script.unpackage", NONE)),
        "it names 'torch.jit._script.unpackage'",
        True,
    ),
    "a class of the user's": Case(
        lambda: build_value_batch(new_object("reward.Score")), "it names 'reward.Score'", True
    ),
    "as an element of a list in meta info": Case(
        lambda: proto(meta=dict_(a=list_(SYSTEM))), "it names 'os.system'", True
    ),
    "as a key": Case(lambda: proto(meta=b"}" + SYSTEM + NONE + b"s"), "a key that is not a plain value", True),
    "only named, not called": Case(lambda: proto(meta=dict_(a=global_name("os.system"))), "it names 'os.system'", True),
    "a listed name where a value belongs": Case(
        lambda: proto(meta=dict_(a=global_name("torch.Size"))),
        "batch: meta info that is not a dict of plain values",
        True,
    ),
    "by memoized names": Case(
        lambda: build_pickle(
            text("os") + b"\x94" + text("system") + b"\x94" + b"00h\x00h\x01\x93" + tuple_(text(COMMAND)) + b"R"
        ),
        "it names 'os.system'",
    ),
    "by attributes of a listed module": Case(
        lambda: build_value_batch(text("torch._utils") + text("sys.modules") + b"\x93"),
        "it names 'torch._utils.sys.modules'",
        True,
    ),
    "a listed name split elsewhere": Case(
        lambda: build_value_batch(
            text("numpy._core") + text("multiarray.scalar") + b"\x93" + tuple_(dtype(), bytes_(bytes(8))) + b"R"
        ),
        "it names 'numpy._core.multiarray.scalar'",
        True,
    ),
    "a global whose name is a number": Case(
        lambda: build_value_batch(number(1) + text("system") + b"\x93"),
        "the name of a global at N is not a string",
        True,
    ),
    "a global whose name is made by a call": Case(
        lambda: build_value_batch(text("os") + call("_codecs.encode", text("system"), text("latin1")) + b"\x93"),
        "the name of a global at N is not a string",
        True,
    ),
    "INST": Case(lambda: build_pickle(b"(" + text(COMMAND) + b"ios\nsystem\n"), "it has the opcode INST at N"),
    "OBJ": Case(
        lambda: build_pickle(b"(" + global_name("os.system") + text(COMMAND) + b"o"), "it has the opcode OBJ at N"
    ),
    "NEWOBJ of a function": Case(lambda: build_value_batch(new_object("os.system")), "it names 'os.system'", True),
    "NEWOBJ of a listed class with arguments": Case(
        lambda: build_pickle(global_name("verl.protocol.DataProto") + tuple_(NONE) + b"\x81"),
        "DataProto: an object created with arguments",
    ),
    "NEWOBJ_EX": Case(
        lambda: build_value_batch(global_name("os.system") + EMPTY_TUPLE + EMPTY_DICT + b"\x92"),
        "it has the opcode NEWOBJ_EX at N",
        True,
    ),
    "EXT1": Case(lambda: build_value_batch(b"\x82\x01"), "it has the opcode EXT1 at N", True),
    "EXT2": Case(lambda: build_value_batch(b"\x83\x01\x01"), "it has the opcode EXT2 at N", True),
    "EXT4": Case(lambda: build_value_batch(b"\x84\x01\x01\x01\x01"), "it has the opcode EXT4 at N", True),
    "a persistent id outside of an archive": Case(
        lambda: build_value_batch(tuple_(text("x")) + b"Q"),
        "a persistent id: a persistent id outside of a torch archive",
        True,
    ),
    "a persistent id of protocol 0": Case(lambda: build_value_batch(b"Pos\n"), "it has the opcode PERSID at N", True),
    "BUILD on a list": Case(
        lambda: build_value_batch(set_state(EMPTY_LIST, dict_(a=NONE))), "list: it is given a state", True
    ),
    "BUILD on a class": Case(
        lambda: build_value_batch(set_state(global_name("torch.Size"), dict_(a=NONE))),
        "Size: it is given a state",
        True,
    ),
    "APPENDS to an object": Case(
        lambda: build_value_batch(dtype() + b"(" + NONE + b"e"),
        "APPENDS at N changes something that is not a list",
        True,
    ),
    "SETITEMS on an array": Case(
        lambda: build_value_batch(empty_array() + b"(" + text("a") + NONE + b"u"),
        "SETITEMS at N changes something that is not a dict",
        True,
    ),
    "two batches in one file": Case(lambda: build_pickle(SYSTEM + b"0" + proto()[2:-1]), "it names 'os.system'", True),
    "a second pickle behind the first": Case(
        lambda: proto() + build_pickle(SYSTEM), "41 bytes follow the end of the pickle", True
    ),
    "nothing before it says its protocol": Case(
        lambda: proto()[2:], "it does not begin with its protocol, as every file of torch and verl does", True
    ),
    "written in protocol 0": Case(lambda: b"cos\nsystem\n(S'touch PWNED'\ntR.", "it names 'os.system'"),
    "numbers of protocol 0": Case(lambda: build_value_batch(b"I1\n"), "it has the opcode INT at N", True),
    "a GET of protocol 0": Case(
        lambda: build_value_batch(EMPTY_LIST + b"\x94g0\n" + b"0"), "it has the opcode GET at N", True
    ),
    "a container that changes after it was judged": Case(
        lambda: proto(meta=dict_(a=EMPTY_DICT + b"\x94\x85", b=b"h\x00" + text("k") + NONE + b"s")),
        "it changes a container that was already used",
        True,
    ),
    "a list that holds itself": Case(
        lambda: proto(meta=dict_(a=EMPTY_LIST + b"\x94" + b"h\x00" + b"a")),
        "it changes a container that was already used",
        True,
    ),
    "an out-of-band buffer": Case(lambda: build_pickle(b"\x97"), "its buffers are outside the file"),
    "a plain pickle": Case(lambda: pickle.dumps({"a": [1, 2]}), "it does not contain a batch of verl or ROLL"),
}
