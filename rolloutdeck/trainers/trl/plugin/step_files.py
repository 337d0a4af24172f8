"""Files with the token ids of a step, so that the step can be pinned and replayed.

`{folder}/step_{step:06d}/rollout-{call}.json`, one for each generation of the step: {"format", "step", "tools", "rows":
[{"prompt", "prompt_ids", "completion_ids", "logprobs", "env_mask", "fields", "completion"}]}. `logprobs`, `env_mask`
and `fields` (what a custom `rollout_func` returned besides the ids) exist if the trainer had them; `tools` and the
messages of `completion` if it called tools. The files are plain JSON, so that loading them runs no code. If several
processes generate, the rows are in the order of their ranks, which is the order of the batch: each process writes its
rows to a part, and the main process joins the parts. Before the training it removes those of an earlier launch: some
launchers give the processes no common id, by which a part could name its launch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolloutdeck.client import convert_for_json
from rolloutdeck.errors import NotReplayableError
from rolloutdeck.lib import open_replacement
from rolloutdeck.trainers.trl.layout import TRL_ROLLOUT_FORMAT, read_requirements
from rolloutdeck.trainers.trl.plugin.rows import CapturedGeneration, ToolUse

TOOL_FIELDS = ("names", "calls", "failures")
ROW_TENSORS = {"logprobs": "sampling_per_token_logps", "env_mask": "tool_mask"}

StoredRow = dict[str, Any]


@dataclass(frozen=True)
class StoredGeneration:
    """The content of a file. With `tools`, which the trainer called, each row has `env_mask` and `completion`."""

    rows: Sequence[StoredRow]
    tools: ToolUse | None = None


def build_generation_name(call: int) -> str:
    """Returns the file name of the `call`-th generation of a step, from 0."""
    return f"rollout-{call}.json"


def build_step_folder_name(step: int) -> str:
    return f"step_{step:06d}"


def write_generation(folder: Path, generation: CapturedGeneration, call: int) -> Path:
    """Writes one generation. Returns the folder of its step."""
    step = folder / build_step_folder_name(generation.step)
    step.mkdir(parents=True, exist_ok=True)
    write_file(step / build_generation_name(call), build_header(generation), iter_rows(generation))
    return step


def build_header(generation: CapturedGeneration) -> str:
    header: dict[str, Any] = {"format": TRL_ROLLOUT_FORMAT, "step": generation.step}
    if generation.tools:
        header["tools"] = {name: getattr(generation.tools, name) for name in TOOL_FIELDS}
    return json.dumps(header)[:-1] + ', "rows": ['


def iter_rows(generation: CapturedGeneration) -> Iterator[str]:
    """Yields one line of JSON per row. The interpreter lock is released between rows."""
    rows = (build_row(generation, row_index) for row_index in range(len(generation.prompts)))
    return (json.dumps(row, default=convert_for_json) for row in rows)


def write_file(path: Path, head: str, rows: Iterable[str]) -> None:
    """Writes a file atomically."""
    with open_replacement(path) as file:
        file.write(head.encode())
        for row_index, row in enumerate(rows):
            file.write(((",\n" if row_index else "\n") + row).encode())
        file.write(b"\n]}\n")


def build_part_path(step: Path, call: int, rank: int) -> Path:
    """Returns the path of the rows of one process."""
    return step / f".{build_generation_name(call)}.rank{rank}"


def remove_parts(folder: Path) -> None:
    """Removes the parts that an earlier launch did not join. Raises OSError."""
    for part in folder.glob("step_*/.rollout-*.json.rank*"):
        part.unlink(missing_ok=True)


def write_generation_part(folder: Path, generation: CapturedGeneration, call: int, rank: int) -> Path:
    """Writes this process's rows of a generation. Returns the folder of its step."""
    step = folder / build_step_folder_name(generation.step)
    step.mkdir(parents=True, exist_ok=True)
    write_file(build_part_path(step, call, rank), '{"rows": [', iter_rows(generation))
    return step


def join_generation_parts(step: Path, generation: CapturedGeneration, call: int, ranks: int, seconds: float) -> bool:
    """Joins the parts of all `ranks` into one file. `generation` is that of the main process.

    Waits at most `seconds` for the parts. Returns whether all were written. Raises OSError.
    """
    parts, deadline = [build_part_path(step, call, rank) for rank in range(ranks)], time.monotonic() + seconds
    while not all(part.exists() for part in parts):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    rows = (row for part in parts for row in iter_part_rows(part))
    write_file(step / build_generation_name(call), build_header(generation), rows)
    for part in parts:
        part.unlink(missing_ok=True)
    return True


