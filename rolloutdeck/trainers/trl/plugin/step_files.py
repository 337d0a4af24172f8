"""The token ids of a step in files of its own, so that the step can be pinned, and what a replay reads of them.

`{folder}/step_{step:06d}/rollout-{call}.json`, one for each time that the step generated: {"format", "step", "tools",
"rows": [{"prompt", "prompt_ids", "completion_ids", "logprobs", "env_mask", "fields", "completion"}]}. `logprobs`,
`env_mask` and `fields`, what a `rollout_func` of one's own gave beside the ids, where the trainer had them; `tools` and
the messages of `completion` where it called tools. Plain JSON: whoever loads it runs nothing. Where several processes
generate, the rows are those of all in the order of their ranks, which is the order of the batch: each writes its own to
a part, and the first makes one file of the parts.
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
from rolloutdeck.trainers.trl.layout import TRL_ROLLOUT_FORMAT, read_requirements
from rolloutdeck.trainers.trl.plugin.rows import CapturedGeneration, ToolUse

OF_TOOLS = ("names", "calls", "failures")
OF_ROW = {"logprobs": "sampling_per_token_logps", "env_mask": "tool_mask"}

StoredRow = dict[str, Any]


@dataclass(frozen=True)
class StoredGeneration:
    """What a file holds; `tools` where the trainer called some, and then each row has `env_mask` and `completion`."""

    rows: Sequence[StoredRow]
    tools: ToolUse | None = None


def build_generation_name(call: int) -> str:
    """The file of the `call`-th generation of a step, from 0."""
    return f"rollout-{call}.json"


def build_step_folder_name(step: int) -> str:
    return f"step_{step:06d}"


def write_generation(folder: Path, held: CapturedGeneration, call: int) -> Path:
    """Writes one generation; returns the folder of its step."""
    step = folder / build_step_folder_name(held.step)
    step.mkdir(parents=True, exist_ok=True)
    put(step / build_generation_name(call), head_of(held), lines(held))
    return step


def head_of(held: CapturedGeneration) -> str:
    told: dict[str, Any] = {"format": TRL_ROLLOUT_FORMAT, "step": held.step}
    if held.tools:
        told["tools"] = {name: getattr(held.tools, name) for name in OF_TOOLS}
    return json.dumps(told)[:-1] + ', "rows": ['


def lines(held: CapturedGeneration) -> Iterator[str]:
    """A row a line. One by one: the interpreter lock is free in between."""
    return (json.dumps(row_of(held, place), default=convert_for_json) for place in range(len(held.prompts)))


def put(path: Path, head: str, rows: Iterable[str]) -> None:
    """Writes the file of a generation, whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(head)
        for place, row in enumerate(rows):
            file.write((",\n" if place else "\n") + row)
        file.write("\n]}\n")
    part.replace(path)


def part_of(step: Path, call: int, rank: int) -> Path:
    """The rows of one of several processes."""
    return step / f".{build_generation_name(call)}.rank{rank}"


def write_generation_part(folder: Path, held: CapturedGeneration, call: int, rank: int, attempt: str) -> Path:
    """Writes this process's rows of a generation; returns the folder of its step."""
    step = folder / build_step_folder_name(held.step)
    step.mkdir(parents=True, exist_ok=True)
    put(part_of(step, call, rank), json.dumps({"attempt": attempt})[:-1] + ', "rows": [', lines(held))
    return step


def join_generation_parts(
    step: Path, held: CapturedGeneration, call: int, ranks: int, attempt: str, seconds: float
) -> bool:
    """Makes one file of the parts of all `ranks` of this launch, `held` the first one's, once they are there; waits for
    them so long. Whether they came: a part that an earlier launch left is none. Raises OSError."""
    parts, end = [part_of(step, call, rank) for rank in range(ranks)], time.monotonic() + seconds
    begin = json.dumps({"attempt": attempt})[:-1] + ","
    while not all(begins(part, begin) for part in parts):
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    put(step / build_generation_name(call), head_of(held), (row for part in parts for row in rows_in(part)))
    for part in parts:
        part.unlink(missing_ok=True)
    return True


def begins(part: Path, begin: str) -> bool:
    try:
        with part.open(encoding="utf-8") as file:
            return file.read(len(begin)) == begin
    except OSError:
        return False


