"""The token ids of a step in files of its own, so that the step can be pinned, and what a replay reads of them.

`{folder}/step_{step:06d}/rollout-{call}.json`, one for each time that the step generated: {"format", "step", "rows":
[{"prompt", "prompt_ids", "completion_ids", "logprobs", "env_mask", "fields"}]}, the last three where the trainer had
them; `fields` is what its own `rollout_func` gave beside the ids. Plain JSON: whoever loads it runs nothing. Where
several processes generate, the rows are those of all in the order of their ranks, which is the order of the batch: each
writes its own to a part, and the first makes one file of the parts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rolloutdeck import tables
from rolloutdeck.errors import Unfit
from rolloutdeck.trainers.trl_plugin.rows import Held

FORMAT = "trl-rollout"
OF_ROW = {"logprobs": "sampling_per_token_logps", "env_mask": "tool_mask"}

Row = dict[str, Any]


def name_of(call: int) -> str:
    """The file of the `call`-th generation of a step, from 0."""
    return f"rollout-{call}.json"


def folder_of(step: int) -> str:
    return f"step_{step:06d}"


def write(folder: Path, held: Held, call: int) -> Path:
    """Writes one generation; returns the folder of its step."""
    step = folder / folder_of(held.step)
    step.mkdir(parents=True, exist_ok=True)
    put(step / name_of(call), head_of(held.step), lines(held))
    return step


def head_of(step: int) -> str:
    return json.dumps({"format": FORMAT, "step": step})[:-1] + ', "rows": ['


def lines(held: Held) -> Iterator[str]:
    """A row a line. One by one: the interpreter lock is free in between."""
    return (json.dumps(row_of(held, place), default=tables.plain) for place in range(len(held.prompts)))


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
    return step / f".{name_of(call)}.rank{rank}"


def write_part(folder: Path, held: Held, call: int, rank: int, attempt: str) -> Path:
    """Writes this process's rows of a generation; returns the folder of its step."""
    step = folder / folder_of(held.step)
    step.mkdir(parents=True, exist_ok=True)
    put(part_of(step, call, rank), json.dumps({"attempt": attempt})[:-1] + ', "rows": [', lines(held))
    return step


def join(step: Path, number: int, call: int, ranks: int, attempt: str, seconds: float) -> bool:
    """Makes one file of the parts of all `ranks` of this launch, once they are there; waits for them so long. Whether
    they came: a part that an earlier launch left is none. Raises OSError."""
    parts, end = [part_of(step, call, rank) for rank in range(ranks)], time.monotonic() + seconds
    begin = json.dumps({"attempt": attempt})[:-1] + ","
    while not all(begins(part, begin) for part in parts):
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    put(step / name_of(call), head_of(number), (row for part in parts for row in rows_in(part)))
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


def row_of(held: Held, place: int) -> Row:
    ids = list(held.ids[place])
    row: Row = {"prompt": held.prompts[place], "prompt_ids": held.prompt_ids(place), "completion_ids": ids}
    for key, name in OF_ROW.items():
        if name in held.tensors:
            row[key] = held.tensors[name][place].tolist()[: len(ids)]
    return {**row, "fields": fields_of(held, place)} if held.fields else row


def fields_of(held: Held, place: int) -> dict[str, Any]:
    """As TRL hands them to the reward functions of this row. Raises Unfit where a replay could not."""
    found = {
        name: value[place : place + 1] if isinstance(value, list) else [value] for name, value in held.fields.items()
    }
    try:
        odd = next((name for name, value in found.items() if not value or json.loads(json.dumps(value)) != value), "")
    except (TypeError, ValueError) as error:
        raise Unfit(f"the rollout_func gave something that is no plain JSON: {error}") from error
    if odd:
        raise Unfit(f"the rollout_func gave a `{odd}` that is no plain JSON, or not one for each row")
    return {name: value[0] for name, value in found.items()}


def read(path: Path) -> list[Row]:
    """Raises OSError, and ValueError with a sentence where the file is no generation of ours."""
    try:
        told = json.loads(path.read_bytes())
        rows = [dict(row) for row in told["rows"]] if told["format"] == FORMAT else []
        if not rows or not all(is_row(row) for row in rows):
            raise ValueError("its rows have no token ids")
        if len({tuple(sorted(row.get("fields") or {})) for row in rows}) > 1:
            raise ValueError("its rows have different fields")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"{path.name} is no generation that Rolloutdeck kept of TRL: {error}") from error
    return rows


def is_row(row: Mapping[str, Any]) -> bool:
    """Whether TRL can train on it: token ids, and for each of the completion's what else is recorded of it."""
    ids = [row.get(key) for key in ("prompt_ids", "completion_ids")]
    if not all(isinstance(one, list) and one and all(type(each) is int for each in one) for one in ids):
        return False
    told = [row[key] for key in OF_ROW if row.get(key) is not None]
    return all(isinstance(one, list) and len(one) == len(row["completion_ids"]) for one in told)


def facts_of(trainer: Any, fingerprint: str) -> dict[str, Any]:
    """Facts of `compat` for a step of this trainer; `rows` of one step that generates."""
    args, answers = trainer.args, int(trainer.num_generations)
    calls = max(1, int(args.gradient_accumulation_steps) // int(args.steps_per_generation))
    rows = int(args.generation_batch_size) * calls
    facts = {"role": "rollout", "format": FORMAT, "rows": rows, "prompts": rows // answers, "tokenizer": fingerprint}
    facts |= {"samples_per_prompt": answers, "max_response_length": args.max_completion_length}
    return {**facts, "parameter_sync_step": 1, "model": str(trainer.model.config._name_or_path or "") or None}


def texts(rows: list[Row]) -> Iterator[str]:
    """What each row was asked, comparable with what another run asks."""
    return (text_of(row.get("prompt")) for row in rows)


def text_of(prompt: Any) -> str:
    """A text, or messages as JSON in one order of keys."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=tables.plain)
