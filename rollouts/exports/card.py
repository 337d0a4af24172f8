"""The card of an export: where its rows come from and what was left out. `datasets.load_dataset` reads its head.

Format: https://huggingface.co/docs/hub/datasets-manual-configuration
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

import orjson
import pyarrow as pa

from rolloutdeck.protocol import format_step_ranges
from rollouts.exports.options import LAYOUTS, ExportOptions
from rollouts.exports.rows import ExportCounts
from rollouts.labels import RubricVersion
from rollouts.models import Project

HEAD = """---
configs:
- config_name: default
  description: data {checksum:08x}
  data_files:
  - split: {split}
    path: {path}
{features}tags:
- rolloutdeck
---
"""
# Names of Arrow types in `dataset_info`.
TYPE_NAMES: Final = {pa.string(): "string", pa.float64(): "float64", pa.int64(): "int64", pa.bool_(): "bool"}


def build_card(
    project: Project,
    rubric: RubricVersion,
    options: ExportOptions,
    query: Mapping[str, str],
    counts: ExportCounts,
    path: str,
    split: str,
    checksum: int,
    columns: pa.Schema | None = None,
    skipped_runs: Iterable[str] = (),
) -> str:
    """Returns Markdown in English, without a date: the same query gives the same bytes.

    `columns` are types that the file does not have itself. Without them `datasets` takes those of the first 10 MB, and
    fails if a column has values only later. `checksum` is the CRC-32 of the data. `datasets` caches rows by the name
    of the folder and this head: without it, a later export in a folder of the same name would get the rows of the
    earlier one.
    """
    parts = [
        HEAD.format(split=split, path=path, checksum=checksum, features=describe_columns(columns)),
        f"# {project.slug}: {options.layout}\n",
        f"{LAYOUTS[options.layout]}.\n",
        "## Source\n",
        build_list([(name, value) for name, value in query.items() if value]),
        build_list((run, format_step_ranges(list(steps))) for run, steps in sorted(counts.steps.items())),
        "## Options\n",
        build_list(describe_options(options)),
        "## Counts\n",
        build_list([("samples read", f"{counts.samples:,}"), ("rows", f"{counts.rows:,}")]),
        "## Left out\n",
        build_left_out(counts, skipped_runs),
        f"## Rubric, version {rubric.number}\n",
        build_list((question.key, f"{question.title} ({question.kind})") for question in rubric.questions),
    ]
    return "\n".join(parts)


def build_left_out(counts: ExportCounts, skipped_runs: Iterable[str]) -> str:
    samples = build_list((reason, f"{count:,}") for reason, count in sorted(counts.left_out.items()) if count)
    runs = build_list(("run without a key of the query", run) for run in sorted(skipped_runs))
    return samples + runs or "Nothing.\n"


def describe_columns(columns: pa.Schema | None) -> str:
    """Returns the YAML of the columns that `datasets` writes for its features, empty without columns."""
    if columns is None:
        return ""
    lines = [line for field in columns for line in describe_field(field)]
    return "dataset_info:\n  features:\n" + "".join(f"  {line}\n" for line in lines)


def describe_field(field: pa.Field) -> list[str]:
    return [f"- name: {orjson.dumps(field.name).decode()}", *(f"  {line}" for line in describe_type(field.type))]


def describe_type(kind: pa.DataType) -> list[str]:
    if pa.types.is_list(kind) and kind.value_type in TYPE_NAMES:
        return [f"list: {TYPE_NAMES[kind.value_type]}"]
    if pa.types.is_list(kind):
        return ["list:", *(line for field in kind.value_type for line in describe_field(field))]
    if pa.types.is_struct(kind):
        return ["struct:", *(line for field in kind for line in describe_field(field))]
    return [f"dtype: {TYPE_NAMES[kind]}"]


def describe_options(options: ExportOptions) -> list[tuple[str, str]]:
    values: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(options)}
    asked = values.pop("asked")
    values |= {"question": asked.question.key, "good": ", ".join(sorted(asked.good))} if asked else {}
    unused = {"ids"} if options.needs_margin else {"ids", "min_margin"}
    used = [name for name in values if name not in unused] if options.is_training_data else ["layout", "format"]
    used += ["ids"] if options.layout == "labels" and options.ids else []
    return [(name, dump_value(value)) for name, value in values.items() if name in used and value is not None]


def dump_value(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def build_list(pairs: Iterable[tuple[str, str]]) -> str:
    return "".join(f"- {name}: `{clean(value)}`\n" for name, value in pairs)


def clean(value: str) -> str:
    return " ".join(value.replace("`", "'").split())
