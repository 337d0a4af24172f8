"""The reader refuses hostile files or returns inert values; it runs nothing and needs little memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.safe_pickle.batches.batch import open_batch
from rolloutdeck.safe_pickle.batches.plain_values import convert_to_plain
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load import interpreter
from rolloutdeck.safe_pickle.load.placeholders import Unreadable
from rolloutdeck.safe_pickle.stream.source import ByteSource
from tests.rolloutdeck.safe_pickle import assembler as asm
from tests.rolloutdeck.safe_pickle import sparse
from tests.rolloutdeck.safe_pickle.dumps import ASYNC, HOSTILE, QUEUE, V2_NEW


def read_all(path: Path) -> None:
    """Reads all values of a batch, of at most three rows."""
    with open_batch(path) as batch:
        for name in batch.columns:
            batch.column(name)
        for name in batch.fields:
            for row in range(min(batch.rows, 3)):
                batch.tensor(name, row)
        for row in range(min(batch.rows, 3)):
            batch.tokens(row) if "prompts" in batch.fields and "responses" in batch.fields else None
        assert (batch.meta, batch.keys, batch.tags) is not None


@pytest.fixture
def write_file(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        path = tmp_path / "gen_batch.dp"
        path.write_bytes(data)
        return path

    return write


def pack_offsets(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def build_jagged_batch(*bounds: int) -> bytes:
    """A queue's batch of one jagged field with eight values and these bounds."""
    values = asm.tensor(asm.storage(8, "0", "Long"), 8)
    result = asm.tensor(asm.storage(len(bounds), "1", "Long"), len(bounds))
    content = asm.tensordict(prompts=asm.jagged_tensor(values, result))
    return asm.archive(asm.members(asm.queue_pickle(content), bytes(64), pack_offsets(*bounds)))


def build_column_batch(body: bytes) -> bytes:
    return asm.proto(asm.NONE, asm.dict_(c=body))


def build_field_batch(*parts: bytes) -> bytes:
    inside = asm.consolidated_tensordict(asm.tensor(asm.storage(16), 16), prompts=asm.tuple_(*parts))
    return asm.proto(asm.bytes_(asm.torch_file(inside, bytes(16))))


def build_raw_batch(shape: bytes, dtype: bytes = asm.text("int64")) -> bytes:
    """A batch in verl's numpy serialisation."""
    state = (asm.number(3), asm.text("|"), asm.NONE, asm.NONE, asm.NONE, asm.number(-1), asm.number(-1), asm.number(0))
    part = asm.tuple_(dtype, shape, asm.array(asm.bytes_(bytes(16)), 16, asm.dtype("u1", state)))
    return asm.proto(asm.tuple_(asm.tuple_(asm.number(2)), asm.NONE, asm.dict_(prompts=part)))


