"""Names and calls that no file of verl has."""

from __future__ import annotations

import pickle

from tests.rolloutdeck.safe_pickle.assembler import (
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_TUPLE,
    NONE,
    TRUE,
    blank,
    call,
    data,
    dtype,
    given,
    listed,
    mapped,
    named,
    new,
    number,
    pickled,
    proto,
    row,
    text,
)
from tests.rolloutdeck.safe_pickle.hostile.case import COMMAND, SYSTEM, Case, columns

CALLS = {
    "os.system": Case(lambda: pickled(SYSTEM), "'os.system'"),
    "posix.system by GLOBAL": Case(lambda: pickled(b"cposix\nsystem\n" + row(text(COMMAND)) + b"R"), "'posix.system'"),
    "nt.system": Case(lambda: pickled(call("nt.system", text(COMMAND))), "'nt.system'"),
    "eval": Case(lambda: columns(call("builtins.eval", text("1"))), "'builtins.eval'", True),
    "exec in protocol 2's name": Case(lambda: columns(call("__builtin__.exec", text("1"))), "'__builtin__.exec'", True),
    "import": Case(lambda: columns(call("builtins.__import__", text("antigravity"))), "__import__", True),
    "subprocess": Case(lambda: columns(call("subprocess.Popen", text(COMMAND))), "'subprocess.Popen'", True),
    "getattr": Case(lambda: columns(call("builtins.getattr", named("torch.Size"), text("x"))), "getattr", True),
    "attrgetter": Case(lambda: columns(call("operator.attrgetter", text("system"))), "attrgetter", True),
    "partial": Case(lambda: columns(call("functools.partial", SYSTEM)), "'functools.partial'", True),
    "torch.load": Case(lambda: columns(call("torch.load", text("x"))), "'torch.load'", True),
    "torch.hub": Case(lambda: columns(call("torch.hub.load", text("a/b"), text("x"))), "'torch.hub.load'", True),
    "numpy's own loader": Case(lambda: columns(call("numpy.load", text("x"), NONE, TRUE)), "'numpy.load'", True),
    "torch.jit through an unused name": Case(
        lambda: columns(call("torch.jit._script.unpackage", NONE)), "torch.jit", True
    ),
    "a class of the user's": Case(lambda: columns(new("reward.Score")), "'reward.Score'", True),
    "as an element of a list in meta info": Case(lambda: proto(meta=mapped(a=listed(SYSTEM))), "os.system", True),
    "as a key": Case(lambda: proto(meta=b"}" + SYSTEM + NONE + b"s"), "os.system", True),
    "only named, not called": Case(lambda: proto(meta=mapped(a=named("os.system"))), "'os.system'", True),
    "a listed name where a value belongs": Case(lambda: proto(meta=mapped(a=named("torch.Size"))), "meta info", True),
    "by memoized names": Case(
        lambda: pickled(
            text("os") + b"\x94" + text("system") + b"\x94" + b"00h\x00h\x01\x93" + row(text(COMMAND)) + b"R"
        ),
        "'os.system'",
    ),
    "by attributes of a listed module": Case(
        lambda: columns(text("torch._utils") + text("sys.modules") + b"\x93"), "'torch._utils.sys.modules'", True
    ),
    "a listed name split elsewhere": Case(
        lambda: columns(
            text("numpy._core") + text("multiarray.scalar") + b"\x93" + row(dtype(), data(bytes(8))) + b"R"
        ),
        "'numpy._core.multiarray.scalar'",
        True,
    ),
    "a global whose name is a number": Case(
        lambda: columns(number(1) + text("system") + b"\x93"), "is not a string", True
    ),
    "a global whose name is made by a call": Case(
        lambda: columns(text("os") + call("_codecs.encode", text("system"), text("latin1")) + b"\x93"),
        "not a string",
        True,
    ),
    "INST": Case(lambda: pickled(b"(" + text(COMMAND) + b"ios\nsystem\n"), "opcode INST"),
    "OBJ": Case(lambda: pickled(b"(" + named("os.system") + text(COMMAND) + b"o"), "'os.system'"),
    "NEWOBJ of a function": Case(lambda: columns(new("os.system")), "'os.system'", True),
    "NEWOBJ of a listed class with arguments": Case(
        lambda: pickled(named("verl.protocol.DataProto") + row(NONE) + b"\x81"), "created with arguments"
    ),
    "NEWOBJ_EX": Case(lambda: columns(named("os.system") + EMPTY_TUPLE + EMPTY_DICT + b"\x92"), "NEWOBJ_EX", True),
    "EXT1": Case(lambda: columns(b"\x82\x01"), "opcode EXT1", True),
    "EXT2": Case(lambda: columns(b"\x83\x01\x01"), "opcode EXT2", True),
    "EXT4": Case(lambda: columns(b"\x84\x01\x01\x01\x01"), "opcode EXT4", True),
    "a persistent id outside of an archive": Case(lambda: columns(row(text("x")) + b"Q"), "persistent id", True),
    "a persistent id of protocol 0": Case(lambda: columns(b"Pos\n"), "opcode PERSID", True),
    "BUILD on a list": Case(lambda: columns(given(EMPTY_LIST, mapped(a=NONE))), "is given a state", True),
    "BUILD on a class": Case(lambda: columns(given(named("torch.Size"), mapped(a=NONE))), "is given a state", True),
    "APPENDS to an object": Case(lambda: columns(dtype() + b"(" + NONE + b"e"), "not a list", True),
    "SETITEMS on an array": Case(lambda: columns(blank() + b"(" + text("a") + NONE + b"u"), "not a dict", True),
    "two batches in one file": Case(lambda: pickled(SYSTEM + b"0" + proto()[2:-1]), "'os.system'", True),
    "a second pickle behind the first": Case(lambda: proto() + pickled(SYSTEM), "bytes follow", True),
    "nothing before it says its protocol": Case(lambda: proto()[2:], "begin with its protocol", True),
    "written in protocol 0": Case(lambda: b"cos\nsystem\n(S'touch PWNED'\ntR.", "'os.system'"),
    "numbers of protocol 0": Case(lambda: columns(b"I1\n"), "opcode INT", True),
    "a GET of protocol 0": Case(lambda: columns(EMPTY_LIST + b"\x94g0\n" + b"0"), "opcode GET", True),
    "a container that changes after it was judged": Case(
        lambda: proto(meta=mapped(a=EMPTY_DICT + b"\x94\x85", b=b"h\x00" + text("k") + NONE + b"s")),
        "already used",
        True,
    ),
    "a list that holds itself": Case(
        lambda: proto(meta=mapped(a=EMPTY_LIST + b"\x94" + b"h\x00" + b"a")), "already used", True
    ),
    "an out-of-band buffer": Case(lambda: pickled(b"\x97"), "buffers are outside the file"),
    "a plain pickle": Case(lambda: pickle.dumps({"a": [1, 2]}), "not contain a batch of verl"),
}
