"""The scan of opcodes and of the members of a torch archive."""

from __future__ import annotations

import pickle
import pickletools
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolloutdeck.safe_pickle import SafePickleError
from rolloutdeck.safe_pickle.stream import ByteSpan, PickleLimits, scan_opcodes
from rolloutdeck.safe_pickle.stream.source import ByteSource
from rolloutdeck.safe_pickle.stream.torch_archive import TorchArchive
from tests.rolloutdeck.safe_pickle import assembler as asm

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=9000),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | st.frozensets(st.text())
    ),
    max_leaves=20,
)


def list_opcodes(data: bytes) -> list[tuple[str, Any, int]]:
    """The opcodes as `pickletools` lists them; skipped arguments are read here."""
    source = ByteSource.from_bytes(data)
    return [
        (
            op.name,
            source.read(op.argument.start, op.argument.length) if isinstance(op.argument, ByteSpan) else op.argument,
            op.at,
        )
        for op in scan_opcodes(source)
    ]


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(value=VALUES, protocol=st.integers(2, 5))
def test_opcodes_are_scanned_as_pickletools_lists_them(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert list_opcodes(data) == [(op.name, argument, at) for op, argument, at in pickletools.genops(data)]


@given(value=st.lists(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)))
def test_protocol_0_is_scanned_too(value: Any) -> None:
    data = pickle.dumps(OrderedDict(a=value), 0)
    names = [op.name for op, _, _ in pickletools.genops(data)]
    assert [name for name, _, _ in list_opcodes(data)] == names


def test_a_long_byte_string_is_not_read(tmp_path: Path) -> None:
    class CountingSource(ByteSource):
        bytes_read = 0

        def read(self, at: int, length: int) -> bytes:
            CountingSource.bytes_read += length
            return super().read(at, length)

    data = pickle.dumps([bytes(50 << 20), "end"])
    ops = list(scan_opcodes(CountingSource(data, 0, len(data))))
    assert [op.argument for op in ops if isinstance(op.argument, ByteSpan)] == [ByteSpan(ops[4].at + 5, 50 << 20)]
    assert CountingSource.bytes_read < 1 << 18


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (PickleLimits(opcodes=5), "opcodes"),
        (PickleLimits(memo=1), "memo"),
        (PickleLimits(text=3), "a string"),
        (PickleLimits(protocol=3), "protocol 4"),
    ],
)
def test_a_pickle_that_exceeds_a_limit_is_refused(limits: PickleLimits, reason: str) -> None:
    data = pickle.dumps([["abcd"], ["efgh"]], 4)
    with pytest.raises(SafePickleError, match=reason):
        list(scan_opcodes(ByteSource.from_bytes(data), limits))


def test_a_line_may_reach_across_blocks() -> None:
    data = b"\x80\x02" + b"N0" * 32_766 + b"cos\nsystem\n."
    assert list_opcodes(data)[-2] == ("GLOBAL", "os system", 65_534)


def test_a_window_reads_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    with ByteSource.open(path) as source:
        window = source.window(2, 5).window(1, 3)
        assert (window.size, window.read(0, 3)) == (3, b"345")
        with pytest.raises(SafePickleError, match="ends after 3 bytes"):
            window.read(1, 3)
        with pytest.raises(SafePickleError, match="reaches beyond"):
            source.window(8, 3)


def test_a_file_that_becomes_shorter_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    with ByteSource.open(path) as source:
        path.write_bytes(b"")
        with pytest.raises(SafePickleError, match="became shorter"):
            source.read(0, 100)


def test_an_archive_finds_the_bytes_of_each_member() -> None:
    source = ByteSource.from_bytes(asm.archive(asm.queue_members()))
    archive = TorchArchive.open(source)
    assert archive.root == "archive"
    assert archive.member("byteorder").read(0, 6) == b"little"
    assert archive.member("data/1").size == 24
    assert archive.pickle.read(0, 2) == b"\x80\x02"
    with pytest.raises(SafePickleError, match="no member 'data/2'"):
        archive.member("data/2")


def test_an_archive_of_a_torch_without_zip64_is_accepted_too() -> None:
    full = asm.archive(asm.queue_members())
    assert TorchArchive.open(ByteSource.from_bytes(full[:-98] + full[-22:])).root == "archive"