I64, TWO = asm.text("torch.int64"), asm.list_(asm.number(2))
HUGE = asm.number(1 << 62)
REFUSED: dict[str, tuple[bytes, str]] = {
    "a field beyond its bytes": (
        build_field_batch(I64, TWO, asm.number(8), asm.number(24), asm.number(0)),
        "beyond its bytes",
    ),
    "a field before its bytes": (
        build_field_batch(I64, TWO, asm.number(-16), asm.number(0), asm.number(0)),
        "beyond its bytes",
    ),
    "a field larger than its part": (
        build_field_batch(I64, asm.list_(asm.number(3)), asm.number(0), asm.number(16), asm.number(0)),
        "beyond its bytes",
    ),
    "a field of other rows": (
        build_field_batch(I64, asm.list_(asm.number(1)), asm.number(0), asm.number(8), asm.number(0)),
        "has 1 rows of 2",
    ),
    "a field of negative size": (
        build_field_batch(I64, asm.list_(asm.number(-2)), asm.number(0), asm.number(16), asm.number(0)),
        "invalid shape",
    ),
    "a field of a size that overflows": (
        build_field_batch(I64, asm.list_(asm.number(2), HUGE, HUGE), asm.number(0), asm.number(16), asm.number(0)),
        "invalid shape",
    ),
    "a field of an unknown type": (
        build_field_batch(asm.text("torch.quint8"), TWO, asm.number(0), asm.number(16), asm.number(0)),
        "type quint8",
    ),
    "a storage that says more than it has": (
        asm.proto(
            asm.bytes_(
                asm.torch_file(asm.consolidated_tensordict(asm.tensor(asm.storage(17), 16), **asm.FIELDS), bytes(16))
            )
        ),
        "does not contain",
    ),
    "a storage that is not there": (
        asm.proto(
            asm.bytes_(
                asm.torch_file(
                    asm.consolidated_tensordict(asm.tensor(asm.storage(16, "9"), 16), **asm.FIELDS), bytes(16)
                )
            )
        ),
        "does not contain",
    ),
    "rows that end beyond the values": (build_jagged_batch(0, 3, 9), "beyond its values"),
    "rows that begin before the values": (build_jagged_batch(-1, 3, 8), "beyond its values"),
    "rows of negative length": (build_jagged_batch(0, 5, 3), "beyond its values"),
    "more rows than the batch": (build_jagged_batch(0, 1, 2, 3), "has 3 rows of 2"),
    "fewer keys than rows": (
        asm.torch_file(asm.dict_(tensordict=asm.tensordict(), keys=asm.list_(asm.text("a_0_0")), tags=asm.list_())),
        "`keys` per row",
    ),
    "a raw tensor whose shape is none": (build_raw_batch(asm.tuple_(asm.text("two"))), "invalid shape"),
    "a raw tensor of no type": (build_raw_batch(asm.tuple_(asm.number(2)), asm.list_()), "does not write"),
    "a raw tensor larger than its bytes": (build_raw_batch(asm.tuple_(asm.number(3))), "larger than its bytes"),
    "a raw tensor of sizes that numpy can't have": (
        build_raw_batch(asm.tuple_(asm.number(2), asm.number(0), asm.number(1 << 39), asm.number(1 << 39))),
        "numpy does not support",
    ),
    "nothing on the stack": (asm.build_pickle(b"0"), "too few values"),
    "an object made of nothing": (asm.build_pickle(b"(o"), "too few values"),
    "a dict of odd length": (asm.build_pickle(b"}(" + asm.text("a") + b"u"), "no value"),
    "two values at the end": (asm.build_pickle(asm.NONE + asm.NONE), "one value"),
    "a mark left open": (asm.build_pickle(asm.NONE + b"(" + asm.NONE), "one value"),
    "something else than a batch": (asm.build_pickle(asm.list_()), "a list, not verl's DataProto"),
    "a torch file of something else": (asm.torch_file(asm.list_()), "a list, not the batch"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_batch_that_contradicts_itself_is_refused_with_its_reason(
    case: str, write_file: Callable[[bytes], Path]
) -> None:
    data, reason = REFUSED[case]
    with pytest.raises(SafePickleError, match=reason):
        read_all(write_file(data))


INERT: dict[str, tuple[bytes, str]] = {
    "an array of another length": (asm.array(asm.bytes_(bytes(8)), 2), "has 8, not 16"),
    "an object array of another length": (
        asm.array(asm.list_(asm.NONE), 2, asm.dtype("O8", asm.OBJECTS)),
        "has 1, not 2",
    ),
    "an object array over bytes": (
        asm.array(asm.bytes_(bytes(16)), 2, asm.dtype("O8", asm.OBJECTS)),
        "without its values",
    ),
    "numbers over a list": (asm.array(asm.list_(asm.NONE, asm.NONE), 2), "without its values"),
    "a column of other rows": (asm.array(asm.bytes_(bytes(24)), 3), "3 values in a batch of 2"),
    "a column that grows afterwards": (
        b"]\x94("
        + asm.NONE
        + asm.NONE
        + b"e0"
        + asm.array(b"h\x00", 2, asm.dtype("O8", asm.OBJECTS))
        + b"h\x00"
        + asm.NONE
        + b"a0",
        "with 3 values",
    ),
    "a column that is a list": (asm.list_(asm.NONE, asm.NONE), "not an array"),
    "a storage outside of an archive": (asm.object_array(asm.storage(1), asm.NONE), "not a torch storage"),
    "a state for a list": (asm.object_array(asm.set_state(asm.EMPTY_LIST, asm.EMPTY_DICT), asm.NONE), "given a state"),
    "something appended to a number": (asm.object_array(asm.number(1) + asm.NONE + b"a", asm.NONE), "appended to"),
    "items of a number": (asm.object_array(asm.number(1) + asm.NONE + asm.NONE + b"s", asm.NONE), "given items"),
    "a call of a number": (asm.object_array(asm.number(1) + asm.EMPTY_TUPLE + b"R", asm.NONE), "not a global"),
    "a name that is a number": (
        asm.object_array(asm.number(1) + asm.text("x") + b"\x93", asm.NONE),
        "name is not a string",
    ),
    "a known name called otherwise": (
        asm.object_array(asm.call("torch.Size", asm.number(3)), asm.NONE),
        "no known dump has",
    ),
    "a number of another size": (
        asm.object_array(asm.call("numpy._core.multiarray.scalar", asm.dtype(), asm.bytes_(b"1")), asm.NONE),
        "other than 8 bytes",
    ),
}


@pytest.mark.parametrize("case", INERT)
def test_an_invalid_value_is_inert_with_its_reason_and_the_rest_is_read(
    case: str, write_file: Callable[[bytes], Path]
) -> None:
    body, reason = INERT[case]
    with open_batch(
        write_file(asm.proto(columns=asm.dict_(bad=body, good=asm.array(asm.bytes_(bytes(16)), 2))))
    ) as batch:
        first, *_ = batch.column("bad")
        assert isinstance(first, Unreadable) and reason in first.name
        assert (batch.rows, batch.column("good"), len(batch.column("bad"))) == (2, [0, 0], 2)


def test_columns_are_read_if_the_tensors_are_unreadable(write_file: Callable[[bytes], Path]) -> None:
    run = asm.bytes_(asm.torch_file(asm.call("os.system", asm.text("touch x"))))
    with open_batch(write_file(asm.proto(run, asm.dict_(good=asm.array(asm.bytes_(bytes(16)), 2))))) as batch:
        assert (batch.format, batch.rows, batch.fields, batch.column("good")) == ("gen_batch", 2, {}, [0, 0])


def test_a_call_becomes_an_inert_value_with_its_name(write_file: Callable[[bytes], Path], tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    run = asm.call("os.system", asm.text(f"touch {mark}"))
    chain = asm.call(asm.call("builtins.getattr", asm.global_name("os.path"), asm.text("join")), asm.text("x"))
    built = asm.set_state(asm.new_object("subprocess.Popen"), asm.dict_(args=asm.text("touch")))
    rows = (run, chain, built, b"\x82\x07", asm.call("torch.storage._load_from_bytes", asm.bytes_(b"\x80\x02.")))
    with open_batch(write_file(build_column_batch(asm.object_array(*rows)))) as batch:
        result = batch.column("c")
    assert all(isinstance(value, Unreadable) for value in result)
    names = [value.name for value in result]
    assert names == [
        "os.system",
        "builtins.getattr",
        "subprocess.Popen",
        "extension 7",
        "torch.storage._load_from_bytes",
    ]
    assert not mark.exists()


def test_the_hostile_dump_is_refused_and_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SafePickleError, match="not verl's DataProto"):
        read_all(HOSTILE)
    assert not list(tmp_path.iterdir())


def test_keys_whose_hashes_could_be_forged_become_inert() -> None:
    many = (
        b"".join(asm.tuple_(asm.number(n)) + asm.NONE for n in range(3))
        + b"\x8a\x0a"
        + b"\xff" * 9
        + b"\x7f"
        + asm.NONE
    )
    result = interpreter.load_pickle(ByteSource.from_bytes(asm.build_pickle(b"}(" + many + b"u")))
    assert [str(key) for key in result] == ["unreadable: a key of type tuple"] * 3 + ["unreadable: a key of type int"]


@pytest.mark.timeout(20)
def test_a_value_that_unfolds_to_ten_to_the_power_of_forty_values_is_refused() -> None:
    level = asm.list_(asm.text("x"))
    for _ in range(40):
        level = b"](" + level + b"2" * 9 + b"e"  # DUP
    with pytest.raises(SafePickleError, match="8,000,000"):
        convert_to_plain(interpreter.load_pickle(ByteSource.from_bytes(asm.build_pickle(level))))


def test_many_large_columns_are_refused_together_though_each_alone_is_allowed(
    write_file: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolloutdeck.safe_pickle.batches.batch.MAX_PLAIN_VALUES", 1000)
    rows = asm.object_array(*[asm.list_(*[asm.NONE] * 100)] * 4)
    with open_batch(write_file(asm.proto(asm.NONE, asm.dict_(a=rows, b=rows, c=rows)))) as batch:
        assert [len(batch.column(name)) for name in ("a", "a", "a", "b", "a")] == [4] * 5
        with pytest.raises(SafePickleError, match="values"):
            batch.column("c")


@pytest.mark.parametrize("opened", [b"]", b"}N"])
def test_a_value_nested_a_hundred_thousand_deep_ends_in_an_inert_value(opened: bytes) -> None:
    closed = b"a" if opened == b"]" else b"s"
    result = convert_to_plain(
        interpreter.load_pickle(ByteSource.from_bytes(asm.build_pickle(opened * 100_000 + b"N" + closed * 100_000)))
    )
    for _ in range(65):
        result = result[0] if isinstance(result, list) else result[None]
    assert str(result) == "unreadable: values nested too deep"


def test_a_list_that_contains_itself_ends_in_an_inert_value() -> None:
    (result,) = convert_to_plain(interpreter.load_pickle(ByteSource.from_bytes(asm.build_pickle(b"]\x94h\x00a"))))
    assert str(result) == "unreadable: value inside itself"


@pytest.mark.parametrize("name", ["builtins.set", "_codecs.encode"])
def test_a_long_argument_passed_again_and_again_is_refused(name: str) -> None:
    long = asm.list_(*[asm.NONE] * 100_000) if name == "builtins.set" else asm.text("x" * 100_000)
    args = long + (b"\x85" if name == "builtins.set" else asm.text("latin1") + b"\x86") + b"\x94"
    again = b"0" + asm.global_name(name) + b"\x94" + args + b"0" + b"h\x00h\x01R0" * 50_000 + asm.NONE
    program = asm.build_pickle(asm.NONE + again)
    with pytest.raises(SafePickleError, match="again and again"):
        interpreter.load_pickle(ByteSource.from_bytes(program))


def test_a_batch_that_claims_a_trillion_rows_is_refused(write_file: Callable[[bytes], Path]) -> None:
    settings = asm.dict_(device=asm.NONE, names=asm.NONE, batch_size=asm.list_(asm.number(10**12)))
    values = {"cls": asm.text("TensorDict"), "non_tensors": asm.EMPTY_DICT, "leaves": asm.EMPTY_DICT}
    name = "tensordict._reductions._rebuild_tensordict_files_consolidated"
    inside = asm.call(name, asm.dict_(**values, cls_metadata=settings), asm.tensor(asm.storage(16), 16))
    with pytest.raises(SafePickleError, match="number of rows"):
        read_all(write_file(asm.proto(asm.bytes_(asm.torch_file(inside, bytes(16))))))


def test_a_shape_of_zeros_builds_no_lists_for_its_other_sizes(write_file: Callable[[bytes], Path]) -> None:
    state = (asm.number(1), asm.tuple_(asm.number(1), asm.number(1 << 39), asm.number(0)), asm.dtype(), asm.FALSE)
    rows = asm.set_state(asm.empty_array(), asm.tuple_(*state, asm.bytes_(b"")))
    with pytest.raises(SafePickleError, match="8,000,000"):
        read_all(write_file(build_column_batch(rows)))


@pytest.mark.parametrize("path", [ASYNC, QUEUE, V2_NEW], ids=lambda path: path.name)
def test_a_file_cut_short_anywhere_is_refused(path: Path, write_file: Callable[[bytes], Path]) -> None:
    data = path.read_bytes()
    for length in range(0, len(data), 997):
        with pytest.raises(SafePickleError):
            read_all(write_file(data[:length]))


def build_damaged_copies(data: bytes, rounds: int, seed: int) -> Iterator[bytes]:
    """Yields copies with a few bytes changed, most of them where the opcodes are."""
    chance = random.Random(seed)
    for _ in range(rounds):
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 8))):
            at = chance.randrange(len(data)) if chance.random() < 0.2 else len(data) - 1 - chance.randrange(2000)
            changed[at] = chance.choice((chance.randrange(256), *b"(.0Rbtu}]\x81\x85\x93\x94"))
        yield bytes(changed)