def iter_part_rows(part: Path) -> Iterator[str]:
    """Yields the rows of a part as they were written, without the header and the end."""
    with part.open(encoding="utf-8") as file:
        next(file, "")
        for line in file:
            if line != "]}\n":
                yield line.rstrip("\n").removesuffix(",")


def build_row(generation: CapturedGeneration, row_index: int) -> StoredRow:
    ids = list(generation.ids[row_index])
    row: StoredRow = {"prompt": generation.prompts[row_index], "prompt_ids": generation.prompt_ids(row_index)}
    row["completion_ids"] = ids
    for key, name in ROW_TENSORS.items():
        if name in generation.tensors:
            row[key] = generation.tensors[name][row_index].tolist()[: len(ids)]
    if generation.tools:
        row["completion"] = get_completion(generation, row_index)
    return {**row, "fields": get_fields(generation, row_index)} if generation.fields else row


def get_completion(generation: CapturedGeneration, row_index: int) -> Any:
    """Returns the messages of a row with the results of tools. Raises NotReplayableError."""
    if generation.tools and generation.tools.environments:
        raise NotReplayableError("the trainer's environments have a state, which a replay does not restore")
    completion = generation.completions[row_index]
    if not is_plain_json(completion) or any(map(has_images, completion)):
        raise NotReplayableError("a tool's call or result is not plain JSON, or is an image")
    return completion


def has_images(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(isinstance(part, dict) and part.get("type") == "image" for part in content)


def is_plain_json(value: Any) -> bool:
    """Returns whether the value is the same after it was written as JSON."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def get_fields(generation: CapturedGeneration, row_index: int) -> dict[str, Any]:
    """Returns the fields as TRL passes them to the reward functions of this row.

    Raises NotReplayableError if a replay can't repeat them.
    """
    fields = {
        name: value[row_index : row_index + 1] if isinstance(value, list) else [value]
        for name, value in generation.fields.items()
    }
    if invalid := next((name for name, value in fields.items() if not value or not is_plain_json(value)), ""):
        raise NotReplayableError(
            f"the rollout_func returned a `{invalid}` that is not plain JSON, or not one for each row"
        )
    return {name: value[0] for name, value in fields.items()}


def read_generation(path: Path) -> StoredGeneration:
    """Raises OSError, and ValueError with the reason if the file is not a generation that Rolloutdeck stored."""
    try:
        document = json.loads(path.read_bytes())
        rows = [dict(row) for row in document["rows"]] if document["format"] == TRL_ROLLOUT_FORMAT else []
        tools = parse_tools(document.get("tools"))
        if not rows or not all(is_trainable(row) for row in rows):
            raise ValueError("its rows have no token ids")
        if tools and not all(has_tool_results(row) for row in rows):
            raise ValueError("its rows have no results of tools")
        if len({tuple(sorted(row.get("fields") or {})) for row in rows}) > 1:
            raise ValueError("its rows have different fields")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"{path.name} is not a generation of TRL that Rolloutdeck stored: {error}") from error
    return StoredGeneration(rows, tools)


def parse_tools(document: Any) -> ToolUse | None:
    """Parses the tools. Raises ValueError, LookupError, TypeError."""
    if not document:
        return None
    return ToolUse(tuple(map(str, document["names"])), int(document["calls"]), int(document["failures"]))


def has_tool_results(row: Mapping[str, Any]) -> bool:
    mask, messages = row.get("env_mask"), row.get("completion")
    if not isinstance(mask, list) or not isinstance(messages, list):
        return False
    return all(isinstance(message, dict) for message in messages)


def is_trainable(row: Mapping[str, Any]) -> bool:
    """Returns whether TRL can train on the row: token ids, and one value per completion id in each other list."""
    for ids in (row.get("prompt_ids"), row.get("completion_ids")):
        if not isinstance(ids, list) or not ids or not all(type(token_id) is int for token_id in ids):
            return False
    optional = [row[key] for key in ROW_TENSORS if row.get(key) is not None]
    return all(isinstance(values, list) and len(values) == len(row["completion_ids"]) for values in optional)


def build_trl_step_facts(trainer: Any, fingerprint: str) -> dict[str, Any]:
    """Returns the facts of `compatibility` for a step of this trainer; `rows` of one step that generates."""
    trainer_facts = {"tokenizer": fingerprint, "model": str(trainer.model.config._name_or_path or "") or None}
    return {**read_requirements(trainer.args.to_dict()).facts, **trainer_facts}


def serialize_prompts(rows: Sequence[StoredRow]) -> Iterator[str]:
    """Yields the prompt of each row as text that can be compared with another run's."""
    return (serialize_prompt(row.get("prompt")) for row in rows)


def serialize_prompt(prompt: Any) -> str:
    """Returns a text, or messages as JSON with sorted keys."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=convert_for_json)
