"""The budget of the reader. With the memo, a small file can make it walk or copy the same large value again and again.
Each file here would need minutes or gigabytes, and is refused or inert at once."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.safe_pickle import SafePickleError
from rolloutdeck.safe_pickle.batches import open_batch, open_tensor_batch
from rolloutdeck.safe_pickle.batches.plain_values import PlainConverter, convert_to_plain
from rolloutdeck.safe_pickle.load import Unreadable, load_archive, load_pickle
from rolloutdeck.safe_pickle.stream import ByteSource
from tests.rolloutdeck.safe_pickle import assembler as asm
from tests.rolloutdeck.safe_pickle.assembler import TENSOR, build_repeated, memo_entry

pytestmark = pytest.mark.timeout(60)
MANY = 200_000


def read_pickle(data: bytes) -> Any:
    return load_pickle(ByteSource.from_bytes(data))


def measure_peak(data: bytes) -> int:
    """The peak memory of the reader while it reads a pickle, in bytes."""
    tracemalloc.start()
    try:
        read_pickle(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def build_repeated_call(name: str, arguments: bytes, times: int = 50_000) -> bytes:
    return build_repeated(
        asm.global_name(name) + b"\x940" + arguments + b"\x940", memo_entry(0) + memo_entry(1) + b"R", times
    )


LONG = asm.tuple_(*[asm.NONE] * MANY)
REBUILD_FROM_TYPE = "torch._tensor._rebuild_from_type_v2"


@pytest.mark.parametrize("name", ["os.system", TENSOR, "builtins.set"])
def test_a_call_with_very_many_arguments_is_inert_and_takes_no_time(name: str) -> None:
    assert read_pickle(build_repeated_call(name, LONG)) is None
    assert str(read_pickle(asm.build_pickle(asm.global_name(name) + LONG + b"R"))).startswith(f"unreadable: {name}")


def test_a_tensor_of_very_many_dimensions_is_inert_and_takes_no_time() -> None:
    long = LONG.replace(asm.NONE, b"K\x01") + b"\x94"
    call = asm.tuple_(asm.storage(16), asm.number(0), long, memo_entry(0), asm.FALSE, asm.EMPTY_DICT)
    arguments = asm.tuple_(asm.global_name(TENSOR), asm.NONE, call, asm.NONE)
    prepare = arguments + b"\x940" + asm.global_name(REBUILD_FROM_TYPE) + b"\x940"
    program = build_repeated(prepare, memo_entry(2) + memo_entry(1) + b"R", 50_000, 2)
    assert load_archive(ByteSource.from_bytes(asm.archive(asm.members(program, asm.BYTES)))) is None


@pytest.mark.parametrize(
    "argument",
    [
        LONG,
        asm.list_(*[asm.NONE] * MANY),
        b"}(" + b"".join(b"J" + struct.pack("<i", at) + b"N" for at in range(MANY)) + b"u",
    ],
    ids=["a tuple", "a list", "a dict"],
)
def test_a_long_argument_of_any_type_passed_again_and_again_is_refused(argument: bytes) -> None:
    with pytest.raises(SafePickleError, match="again and again"):
        read_pickle(build_repeated_call("builtins.set", argument + b"\x85"))


def test_objects_of_an_unknown_class_may_share_a_long_argument() -> None:
    assert read_pickle(build_repeated_call("reward.Score", asm.list_(*[asm.NONE] * MANY) + b"\x85")) is None


def test_a_global_with_a_long_name_takes_no_memory() -> None:
    long, short = asm.text("m" * 1_000_000), asm.text("f")
    again = (memo_entry(0) + short + b"\x93)R") * 100 + (short + memo_entry(0) + b"\x93)R") * 100
    result = asm.build_pickle(b"(" + long + b"\x94" + again + b"l")
    assert {str(value) for value in read_pickle(result)[1:]} == {"unreadable: a global with a long name"}
    assert measure_peak(result) < 10 << 20


def test_calls_of_one_unknown_global_share_its_name() -> None:
    name = asm.text("m" * 1000) + asm.text("f" * 1000) + b"\x93\x94"
    assert measure_peak(asm.build_pickle(b"(" + name + (memo_entry(0) + b")R") * 20_000 + b"l")) < 10 << 20


def test_the_names_of_tensors_on_unreadable_storages_do_not_grow() -> None:
    shape = asm.tuple_(asm.number(0), asm.EMPTY_TUPLE, asm.EMPTY_TUPLE)[1:-1]
    calls = b"".join(memo_entry(0) + b"(" + memo_entry(at) + shape + b"tR\x94" for at in range(1, 5000))
    values = read_pickle(
        asm.build_pickle(b"(" + asm.global_name(TENSOR) + b"\x94" + asm.new_object("x.Y") + b"\x94" + calls + b"l")
    )
    assert all(isinstance(value, Unreadable) and len(value.name) < 300 for value in values[1:])


# The plain values


SKYRL_BATCH = "skyrl_train.training_batch.TrainingInputBatch"
NUMBERS = b"".join(b"J" + struct.pack("<i", at) for at in range(10_000))
PAIRS = b"".join(b"J" + struct.pack("<i", at) + asm.NONE for at in range(10_000))
U4 = (asm.number(3), asm.text("<"), *[asm.NONE] * 3, asm.number(8_000_000), asm.number(4), asm.number(8))
TEXTS = asm.array(asm.bytes_(bytes(8_000_000)), 1, asm.dtype("U2000000", U4))
SHARED: dict[str, bytes] = {
    "a set": b"\x8f(" + NUMBERS + b"\x90",
    "a frozenset": b"(" + NUMBERS + b"\x91",
    "a batch of SkyRL": asm.new_object(SKYRL_BATCH) + b"(" + PAIRS + b"u",
    "a text of numpy": TEXTS,
    "bytes": asm.call("_codecs.encode", asm.text("x" * 4_000_000), asm.text("latin1")),
}


@pytest.mark.parametrize("value", SHARED.values(), ids=SHARED)
def test_a_value_shared_by_many_rows_counts_in_each_of_them(value: bytes) -> None:
    rows = read_pickle(asm.build_pickle(b"](" + value + b"\x94" + memo_entry(0) * 9999 + b"e"))
    with pytest.raises(SafePickleError, match="8,000,000"):
        convert_to_plain(rows)


def test_the_name_of_an_unreadable_value_counts_as_text() -> None:
    rows = [Unreadable("x" * 1000)] * 100
    PlainConverter(100).convert(rows[1:], 0)
    with pytest.raises(SafePickleError, match="values"):
        PlainConverter(1000, text_unit=8).convert(rows, 0)


def test_sets_and_a_batch_of_skyrl_become_plain() -> None:
    members = asm.number(1) + asm.text("a")
    body = asm.list_(
        b"\x8f(" + members + b"\x90", b"(" + members + b"\x91", asm.new_object(SKYRL_BATCH) + members + b"s"
    )
    assert convert_to_plain(read_pickle(asm.build_pickle(body))) == [{1, "a"}, frozenset((1, "a")), {1: "a"}]


# Images and batches


def test_images_that_share_their_colours_take_no_memory_each() -> None:
    colours = asm.list_(*[asm.number(at % 256) for at in range(768)])
    state = asm.list_(asm.NONE, asm.text("P"), asm.tuple_(asm.number(4), asm.number(1)), colours, asm.bytes_(b"1234"))
    image = memo_entry(0) + b")\x81" + memo_entry(1) + b"b"
    data = asm.build_pickle(
        b"(" + asm.global_name("PIL.Image.Image") + b"\x94" + state + b"\x94" + image * 10_000 + b"l"
    )
    assert measure_peak(data) < 10 << 20
    assert read_pickle(data)[2].encode().count(b"PLTE") == 1


def write_file(folder: Path, data: bytes) -> Path:
    path = folder / "file"
    path.write_bytes(data)
    return path


def test_the_tensors_of_a_batch_of_skyrl_that_share_their_bytes_are_read_once(tmp_path: Path) -> None:
    numbers = asm.list_(*[asm.NONE] * MANY) + b"0"
    inside = asm.torch_file(numbers + asm.tensor(asm.storage(2, kind="Long"), 2), bytes(16))
    tensors = asm.dict_(first=asm.bytes_(inside) + b"\x94", **{f"f{at}": memo_entry(0) for at in range(5000)})
    state = asm.dict_(batch_dict=tensors, batch_size=asm.number(2), metadata=asm.EMPTY_DICT)
    with open_tensor_batch(
        write_file(tmp_path, asm.build_pickle(asm.set_state(asm.new_object(SKYRL_BATCH), state)))
    ) as batch:
        assert len(batch.fields) == 5001 and batch.numbers("f4999", 1) == [0]


def build_queue_of_jagged_tensors(rows: int, fields: int, lengths: bytes = asm.NONE) -> bytes:
    """Each field has the same offsets. `lengths` is the storage of the lengths of its rows."""
    values = asm.tensor(asm.storage(8, "0", "Long"), 8)
    offsets = asm.tensor(asm.storage(rows + 1, "1", "Long"), rows + 1)
    jagged = asm.jagged_tensor(values, offsets).replace(asm.text("lengths") + asm.NONE, asm.text("lengths") + lengths)
    content = asm.tensordict(first=jagged + b"\x94", **{f"f{at}": memo_entry(0) for at in range(fields - 1)})
    return asm.archive(asm.members(asm.queue_pickle(content), bytes(64), bytes(8 * rows + 8), struct.pack("<2q", 8, 8)))


def test_jagged_tensors_of_very_many_rows_together_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutdeck.safe_pickle.batches.fields.FREE_JAGGED_ROWS", 2 * MANY)
    path = write_file(tmp_path, build_queue_of_jagged_tensors(MANY, 1000))
    with pytest.raises(SafePickleError, match="rows of jagged tensors"), open_batch(path):
        pass


def build_queue_of_separate_tensors(rows: int, fields: int) -> bytes:
    """Each field has its own offsets, and one value per row."""
    content, storages = {}, []
    for at in range(0, 2 * fields, 2):
        values = asm.tensor(asm.storage(rows, str(at), "Byte"), rows)
        offsets = asm.tensor(asm.storage(rows + 1, str(at + 1), "Long"), rows + 1)
        content[f"f{at}"] = asm.jagged_tensor(values, offsets)
        storages += [bytes(rows), struct.pack(f"<{rows + 1}q", *range(rows + 1))]
    tensordict = asm.tensordict(**content).replace(asm.tuple_(asm.number(2)), asm.tuple_(asm.number(rows)))
    repeated = asm.list_(*[asm.NONE] * rows)
    return asm.torch_file(asm.dict_(tensordict=tensordict, keys=repeated, tags=repeated), *storages)


def test_a_large_file_may_have_more_rows_of_jagged_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutdeck.safe_pickle.batches.fields.FREE_JAGGED_ROWS", 1000)
    with open_batch(write_file(tmp_path, build_queue_of_separate_tensors(500, 33))) as batch:
        assert len(batch.fields) == 33 and batch.fields["f2"].shape == (500, 1)
        assert batch.numbers("f64", 499) == [0]


def test_the_rows_of_a_jagged_tensor_take_little_memory(tmp_path: Path) -> None:
    path = write_file(tmp_path, build_queue_of_separate_tensors(20_000, 10))
    tracemalloc.start()
    with open_batch(path) as batch:
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert batch.rows == 20_000
    assert size < 200_000 * 24


def test_rows_of_raw_nested_tensors_may_be_very_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutdeck.safe_pickle.batches.fields.FREE_JAGGED_ROWS", 100)
    kind = asm.dtype("u1", (asm.number(3), asm.text("|"), *asm.SIMPLE[2:]))
    block = asm.tuple_(asm.text("int64"), asm.tuple_(asm.number(1)), asm.array(asm.bytes_(bytes(8)), 8, kind))
    fields = {f"f{at}": asm.tuple_(asm.text("jagged"), asm.list_(*[block] * 200)) for at in range(3)}
    data = asm.proto(asm.tuple_(asm.tuple_(asm.number(200)), asm.NONE, asm.dict_(**fields)))
    with open_batch(write_file(tmp_path, data)) as batch:
        assert batch.numbers("f2", 199) == [0]


def test_a_jagged_tensor_whose_rows_overlap_is_refused(tmp_path: Path) -> None:
    lengths = asm.tensor(asm.storage(2, "2", "Long"), 2)
    path = write_file(tmp_path, build_queue_of_jagged_tensors(2, 1, lengths))
    with pytest.raises(SafePickleError, match="overlap"), open_batch(path):
        pass


def test_a_jagged_tensor_whose_offsets_differ_by_more_than_64_bits_is_refused(tmp_path: Path) -> None:
    values, offsets = asm.tensor(asm.storage(8, "0", "Long"), 8), asm.tensor(asm.storage(4, "1", "Long"), 4)
    ends = struct.pack("<4q", 0, (1 << 63) - 1, -(1 << 63), 0)
    data = asm.archive(
        asm.members(asm.queue_pickle(asm.tensordict(a=asm.jagged_tensor(values, offsets))), bytes(64), ends)
    )
    with pytest.raises(SafePickleError, match="beyond its values"), open_batch(write_file(tmp_path, data)):
        pass


def test_values_of_the_meta_info_that_are_shared_count_each_time(tmp_path: Path) -> None:
    long = asm.list_(*[asm.NONE] * 100_000)
    meta = asm.dict_(first=long + b"\x94", **{f"m{at}": memo_entry(0) for at in range(2000)})
    path = write_file(tmp_path, asm.proto(asm.NONE, meta=meta))
    with open_batch(path) as batch, pytest.raises(SafePickleError, match="8,000,000"):
        assert batch.meta


def test_keys_that_are_shared_count_each_time(tmp_path: Path) -> None:
    key = asm.list_(*[asm.NONE] * 100_000)
    keys = asm.list_(key + b"\x94", *[memo_entry(0)] * 1999)
    size = asm.tuple_(asm.number(2000))
    content = asm.tensordict().replace(asm.tuple_(asm.number(2)), size)
    body = asm.dict_(tensordict=content, keys=keys, tags=asm.list_(*[asm.NONE] * 2000))
    with (
        open_batch(write_file(tmp_path, asm.torch_file(body))) as batch,
        pytest.raises(SafePickleError, match="8,000,000"),
    ):
        assert batch.keys


def test_raw_nested_tensors_of_very_many_rows_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolloutdeck.safe_pickle.batches.fields.FREE_JAGGED_ROWS", 2 * MANY)
    content = asm.array(asm.bytes_(bytes(8)), 8, asm.dtype("u1", (asm.number(3), asm.text("|"), *asm.SIMPLE[2:])))
    block = asm.tuple_(asm.text("int64"), asm.tuple_(asm.number(1)), content)
    nested = asm.tuple_(asm.text("jagged"), asm.list_(block + b"\x94", *[memo_entry(0)] * MANY))
    fields = asm.dict_(first=nested + b"\x94", **{f"f{at}": memo_entry(1) for at in range(1000)})
    data = asm.proto(asm.tuple_(asm.tuple_(asm.number(MANY + 1)), asm.NONE, fields))
    with pytest.raises(SafePickleError, match="rows of jagged tensors"), open_batch(write_file(tmp_path, data)):
        pass