@pytest.mark.parametrize("path", [ASYNC, V2_NEW], ids=lambda path: path.name)
def test_a_damaged_file_is_refused_or_read_but_never_breaks_the_reader(
    path: Path, write_file: Callable[[bytes], Path]
) -> None:
    refused = 0
    for data in build_damaged_copies(path.read_bytes(), 150, seed=7):
        try:
            read_all(write_file(data))
        except SafePickleError:
            refused += 1
    assert 30 < refused < 150


def test_reading_a_hostile_pickle_keeps_memory_small(write_file: Callable[[bytes], Path]) -> None:
    path = write_file(asm.build_pickle(b"\x8e" + struct.pack("<Q", 1 << 28)))
    with path.open("r+b") as opened:
        opened.truncate(11 + (1 << 28))
        opened.seek(0, 2)
        opened.write(b".")
    tracemalloc.start()
    with pytest.raises(SafePickleError):
        read_all(path)
    peak: Any = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_row_of_millions_of_tokens_is_refused_and_not_read(tmp_path: Path) -> None:
    tracemalloc.start()
    with (
        open_batch(sparse.write_batch(tmp_path / "gen_batch.dp", 1 << 30)) as batch,
        pytest.raises(SafePickleError, match="a row of 67,108,864 tokens; at most 4,194,304 are read"),
    ):
        batch.tokens(0)
    peak: Any = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
