"""Streams of Arrow batches, as Hugging Face's datasets save them: valid, truncated and hostile. Real: others/saved."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rolloutdeck.protocol import wire
from rollouts.errors import UnreadableDumpError
from rollouts.formats import select_format
from rollouts.formats.readers import parquet
from rollouts.samples.record import LineProblem, Record
from tests.rollouts.support.trainer_dumps import DATA, read_items
from tests.support.images import PNG, data_url
from tests.support.patching import patch_everywhere

NAME = "data-00000-of-00001.arrow"
SAVED = DATA / "others" / "saved" / "data-00000-of-00002.arrow"


def encode_stream(table: pa.Table, rows: int = 1000, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return bytes(sink.getvalue())


def build_table(count: int = 3, **more: Any) -> pa.Table:
    return pa.table({"prompt": ["q"] * count, "completion": [f"a{at}" for at in range(count)], **more})


def read_records(body: bytes) -> list[Any]:
    return read_items(select_format(NAME, body[:65536]), body, filename=NAME)


def test_text_ids_images_and_dictionaries_are_read() -> None:
    image = pa.array([{"bytes": b"\x89PNG", "path": None}], pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    table = build_table(1, ids=[[1, 2]], image=image, kind=pa.array(["x"]).dictionary_encode(), none=pa.nulls(1))
    (record,) = read_records(encode_stream(table))
    assert (record.prompt, record.response) == ("q", "a0")
    assert record.extras == {"ids": [1, 2], "image": {"bytes": "<4 bytes>", "path": None}, "kind": "x"}


def test_the_complete_batches_of_a_truncated_stream_are_read() -> None:
    *rows, problem = read_records(encode_stream(build_table(9), rows=3)[:-100])
    assert [row.response for row in rows] == [f"a{at}" for at in range(6)]
    assert isinstance(problem, LineProblem) and problem.line == 7


def test_a_dictionary_column_that_expands_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_everywhere(monkeypatch, wire, "MAX_DUMP_BYTES", 1 << 20)
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * 4096]))
    with pytest.raises(UnreadableDumpError, match="Arrow file unfolds to more"):
        read_records(encode_stream(pa.table({"prompt": long, "completion": ["a"] * 2000})))


def test_rows_and_values_without_bytes_are_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "MAX_ROWS", 5)
    with pytest.raises(UnreadableDumpError, match="more than 5 rows"):
        read_records(encode_stream(build_table(6)))
    empty_lists = pa.FixedSizeListArray.from_arrays(pa.nulls(6000), 3000)
    patch_everywhere(monkeypatch, wire, "MAX_DUMP_BYTES", 5000)
    with pytest.raises(UnreadableDumpError, match="unfolds to more"):
        read_records(encode_stream(build_table(2, nothing=empty_lists)))


@pytest.mark.parametrize("dictionary", [False, True])
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_stream_with_compressed_batches_is_refused_before_decompression(codec: str, dictionary: bool) -> None:
    text = pa.array(["a" * 5000] * 3)
    table = build_table(3, long=text.dictionary_encode() if dictionary else text)
    with pytest.raises(UnreadableDumpError, match="batches are compressed"):
        read_records(encode_stream(table, compression=codec))


@pytest.mark.parametrize(
    "kind", [pa.string_view(), pa.list_(pa.binary_view()), pa.run_end_encoded(pa.int32(), pa.string())]
)
def test_a_column_whose_values_share_their_bytes_is_refused_by_its_name(kind: pa.DataType) -> None:
    with pytest.raises(UnreadableDumpError, match="column 'shared' has a type that is not supported"):
        read_records(encode_stream(build_table(0).append_column("shared", pa.array([], kind))))


@pytest.mark.parametrize("end", [4, 8, 9, 40, 300, 900])
def test_a_truncated_header_is_refused_with_a_message(end: int) -> None:
    with pytest.raises(UnreadableDumpError, match="It is not a readable Arrow stream|It has no rows"):
        read_records(SAVED.read_bytes()[:end])


def test_invalid_offsets_are_refused_or_give_records_and_problems() -> None:
    """Writes extreme offsets at every third position of a real shard."""
    body = SAVED.read_bytes()
    for position in range(0, len(body), 3):
        for offset in (b"\xff\xff\xff\x7f", b"\0\0\0\x80"):
            try:
                rows = read_records(body[:position] + offset + body[position + 4 :])
            except UnreadableDumpError:
                continue
            assert all(isinstance(row, (Record, LineProblem)) for row in rows)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    body = encode_stream(build_table(2)).replace(b"a0a1", b"\xffza1")
    with pytest.raises(UnreadableDumpError, match="Invalid UTF8"):
        read_records(body)


def test_columns_of_images_are_read_as_data_urls_from_arrow_and_parquet() -> None:
    kind = pa.list_(pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    images = pa.array([[{"bytes": PNG, "path": "a.png"}, {"bytes": b"<svg/>", "path": None}]], kind)
    table = build_table(1, images=images)
    parquet_file = io.BytesIO()
    pq.write_table(table, parquet_file)
    expected = [{"bytes": data_url(PNG), "path": "a.png"}, {"bytes": "<6 bytes>", "path": None}]
    (from_arrow,) = read_records(encode_stream(table))
    form = select_format("rows.parquet", parquet_file.getvalue())
    (from_parquet,) = read_items(form, parquet_file.getvalue(), filename="rows.parquet")
    assert from_arrow.extras["images"] == from_parquet.extras["images"] == expected
