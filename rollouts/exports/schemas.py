"""The columns of each layout as Arrow types. Values without a common type, such as a label's value, are JSON text."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from rollouts.exports.options import ExportOptions
from rollouts.exports.tables import COUNTED_PREFIX, LABEL_PREFIX, get_value_type, list_label_questions
from rollouts.labels import RubricVersion
from rollouts.samples import EXPORT_SCHEMA

TEXT, NUMBER, INT, BOOL = pa.string(), pa.float64(), pa.int64(), pa.bool_()
TOOL_CALL: Final = pa.struct(
    [("id", TEXT), ("type", TEXT), ("function", pa.struct([("name", TEXT), ("arguments", TEXT)]))]
)
MESSAGES: Final = pa.list_(
    pa.struct(
        [("role", TEXT), ("content", TEXT), ("name", TEXT), ("tool_call_id", TEXT), ("reasoning_content", TEXT),
         ("tool_calls", pa.list_(TOOL_CALL))]
    )
)  # fmt: skip
ORIGIN: Final = [("id", TEXT), ("run", TEXT), ("step", INT), ("score", NUMBER)]
REJECTED: Final = [("rejected_id", TEXT), ("rejected_score", NUMBER)]
LABELS: Final = pa.schema(
    [
        ("run", TEXT), ("split", TEXT), ("step_kind", TEXT), ("step", INT), ("group", TEXT), ("index", INT),
        ("trajectory", TEXT), ("turn", INT), ("prompt_key", TEXT), ("content_key", TEXT), ("name", TEXT),
        ("json_value", TEXT), ("rationale", TEXT), ("source", TEXT), ("author", TEXT), ("rubric", INT), ("start", INT),
        ("end", INT), ("created_at", TEXT), ("updated_at", TEXT),
    ]
)  # fmt: skip
SERVER_IDS: Final = [("sample", TEXT), ("run_id", TEXT), ("attempt", TEXT)]


def build_schema(rubric: RubricVersion, options: ExportOptions, *, as_messages: bool) -> pa.Schema:
    if options.layout == "labels":
        return pa.schema([*SERVER_IDS, *LABELS]) if options.ids else LABELS
    if options.layout == "samples":
        columns = list(EXPORT_SCHEMA)
        for question in list_label_questions(rubric):
            columns.append(pa.field(f"{LABEL_PREFIX}{question.key}", get_value_type(question.kind)))
            columns.append(pa.field(f"{COUNTED_PREFIX}{question.key}", INT))
        return pa.schema(columns)
    text = MESSAGES if as_messages else TEXT
    tools = [("tools", TEXT)] if as_messages else []
    corrected = [("corrected", BOOL)]
    match options.layout:
        case "sft":
            texts = [("messages", MESSAGES)] if as_messages else [("prompt", TEXT), ("completion", TEXT)]
            return pa.schema([*texts, *tools, *ORIGIN, *corrected])
        case "kto":
            return pa.schema([("prompt", text), ("completion", text), ("label", BOOL), *tools, *ORIGIN])
        case _:
            margin = [("margin", NUMBER)] if options.layout == "reward" else []
            texts = [("prompt", text), ("chosen", text), ("rejected", text)]
            return pa.schema([*texts, *margin, *tools, *ORIGIN, *REJECTED, *corrected])
