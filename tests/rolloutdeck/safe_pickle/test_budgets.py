"""A small file can make the verifier and the reader walk or copy the same large value again and again: by the memo, for
a few bytes each time. Each file here would take minutes or gigabytes, and is refused at once."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.safe_pickle import SafePickleError, SafetyReport
from rolloutdeck.safe_pickle.batches import open_batch, open_tensor_batch
from rolloutdeck.safe_pickle.batches.plain_values import PlainConverter, convert_to_plain
from rolloutdeck.safe_pickle.load import Unreadable, load_archive, load_pickle
from rolloutdeck.safe_pickle.safety_report import check_source_safety
from rolloutdeck.safe_pickle.stream import ByteSource
from tests.rolloutdeck.safe_pickle import assembler as made

pytestmark = pytest.mark.timeout(60)
AGAIN = "it passes the same large values to calls again and again."
MANY = 200_000


def check_bytes(data: bytes) -> SafetyReport:
    return check_source_safety(ByteSource.from_bytes(data))


def get(index: int) -> bytes:
    """The memo entry with this number."""
    return b"j" + struct.pack("<I", index)


def build_doubled_tuple(levels: int) -> bytes:
    """A tuple of the tuple before it, twice; the first one has one value. Fills the memo from 0."""
    body = made.NONE + b"\x85\x94"
    for level in range(levels):
        body += b"0" + get(level) * 2 + b"\x86\x94"
    return body


# The verifier


@pytest.mark.parametrize(
    "use",
    [
        lambda key: b"0}" + key + made.NONE + b"s",
        lambda key: b"0\x8f(" + key + b"\x90",
        lambda key: b"0(" + key + b"\x91",
        lambda key: b"0" + made.call("builtins.set", made.listed(key)),
    ],
    ids=["a dict", "a set", "a frozenset", "a call of set"],
)
def test_a_key_that_unfolds_to_a_thousand_million_values_is_refused(use: Callable[[bytes], bytes]) -> None:
    report = check_bytes(made.pickled(build_doubled_tuple(30) + use(get(30))))
    assert any("a key that is not a plain value" in reason or "not plain" in reason for reason in report.reasons)


@pytest.mark.parametrize("values", [500, 100_000], ids=["short", "the tokens of a prompt"])
def test_a_tuple_of_plain_values_is_a_key(values: int) -> None:
    key = made.row(made.text("x" * 5000), made.number(1), made.row(), made.row(*[made.NONE] * values))
    column = made.objects(b"}" + key + made.NONE + b"s", made.call("builtins.set", made.listed(key)))
    assert check_bytes(made.proto(columns=made.mapped(a=column))).reasons == ()


def nest_tensordicts(levels: int) -> bytes:
    """A tensordict with the one below it twice; the lowest one is empty. Fills the memo from 0."""
    body = made.tensordict() + b"\x94"
    for level in range(levels):
        body += b"0" + made.tensordict(first=get(level), second=get(level)) + b"\x94"
    return body


def test_tensordicts_that_unfold_to_a_thousand_million_fields_are_refused() -> None:
    assert AGAIN not in check_bytes(made.pickled(nest_tensordicts(8))).reasons
    assert AGAIN in check_bytes(made.pickled(nest_tensordicts(30))).reasons


def build_repeated(prepare: bytes, use: bytes, times: int, protocol: int = 4) -> bytes:
    """A pickle that fills the memo by `prepare`, and then builds the same value again and again. Its value is None."""
    return made.pickled(made.NONE + prepare + (use + b"0") * times, protocol)


def build_repeated_set(length: int, times: int) -> bytes:
    prepare = made.named("builtins.set") + b"\x940" + made.listed(*[made.NONE] * length) + b"\x940"
    return build_repeated(prepare, get(0) + get(1) + b"\x85R", times)


def build_repeated_leaves() -> bytes:
    leaves = made.mapped(**{f"f{number}": get(0) for number in range(20_000)})
    prepare = made.leaf("torch.int64", 2, 0, 16) + b"\x940" + leaves + b"\x940" + made.EMPTY_DICT + b"\x940"
    settings = made.mapped(device=made.NONE, batch_size=made.listed(made.number(2)))
    prepare += settings + b"\x940" + made.tensor(made.storage(16), 16) + b"\x940"
    metadata = made.mapped(cls=made.text("TensorDict"), non_tensors=get(2), leaves=get(1), cls_metadata=get(3))
    use = made.call("tensordict._reductions._rebuild_tensordict_files_consolidated", metadata, get(4))
    return made.archive(made.members(build_repeated(prepare, use, 5000, 2), made.BYTES))


def build_repeated_tensordict() -> bytes:
    content = made.mapped(**{f"f{number}": get(0) for number in range(MANY)})
    prepare = made.tensor(made.storage(16), 16) + b"\x940" + content + b"\x940"
    prepare += made.call("torch.Size", made.row(made.number(2))) + b"\x940"
    state = made.mapped(_tensordict=get(1), _device=made.NONE, _batch_size=get(2), _td_dim_names=made.NONE)
    use = made.call("tensordict._reductions._make_td", made.named("tensordict._td.TensorDict"), state)
    return made.archive(made.members(build_repeated(prepare, use, 5000, 2), made.BYTES))


def build_repeated_stack() -> bytes:
    prepare = made.value(made.NONE) + b"\x940" + made.listed(*[get(0)] * MANY) + b"\x940"
    state = made.mapped(stack_dim=made.number(0), _batch_size=made.row(made.number(2)), tensordicts=get(1))
    use = made.set_state(made.new("tensordict.tensorclass.NonTensorStack"), state)
    return build_repeated(prepare, use, 10_000)


def build_repeated_jagged() -> bytes:
    """The offsets are read from the archive for each tensor."""
    values, offsets = made.tensor(made.storage(8, "0", "Long"), 8), made.tensor(made.storage(MANY, "1", "Long"), MANY)
    prepare = values + b"\x940" + offsets + b"\x940"
    program = build_repeated(prepare, made.jagged(get(0), get(1)), 5000, 2)
    return made.archive(made.members(program, bytes(64), bytes(8 * MANY)))


def build_repeated_embedded() -> bytes:
    """Each archive in it stays within the limit."""
    inside = made.archive(made.members(build_repeated_set(10_000, 100)))
    return made.proto(columns=made.mapped(a=made.objects(*[made.call(LOADED, made.data(inside))] * 10)))


def build_repeated_keys() -> bytes:
    """A dict hashes its keys, also a tuple of many values."""
    return build_repeated(made.row(*[made.NONE] * MANY) + b"\x940" + b"}\x94", get(0) + made.NONE + b"s" + get(1), 5000)


LOADED = "torch.storage._load_from_bytes"
REPEATED: dict[str, Callable[[], bytes]] = {
    "a list in a set": lambda: build_repeated_set(MANY, 50_000),
    "the fields of a consolidated tensordict": build_repeated_leaves,
    "the fields of a tensordict": build_repeated_tensordict,
    "the rows of a column": build_repeated_stack,
    "the offsets of a jagged tensor": build_repeated_jagged,
    "archives in it": build_repeated_embedded,
    "a long key": build_repeated_keys,
}


@pytest.mark.parametrize("build", REPEATED.values(), ids=REPEATED)
def test_a_large_value_passed_to_calls_again_and_again_is_refused(
    build: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolloutdeck.safe_pickle.verify.abstract_values.FREE_WORK", 500_000)
    report = check_bytes(build())
    assert not report.loadable and report.reasons[0].endswith(AGAIN)


def test_thirty_jagged_fields_that_share_their_offsets_are_loadable() -> None:
    values, offsets = made.tensor(made.storage(8, "0", "Long"), 8), made.tensor(made.storage(MANY, "1", "Long"), MANY)
    others = {f"f{number}": made.jagged(get(0), get(1)) for number in range(30)}
    fields = made.mapped(first=made.jagged(values + b"\x94", offsets + b"\x94"), **others)
    data = made.archive(made.members(made.pickled(fields, 2), bytes(64), bytes(8 * MANY)))
    assert check_bytes(data).reasons == ()


def test_sets_of_the_same_list_share_its_memory() -> None:
    data = build_repeated_set(100_000, 40).replace(b"R0", b"R")
    data = data[:2] + b"(" + data[2:-1] + b"l."
    tracemalloc.start()
    check_bytes(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20


GIB = 1 << 30


def build_tensors(tensors: bytes) -> bytes:
    """A file with a storage of one number, and a list of tensors."""
    return made.archive(made.members(made.pickled(tensors, 2), bytes(1)))


def expand(length: int) -> bytes:
    """A tensor of `length` equal bytes."""
    return made.tensor(made.storage(1), length, 0)


def build_shared_field(times: int) -> bytes:
    """A TensorDict with the same tensor of 7 GiB in each field."""
    shared = {f"f{number}": get(0) for number in range(times - 1)}
    return made.tensordict(first=expand(7 * GIB) + b"\x94", **shared)


def build_jagged_fields(times: int) -> bytes:
    """Jagged tensors that share their values: 7 GiB."""
    size, stride = made.row(made.number(1), made.number(7 * GIB)), made.row(made.number(0), made.number(0))
    values = made.call(TENSOR, made.storage(1), made.number(0), size, stride, made.FALSE, made.HOOKS)
    offsets = made.tensor(made.storage(2, "1", "Long"), 2)
    jagged = {f"f{number}": made.jagged(get(0), get(1)) for number in range(times - 1)}
    content = made.tensordict(first=made.jagged(values + b"\x94", offsets + b"\x94"), **jagged)
    return made.archive(made.members(made.pickled(content, 2), bytes(1), bytes(16)))


@pytest.mark.parametrize(
    "build",
    [
        lambda times: build_tensors(made.listed(*[expand(7 * GIB)] * times)),
        lambda times: build_tensors(build_shared_field(times)),
        build_jagged_fields,
    ],
    ids=["tensors of one storage", "a tensor in several fields", "jagged tensors of the same values"],
)
def test_tensors_that_become_too_large_as_copies_are_refused_together(build: Callable[[int], bytes]) -> None:
    assert check_bytes(build(2)).reasons == ()
    report = check_bytes(build(3))
    assert "its tensors would take more than 17,179,869,184 bytes as copies" in report.reasons[0]


def test_the_tensors_of_a_large_file_may_be_expanded_to_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutdeck.safe_pickle.verify.abstract_values.FREE_TENSOR_BYTES", 1 << 20)
    storage, field = bytes(1 << 20), made.expanded(made.storage(1 << 20), 60, 1 << 20)
    assert check_bytes(made.archive(made.members(made.pickled(field, 2), storage))).reasons == ()
    fields = made.listed(field, field)
    assert not check_bytes(made.archive(made.members(made.pickled(fields, 2), storage))).loadable


def test_the_fields_of_a_consolidated_tensordict_that_share_bytes_count_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutdeck.safe_pickle.verify.abstract_values.FREE_TENSOR_BYTES", 1 << 20)
    storage, leaf = bytes(1 << 20), made.leaf("torch.uint8", 1 << 20, 0, 1 << 20)
    for count, loadable in ((1, True), (60, True), (100, False)):
        leaves = {f"f{number}": leaf for number in range(count)}
        content = made.consolidated(made.tensor(made.storage(1 << 20), 1 << 20), **leaves)
        assert check_bytes(made.archive(made.members(made.pickled(content, 2), storage))).loadable == loadable


# The reader


def read(data: bytes) -> Any:
    return load_pickle(ByteSource.from_bytes(data))


def measure_peak(data: bytes) -> int:
    """The most memory while the reader reads a pickle, in bytes."""
    tracemalloc.start()
    try:
        read(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def build_repeated_call(name: str, arguments: bytes, times: int = 50_000) -> bytes:
    return build_repeated(made.named(name) + b"\x940" + arguments + b"\x940", get(0) + get(1) + b"R", times)


LONG = made.row(*[made.NONE] * MANY)
TENSOR = "torch._utils._rebuild_tensor_v2"
TYPED = "torch._tensor._rebuild_from_type_v2"


@pytest.mark.parametrize("name", ["os.system", TENSOR, "builtins.set"])
def test_a_call_with_very_many_arguments_is_inert_and_takes_no_time(name: str) -> None:
    assert read(build_repeated_call(name, LONG)) is None
    assert str(read(made.pickled(made.named(name) + LONG + b"R"))).startswith(f"unreadable: {name}")


def test_a_tensor_of_very_many_dimensions_is_inert_and_takes_no_time() -> None:
    long = LONG.replace(made.NONE, b"K\x01") + b"\x94"
    call = made.row(made.storage(16), made.number(0), long, get(0), made.FALSE, made.EMPTY_DICT)
    arguments = made.row(made.named(TENSOR), made.NONE, call, made.NONE)
    prepare = arguments + b"\x940" + made.named(TYPED) + b"\x940"
    program = build_repeated(prepare, get(2) + get(1) + b"R", 50_000, 2)
    assert load_archive(ByteSource.from_bytes(made.archive(made.members(program, made.BYTES)))) is None


@pytest.mark.parametrize(
    "argument",
    [
        LONG,
        made.listed(*[made.NONE] * MANY),
        b"}(" + b"".join(b"J" + struct.pack("<i", at) + b"N" for at in range(MANY)) + b"u",
    ],
    ids=["a tuple", "a list", "a dict"],
)
def test_a_long_argument_of_any_type_passed_again_and_again_is_refused(argument: bytes) -> None:
    with pytest.raises(SafePickleError, match="again and again"):
        read(build_repeated_call("builtins.set", argument + b"\x85"))


def test_objects_of_an_unknown_class_may_share_a_long_argument() -> None:
    assert read(build_repeated_call("reward.Score", made.listed(*[made.NONE] * MANY) + b"\x85")) is None


def test_a_global_with_a_long_name_takes_no_memory() -> None:
    long, short = made.text("m" * 1_000_000), made.text("f")
    again = (get(0) + short + b"\x93)R") * 100 + (short + get(0) + b"\x93)R") * 100
    result = made.pickled(b"(" + long + b"\x94" + again + b"l")
    assert {str(value) for value in read(result)[1:]} == {"unreadable: a global with a long name"}
    assert measure_peak(result) < 10 << 20


def test_calls_of_one_unknown_global_share_its_name() -> None:
    name = made.text("m" * 1000) + made.text("f" * 1000) + b"\x93\x94"
    assert measure_peak(made.pickled(b"(" + name + (get(0) + b")R") * 20_000 + b"l")) < 10 << 20


def test_the_names_of_tensors_on_unreadable_storages_do_not_grow() -> None:
    shape = made.row(made.number(0), made.EMPTY_TUPLE, made.EMPTY_TUPLE)[1:-1]
    calls = b"".join(get(0) + b"(" + get(at) + shape + b"tR\x94" for at in range(1, 5000))
    values = read(made.pickled(b"(" + made.named(TENSOR) + b"\x94" + made.new("x.Y") + b"\x94" + calls + b"l"))
    assert all(isinstance(value, Unreadable) and len(value.name) < 300 for value in values[1:])


# The plain values


SKYRL_BATCH = "skyrl_train.training_batch.TrainingInputBatch"
NUMBERS = b"".join(b"J" + struct.pack("<i", at) for at in range(10_000))
PAIRS = b"".join(b"J" + struct.pack("<i", at) + made.NONE for at in range(10_000))
U4 = (made.number(3), made.text("<"), *[made.NONE] * 3, made.number(8_000_000), made.number(4), made.number(8))
TEXTS = made.array(made.data(bytes(8_000_000)), 1, made.dtype("U2000000", U4))
SHARED: dict[str, bytes] = {
    "a set": b"\x8f(" + NUMBERS + b"\x90",
    "a frozenset": b"(" + NUMBERS + b"\x91",
    "a batch of SkyRL": made.new(SKYRL_BATCH) + b"(" + PAIRS + b"u",
    "a text of numpy": TEXTS,
    "bytes": made.call("_codecs.encode", made.text("x" * 4_000_000), made.text("latin1")),
}


@pytest.mark.parametrize("value", SHARED.values(), ids=SHARED)
def test_a_value_shared_by_many_rows_counts_in_each_of_them(value: bytes) -> None:
    rows = read(made.pickled(b"](" + value + b"\x94" + get(0) * 9999 + b"e"))
    with pytest.raises(SafePickleError, match="8,000,000"):
        convert_to_plain(rows)


def test_the_name_of_an_unreadable_value_counts_as_text() -> None:
    rows = [Unreadable("x" * 1000)] * 100
    PlainConverter(100).convert(rows[1:], 0)
    with pytest.raises(SafePickleError, match="values"):
        PlainConverter(1000, text_unit=8).convert(rows, 0)


def test_sets_and_a_batch_of_skyrl_become_plain() -> None:
    members = made.number(1) + made.text("a")
    body = made.listed(b"\x8f(" + members + b"\x90", b"(" + members + b"\x91", made.new(SKYRL_BATCH) + members + b"s")
    assert convert_to_plain(read(made.pickled(body))) == [{1, "a"}, frozenset((1, "a")), {1: "a"}]


# Images and batches


def test_images_that_share_their_colours_take_no_memory_each() -> None:
    colours = made.listed(*[made.number(at % 256) for at in range(768)])
    state = made.listed(
        made.NONE, made.text("P"), made.row(made.number(4), made.number(1)), colours, made.data(b"1234")
    )
    image = get(0) + b")\x81" + get(1) + b"b"
    data = made.pickled(b"(" + made.named("PIL.Image.Image") + b"\x94" + state + b"\x94" + image * 10_000 + b"l")
    assert measure_peak(data) < 10 << 20
    assert read(data)[2].encode().count(b"PLTE") == 1


def write_file(folder: Path, data: bytes) -> Path:
    path = folder / "file"
    path.write_bytes(data)
    return path


def test_the_tensors_of_a_batch_of_skyrl_that_share_their_bytes_are_read_once(tmp_path: Path) -> None:
    numbers = made.listed(*[made.NONE] * MANY) + b"0"
    inside = made.saved(numbers + made.tensor(made.storage(2, kind="Long"), 2), bytes(16))
    tensors = made.mapped(first=made.data(inside) + b"\x94", **{f"f{at}": get(0) for at in range(5000)})
    state = made.mapped(batch_dict=tensors, batch_size=made.number(2), metadata=made.EMPTY_DICT)
    with open_tensor_batch(write_file(tmp_path, made.pickled(made.set_state(made.new(SKYRL_BATCH), state)))) as batch:
        assert len(batch.fields) == 5001 and batch.numbers("f4999", 1) == [0]


def build_queue_of_jagged_tensors(rows: int, fields: int, lengths: bytes = made.NONE) -> bytes:
    """Each field has the same offsets. `lengths` is the storage of the lengths of its rows."""
    values = made.tensor(made.storage(8, "0", "Long"), 8)
    offsets = made.tensor(made.storage(rows + 1, "1", "Long"), rows + 1)
    jagged = made.jagged(values, offsets).replace(made.text("lengths") + made.NONE, made.text("lengths") + lengths)
    content = made.tensordict(first=jagged + b"\x94", **{f"f{at}": get(0) for at in range(fields - 1)})
    return made.archive(made.members(made.queue(content), bytes(64), bytes(8 * rows + 8), struct.pack("<2q", 8, 8)))


def test_jagged_tensors_of_very_many_rows_together_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutdeck.safe_pickle.batches.fields.FREE_JAGGED_ROWS", 2 * MANY)
    path = write_file(tmp_path, build_queue_of_jagged_tensors(MANY, 1000))
    with pytest.raises(SafePickleError, match="rows of jagged tensors"), open_batch(path):
        pass


def build_queue_of_separate_tensors(rows: int, fields: int) -> bytes:
    """Each field has its own offsets, and one value per row."""
    content, storages = {}, []
    for at in range(0, 2 * fields, 2):
        values = made.tensor(made.storage(rows, str(at), "Byte"), rows)
        offsets = made.tensor(made.storage(rows + 1, str(at + 1), "Long"), rows + 1)
        content[f"f{at}"] = made.jagged(values, offsets)
        storages += [bytes(rows), struct.pack(f"<{rows + 1}q", *range(rows + 1))]
    tensordict = made.tensordict(**content).replace(made.row(made.number(2)), made.row(made.number(rows)))
    repeated = made.listed(*[made.NONE] * rows)
    return made.saved(made.mapped(tensordict=tensordict, keys=repeated, tags=repeated), *storages)


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
    kind = made.dtype("u1", (made.number(3), made.text("|"), *made.SIMPLE[2:]))
    block = made.row(made.text("int64"), made.row(made.number(1)), made.array(made.data(bytes(8)), 8, kind))
    fields = {f"f{at}": made.row(made.text("jagged"), made.listed(*[block] * 200)) for at in range(3)}
    data = made.proto(made.row(made.row(made.number(200)), made.NONE, made.mapped(**fields)))
    with open_batch(write_file(tmp_path, data)) as batch:
        assert batch.numbers("f2", 199) == [0]


def test_a_jagged_tensor_whose_rows_overlap_is_refused(tmp_path: Path) -> None:
    lengths = made.tensor(made.storage(2, "2", "Long"), 2)
    path = write_file(tmp_path, build_queue_of_jagged_tensors(2, 1, lengths))
    with pytest.raises(SafePickleError, match="overlap"), open_batch(path):
        pass


def test_a_jagged_tensor_whose_offsets_differ_by_more_than_64_bits_is_refused(tmp_path: Path) -> None:
    values, offsets = made.tensor(made.storage(8, "0", "Long"), 8), made.tensor(made.storage(4, "1", "Long"), 4)
    ends = struct.pack("<4q", 0, (1 << 63) - 1, -(1 << 63), 0)
    data = made.archive(made.members(made.queue(made.tensordict(a=made.jagged(values, offsets))), bytes(64), ends))
    with pytest.raises(SafePickleError, match="beyond its values"), open_batch(write_file(tmp_path, data)):
        pass


def test_values_of_the_meta_info_that_are_shared_count_each_time(tmp_path: Path) -> None:
    long = made.listed(*[made.NONE] * 100_000)
    meta = made.mapped(first=long + b"\x94", **{f"m{at}": get(0) for at in range(2000)})
    path = write_file(tmp_path, made.proto(made.NONE, meta=meta))
    with open_batch(path) as batch, pytest.raises(SafePickleError, match="8,000,000"):
        assert batch.meta


def test_keys_that_are_shared_count_each_time(tmp_path: Path) -> None:
    key = made.listed(*[made.NONE] * 100_000)
    keys = made.listed(key + b"\x94", *[get(0)] * 1999)
    size = made.row(made.number(2000))
    content = made.tensordict().replace(made.row(made.number(2)), size)
    body = made.mapped(tensordict=content, keys=keys, tags=made.listed(*[made.NONE] * 2000))
    with open_batch(write_file(tmp_path, made.saved(body))) as batch, pytest.raises(SafePickleError, match="8,000,000"):
        assert batch.keys


def test_raw_nested_tensors_of_very_many_rows_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolloutdeck.safe_pickle.batches.fields.FREE_JAGGED_ROWS", 2 * MANY)
    content = made.array(made.data(bytes(8)), 8, made.dtype("u1", (made.number(3), made.text("|"), *made.SIMPLE[2:])))
    block = made.row(made.text("int64"), made.row(made.number(1)), content)
    nested = made.row(made.text("jagged"), made.listed(block + b"\x94", *[get(0)] * MANY))
    fields = made.mapped(first=nested + b"\x94", **{f"f{at}": get(1) for at in range(1000)})
    data = made.proto(made.row(made.row(made.number(MANY + 1)), made.NONE, fields))
    with pytest.raises(SafePickleError, match="rows of jagged tensors"), open_batch(write_file(tmp_path, data)):
        pass