def rows_in(part: Path) -> Iterator[str]:
    """The rows of a part as they were written, without what stands before and behind them."""
    with part.open(encoding="utf-8") as file:
        next(file, "")
        for line in file:
            if line != "]}\n":
                yield line.rstrip("\n").removesuffix(",")


def row_of(held: CapturedGeneration, place: int) -> StoredRow:
    ids = list(held.ids[place])
    row: StoredRow = {"prompt": held.prompts[place], "prompt_ids": held.prompt_ids(place), "completion_ids": ids}
    for key, name in OF_ROW.items():
        if name in held.tensors:
            row[key] = held.tensors[name][place].tolist()[: len(ids)]
    if held.tools:
        row["completion"] = completion_of(held, place)
    return {**row, "fields": fields_of(held, place)} if held.fields else row


def completion_of(held: CapturedGeneration, place: int) -> Any:
    """The messages of a row, its tools' results among them. Raises NotReplayableError where a replay could not give
    them."""
    if held.tools and held.tools.environments:
        raise NotReplayableError("the trainer's environments have a state, which a replay does not make again")
    told = held.completions[place]
    if not is_plain(told) or any(map(shows_images, told)):
        raise NotReplayableError("a tool's call or result is no plain JSON, or an image")
    return told


def shows_images(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(isinstance(one, dict) and one.get("type") == "image" for one in content)


def is_plain(value: Any) -> bool:
    """Whether JSON gives back what it was given."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def fields_of(held: CapturedGeneration, place: int) -> dict[str, Any]:
    """As TRL hands them to the reward functions of this row. Raises NotReplayableError where a replay could not."""
    found = {
        name: value[place : place + 1] if isinstance(value, list) else [value] for name, value in held.fields.items()
    }
    odd = next((name for name, value in found.items() if not value or not is_plain(value)), "")
    if odd:
        raise NotReplayableError(f"the rollout_func gave a `{odd}` that is no plain JSON, or not one for each row")
    return {name: value[0] for name, value in found.items()}


def read_generation(path: Path) -> StoredGeneration:
    """Raises OSError, and ValueError with a sentence where the file is no generation of ours."""
    try:
        told = json.loads(path.read_bytes())
        rows = [dict(row) for row in told["rows"]] if told["format"] == TRL_ROLLOUT_FORMAT else []
        tools = tools_of(told.get("tools"))
        if not rows or not all(is_row(row) for row in rows):
            raise ValueError("its rows have no token ids")
        if tools and not all(is_called(row) for row in rows):
            raise ValueError("its rows do not say what the tools gave")
        if len({tuple(sorted(row.get("fields") or {})) for row in rows}) > 1:
            raise ValueError("its rows have different fields")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"{path.name} is no generation that Rolloutdeck kept of TRL: {error}") from error
    return StoredGeneration(rows, tools)


def tools_of(told: Any) -> ToolUse | None:
    """Raises ValueError, LookupError, TypeError."""
    return ToolUse(tuple(map(str, told["names"])), int(told["calls"]), int(told["failures"])) if told else None


def is_called(row: Mapping[str, Any]) -> bool:
    said = row.get("completion")
    return isinstance(row.get("env_mask"), list) and isinstance(said, list) and all(isinstance(m, dict) for m in said)


def is_row(row: Mapping[str, Any]) -> bool:
    """Whether TRL can train on it: token ids, and for each of the completion's what else is recorded of it."""
    ids = [row.get(key) for key in ("prompt_ids", "completion_ids")]
    if not all(isinstance(one, list) and one and all(type(each) is int for each in one) for one in ids):
        return False
    told = [row[key] for key in OF_ROW if row.get(key) is not None]
    return all(isinstance(one, list) and len(one) == len(row["completion_ids"]) for one in told)


def build_trl_step_facts(trainer: Any, fingerprint: str) -> dict[str, Any]:
    """Facts of `compatibility` for a step of this trainer; `rows` of one step that generates."""
    told = {"tokenizer": fingerprint, "model": str(trainer.model.config._name_or_path or "") or None}
    return {**read_requirements(trainer.args.to_dict()).facts, **told}


def serialize_prompts(rows: Sequence[StoredRow]) -> Iterator[str]:
    """What each row was asked, comparable with what another run asks."""
    return (serialize_prompt(row.get("prompt")) for row in rows)


def serialize_prompt(prompt: Any) -> str:
    """A text, or messages as JSON in one order of keys."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=convert_for_json)
