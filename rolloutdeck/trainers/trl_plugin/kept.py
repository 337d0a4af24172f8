"""The token ids of a step in files of its own, so that the step can be pinned, and what a replay reads of them.

`{folder}/step_{step:06d}/rollout-{call}.json`, one for each time that the step generated: {"format", "step", "rows":
[{"prompt", "prompt_ids", "completion_ids", "logprobs", "env_mask"}]}, the last two where the trainer had them. Plain
JSON: whoever loads it runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rolloutdeck import tables
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
    """Writes one generation; returns the folder of its step. Row by row: the interpreter lock is free in between."""
    step = folder / folder_of(held.step)
    step.mkdir(parents=True, exist_ok=True)
    part = step / f".{name_of(call)}.part"
    with part.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"format": FORMAT, "step": held.step})[:-1] + ', "rows": [')
        for place in range(len(held.prompts)):
            file.write((",\n" if place else "\n") + json.dumps(row_of(held, place), default=tables.plain))
        file.write("\n]}\n")
    part.replace(step / name_of(call))
    return step


def row_of(held: Held, place: int) -> Row:
    ids = list(held.ids[place])
    row: Row = {"prompt": held.prompts[place], "prompt_ids": held.prompt_ids(place), "completion_ids": ids}
    for key, name in OF_ROW.items():
        if name in held.tensors:
            row[key] = held.tensors[name][place].tolist()[: len(ids)]
    return row


def read(path: Path) -> list[Row]:
    """Raises OSError, and ValueError with a sentence where the file is no generation of ours."""
    try:
        told = json.loads(path.read_bytes())
        rows = [dict(row) for row in told["rows"]] if told["format"] == FORMAT else []
        if not rows or not all(is_row(row) for row in rows):
            raise ValueError("its rows have no token ids")
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
