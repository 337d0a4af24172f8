"""The budget of the verifier. With the memo, a small file can make it walk the same large value again and again. Each
file here would need minutes or gigabytes, and is refused at once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from rolloutdeck.safe_pickle import SafetyReport
from rolloutdeck.safe_pickle.safety_report import check_source_safety
from rolloutdeck.safe_pickle.stream import ByteSource
from tests.rolloutdeck.safe_pickle import assembler as asm
from tests.rolloutdeck.safe_pickle.assembler import TENSOR, build_repeated, memo_entry

pytestmark = pytest.mark.timeout(60)
AGAIN = "it passes the same large values to calls again and again."
MANY = 200_000


def check_bytes(data: bytes) -> SafetyReport:
    return check_source_safety(ByteSource.from_bytes(data))


def build_doubled_tuple(levels: int) -> bytes:
    """A tuple of the tuple before it, twice; the first one has one value. Fills the memo from 0."""
    body = asm.NONE + b"\x85\x94"
    for level in range(levels):
        body += b"0" + memo_entry(level) * 2 + b"\x86\x94"
    return body


@pytest.mark.parametrize(
    "use",
    [
        lambda key: b"0}" + key + asm.NONE + b"s",
        lambda key: b"0\x8f(" + key + b"\x90",
        lambda key: b"0(" + key + b"\x91",
        lambda key: b"0" + asm.call("builtins.set", asm.list_(key)),
    ],
    ids=["a dict", "a set", "a frozenset", "a call of set"],
)
def test_a_key_that_unfolds_to_a_thousand_million_values_is_refused(use: Callable[[bytes], bytes]) -> None:
    report = check_bytes(asm.build_pickle(build_doubled_tuple(30) + use(memo_entry(30))))
    assert any("a key that is not a plain value" in reason or "not plain" in reason for reason in report.reasons)


@pytest.mark.parametrize("values", [500, 100_000], ids=["short", "the tokens of a prompt"])
def test_a_tuple_of_plain_values_is_a_key(values: int) -> None:
    key = asm.tuple_(asm.text("x" * 5000), asm.number(1), asm.tuple_(), asm.tuple_(*[asm.NONE] * values))
    column = asm.object_array(b"}" + key + asm.NONE + b"s", asm.call("builtins.set", asm.list_(key)))
    assert check_bytes(asm.proto(columns=asm.dict_(a=column))).reasons == ()


def nest_tensordicts(levels: int) -> bytes:
    """A tensordict with the one below it twice; the lowest one is empty. Fills the memo from 0."""
    body = asm.tensordict() + b"\x94"
    for level in range(levels):
        body += b"0" + asm.tensordict(first=memo_entry(level), second=memo_entry(level)) + b"\x94"
    return body


def test_tensordicts_that_unfold_to_a_thousand_million_fields_are_refused() -> None:
    assert AGAIN not in check_bytes(asm.build_pickle(nest_tensordicts(8))).reasons
    assert AGAIN in check_bytes(asm.build_pickle(nest_tensordicts(30))).reasons


def build_repeated_set(length: int, times: int) -> bytes:
    prepare = asm.global_name("builtins.set") + b"\x940" + asm.list_(*[asm.NONE] * length) + b"\x940"
    return build_repeated(prepare, memo_entry(0) + memo_entry(1) + b"\x85R", times)


def build_repeated_leaves() -> bytes:
    leaves = asm.dict_(**{f"f{number}": memo_entry(0) for number in range(20_000)})
    prepare = asm.leaf("torch.int64", 2, 0, 16) + b"\x940" + leaves + b"\x940" + asm.EMPTY_DICT + b"\x940"
    settings = asm.dict_(device=asm.NONE, batch_size=asm.list_(asm.number(2)))
    prepare += settings + b"\x940" + asm.tensor(asm.storage(16), 16) + b"\x940"
    metadata = asm.dict_(
        cls=asm.text("TensorDict"), non_tensors=memo_entry(2), leaves=memo_entry(1), cls_metadata=memo_entry(3)
    )
    use = asm.call("tensordict._reductions._rebuild_tensordict_files_consolidated", metadata, memo_entry(4))
    return asm.archive(asm.members(build_repeated(prepare, use, 5000, 2), asm.BYTES))


def build_repeated_tensordict() -> bytes:
    content = asm.dict_(**{f"f{number}": memo_entry(0) for number in range(MANY)})
    prepare = asm.tensor(asm.storage(16), 16) + b"\x940" + content + b"\x940"
    prepare += asm.call("torch.Size", asm.tuple_(asm.number(2))) + b"\x940"
    state = asm.dict_(_tensordict=memo_entry(1), _device=asm.NONE, _batch_size=memo_entry(2), _td_dim_names=asm.NONE)
    use = asm.call("tensordict._reductions._make_td", asm.global_name("tensordict._td.TensorDict"), state)
    return asm.archive(asm.members(build_repeated(prepare, use, 5000, 2), asm.BYTES))


def build_repeated_stack() -> bytes:
    prepare = asm.non_tensor_data(asm.NONE) + b"\x940" + asm.list_(*[memo_entry(0)] * MANY) + b"\x940"
    state = asm.dict_(stack_dim=asm.number(0), _batch_size=asm.tuple_(asm.number(2)), tensordicts=memo_entry(1))
    use = asm.set_state(asm.new_object("tensordict.tensorclass.NonTensorStack"), state)
    return build_repeated(prepare, use, 10_000)


def build_repeated_jagged() -> bytes:
    """The offsets are read from the archive for each tensor."""
    values, offsets = asm.tensor(asm.storage(8, "0", "Long"), 8), asm.tensor(asm.storage(MANY, "1", "Long"), MANY)
    prepare = values + b"\x940" + offsets + b"\x940"
    program = build_repeated(prepare, asm.jagged_tensor(memo_entry(0), memo_entry(1)), 5000, 2)
    return asm.archive(asm.members(program, bytes(64), bytes(8 * MANY)))


def build_repeated_embedded() -> bytes:
    """Each archive in it stays within the limit."""
    inside = asm.archive(asm.members(build_repeated_set(10_000, 100)))
    return asm.proto(columns=asm.dict_(a=asm.object_array(*[asm.call(LOADED, asm.bytes_(inside))] * 10)))


def build_repeated_keys() -> bytes:
    """A dict hashes its keys, also a tuple of many values."""
    return build_repeated(
        asm.tuple_(*[asm.NONE] * MANY) + b"\x940" + b"}\x94", memo_entry(0) + asm.NONE + b"s" + memo_entry(1), 5000
    )


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
    values, offsets = asm.tensor(asm.storage(8, "0", "Long"), 8), asm.tensor(asm.storage(MANY, "1", "Long"), MANY)
    others = {f"f{number}": asm.jagged_tensor(memo_entry(0), memo_entry(1)) for number in range(30)}
    fields = asm.dict_(first=asm.jagged_tensor(values + b"\x94", offsets + b"\x94"), **others)
    data = asm.archive(asm.members(asm.build_pickle(fields, 2), bytes(64), bytes(8 * MANY)))
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
    return asm.archive(asm.members(asm.build_pickle(tensors, 2), bytes(1)))


def expand(length: int) -> bytes:
    """A tensor of `length` equal bytes."""
    return asm.tensor(asm.storage(1), length, 0)


def build_shared_field(times: int) -> bytes:
    """A TensorDict with the same tensor of 7 GiB in each field."""
    shared = {f"f{number}": memo_entry(0) for number in range(times - 1)}
    return asm.tensordict(first=expand(7 * GIB) + b"\x94", **shared)


def build_jagged_fields(times: int) -> bytes:
    """Jagged tensors that share their values: 7 GiB."""
    size, stride = asm.tuple_(asm.number(1), asm.number(7 * GIB)), asm.tuple_(asm.number(0), asm.number(0))
    values = asm.call(TENSOR, asm.storage(1), asm.number(0), size, stride, asm.FALSE, asm.HOOKS)
    offsets = asm.tensor(asm.storage(2, "1", "Long"), 2)
    jagged = {f"f{number}": asm.jagged_tensor(memo_entry(0), memo_entry(1)) for number in range(times - 1)}
    content = asm.tensordict(first=asm.jagged_tensor(values + b"\x94", offsets + b"\x94"), **jagged)
    return asm.archive(asm.members(asm.build_pickle(content, 2), bytes(1), bytes(16)))


@pytest.mark.parametrize(
    "build",
    [
        lambda times: build_tensors(asm.list_(*[expand(7 * GIB)] * times)),
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
    storage, field = bytes(1 << 20), asm.expanded_tensor(asm.storage(1 << 20), 60, 1 << 20)
    assert check_bytes(asm.archive(asm.members(asm.build_pickle(field, 2), storage))).reasons == ()
    fields = asm.list_(field, field)
    assert not check_bytes(asm.archive(asm.members(asm.build_pickle(fields, 2), storage))).loadable


def test_the_fields_of_a_consolidated_tensordict_that_share_bytes_count_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutdeck.safe_pickle.verify.abstract_values.FREE_TENSOR_BYTES", 1 << 20)
    storage, leaf = bytes(1 << 20), asm.leaf("torch.uint8", 1 << 20, 0, 1 << 20)
    for count, loadable in ((1, True), (60, True), (100, False)):
        leaves = {f"f{number}": leaf for number in range(count)}
        content = asm.consolidated_tensordict(asm.tensor(asm.storage(1 << 20), 1 << 20), **leaves)
        assert check_bytes(asm.archive(asm.members(asm.build_pickle(content, 2), storage))).loadable == loadable
