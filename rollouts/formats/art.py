"""ART's trajectories, `.art/{project}/models/{model}/trajectories/{split}/{step:04d}.parquet`: one row per trajectory.

| column                                       | becomes                                                              |
|----------------------------------------------|----------------------------------------------------------------------|
| messages: role, content, tool_calls (JSON    | messages, prompt and response; `trainable` marks what the model wrote |
| text), tool_call_id, trainable               |                                                                      |
| reward                                       | score                                                                |
| metrics, tools (JSON text)                   | metrics, tools                                                       |
| group_index                                  | group                                                                |
| metadata, group_metadata, group_metrics (JSON text), logs, group_logs | stored under their names                    |

The response starts at the first message with `trainable`; without one, at the first answer. Older files have no
group_index. Source: `write_trajectory_groups_parquet` in src/art/utils/trajectory_logging.py of openpipe-art 0.5.18.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.formats.native import to_object
from rollouts.formats.readers import (
    JsonObject,
    chat,
    convert_rows,
    open_parquet,
    provide_local_file,
    read_parquet_rows,
    to_jsonable,
)
from rollouts.samples import LineProblem, Record, to_float, to_integer

name = "art"

FILE = re.compile(r"(?:.*/)?trajectories/[^/]+/\d{4,}\.parquet\Z", re.DOTALL)
JSON_COLUMNS = ("metadata", "group_metadata", "group_metrics")
LOG_COLUMNS = ("logs", "group_logs")


def sniff(filename: str, head: bytes) -> bool:
    return head.startswith(b"PAR1") and bool(FILE.match(filename))


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem]:
    counts = Counter[str]()
    with provide_local_file(stream, context) as path, open_parquet(path) as file:
        if not {"messages", "reward"} <= set(file.schema_arrow.names):
            raise UnreadableDumpError("The Parquet file has no columns `messages` and `reward`.")
        if not file.metadata.num_rows:
            raise UnreadableDumpError("The Parquet file has no rows.")
        for record in convert_rows(enumerate(read_parquet_rows(file), 1), build_record):
            if isinstance(record, Record) and record.group is not None:
                record.index = counts[record.group]
                counts[record.group] += 1
            yield record


def build_record(row: JsonObject) -> Record:
    """Raises ValueError if the row has no conversation."""
    messages = [parse_message(message) for message in row["messages"] or ()]
    if not messages or not chat.is_conversation(messages):
        raise ValueError("has no messages with roles")
    start = next((index for index, message in enumerate(messages) if message.get("trainable")), None)
    record = Record(*chat.render_conversation(messages, start), messages, score=to_float(row["reward"]))
    group = to_integer(row.get("group_index"))
    record.group = None if group is None else str(group)
    record.metrics = to_object(parse_json_text(row.get("metrics")))
    tools = parse_json_text(row.get("tools"))
    record.tools = tools if isinstance(tools, list) else None
    values = {column: parse_json_text(row.get(column)) for column in JSON_COLUMNS}
    values |= {column: to_jsonable(row.get(column)) for column in LOG_COLUMNS}
    record.extras |= {column: value for column, value in values.items() if value not in (None, [], {})}
    return record


def parse_message(message: Any) -> Any:
    """Returns a message without its null keys; its tool calls are objects again."""
    if not isinstance(message, dict):
        return message
    values = {key: to_jsonable(value) for key, value in message.items() if value is not None}
    if not values.get("trainable"):
        values.pop("trainable", None)
    calls = parse_json_text(values.pop("tool_calls", None))
    return {"content": None, **values, **({"tool_calls": calls} if isinstance(calls, list) else {})}


def parse_json_text(value: Any) -> Any:
    """Returns the value of a JSON text; a text that is none as it is."""
    if not isinstance(value, str):
        return to_jsonable(value)
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
