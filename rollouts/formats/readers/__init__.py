"""Readers of file types that several formats share, and of the JSON values and conversations in them.

Depends on: samples, storage, and the context of a dump in `rollouts.formats.base`.
Invariant: a reader streams, limits the memory that it uses, and never unpickles. What it can't read is an
`UnreadableDumpError` for the file or a `LineProblem` for the line.
"""

from rollouts.formats.readers import chat
from rollouts.formats.readers.arrow import ARROW_STREAM_MAGIC, read_arrow_rows
from rollouts.formats.readers.chat import is_conversation
from rollouts.formats.readers.json_document import parse_json_document, read_document_bytes, read_json_document
from rollouts.formats.readers.jsonl import (
    BOM,
    BROKEN_UTF8,
    EMPTY_FILE,
    NumberedRow,
    check_numbers,
    convert_rows,
    is_missing_number,
    parse_json_leniently,
    parse_prompt,
    parse_prompt_or_empty,
    parse_response_text,
    read_jsonl_rows,
    render_content,
)
from rollouts.formats.readers.memory import check_json_memory
from rollouts.formats.readers.parquet import open_parquet, read_parquet_rows
from rollouts.formats.readers.response_items import convert_items
from rollouts.formats.readers.seekable import provide_local_file, provide_pickle_file
from rollouts.formats.readers.values import (
    JsonObject,
    collect_extras,
    get_list,
    get_object,
    set_batch_tokens,
    summarize_value,
    to_jsonable,
)
from rollouts.formats.readers.zip_members import HEADER_MAGIC, ZipReader

__all__ = [
    "ARROW_STREAM_MAGIC", "BOM", "BROKEN_UTF8", "EMPTY_FILE", "HEADER_MAGIC", "JsonObject", "NumberedRow",
    "ZipReader", "chat", "check_json_memory", "check_numbers", "collect_extras", "convert_items", "convert_rows",
    "get_list", "get_object", "is_conversation", "is_missing_number", "open_parquet",
    "parse_json_document", "parse_json_leniently", "parse_prompt", "parse_prompt_or_empty", "parse_response_text",
    "provide_local_file", "provide_pickle_file", "read_arrow_rows", "read_document_bytes", "read_json_document",
    "read_jsonl_rows", "read_parquet_rows", "render_content", "set_batch_tokens", "summarize_value", "to_jsonable",
]  # fmt: skip
