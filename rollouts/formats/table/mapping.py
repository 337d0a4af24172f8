"""How the rows of one table become records: which column is what, what is a part of the reward, what is the score."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rolloutdeck.protocol import REWARD_PREFIX
from rollouts.formats import native
from rollouts.formats.base import DumpContext
from rollouts.formats.readers import chat
from rollouts.formats.readers.values import to_jsonable
from rollouts.formats.trl_completions import has_consistent_advantages, sum_rewards
from rollouts.samples import Record, is_number, to_float, to_integer, to_text

PART = re.compile(r"(?:reward_(?P<after>\w+)|(?P<before>\w+)_reward)\Z")
STRUCTURED = frozenset(
    ("messages", "prompt_ids", "response_ids", "response_mask", "logprobs", "advantages", "rewards", "tools")
)

STEPS, ASKED = ("step", "gen_step"), ("prompt", "completion")  # the first columns of what TRL and ms-swift log
ADVANTAGE = ("advantage", "advantages")

Row = dict[str, Any]


class TableMapping:
    """How the rows of one table become records. `rows`: the first of them."""

    def __init__(self, found: dict[str, str], names: list[str], rows: Sequence[Row], *, textual: bool) -> None:
        self.found, self.textual = found, textual
        self.taken = set(found.values())
        self.parts = {
            part.removeprefix(REWARD_PREFIX): column for part, column in found.items() if part.startswith(REWARD_PREFIX)
        }
        self.parts |= {named(column): column for column in names if column not in self.taken and PART.match(column)}
        functions = [name for name in rewarded(names, rows) if name not in self.parts.values()]
        self.parts |= {name: name for name in functions if name not in self.taken}
        self.summed = "score" not in found and bool(self.parts) and explained(names, rows, self.parts.values())

    def record(self, row: Row, context: DumpContext) -> Record:
        """Raises ValueError."""
        made = native.build_native_record(self.native(row))
        made.textless = has_only_tokens(self.found)
        if made.textless and context.decode_tokens:
            made.prompt, made.response = context.decode_tokens([made.prompt_ids or [], made.response_ids or []])
            made.textless = False
        self.keep(made, row)
        if made.ground_truth is None:
            made.ground_truth = to_text(truth_within(made.extras))
        if self.summed:
            made.score = sum_rewards(made.rewards)
        if context.step is None:
            step = to_integer(to_float(made.extras.get("step")))
            made.extras["step"] = 0 if step is None else step
        return made

    def native(self, row: Row) -> Row:
        """The row under the names of `wire.SAMPLE_KEYS`. Raises ValueError."""
        cells = {part: row[column] for part, column in self.found.items() if column in row}
        values = {
            part: self.cell(part, value)
            for part, value in cells.items()
            if not part.startswith(REWARD_PREFIX) and (value is not None or part == "response")
        }
        parts = row.get(self.found.get("score", ""))
        if isinstance(parts, dict):
            values |= {"score": None, "rewards": parts}
        elif isinstance(parts, list) and parts and all(map(is_number, parts)):  # one per token, as SkyRL has them
            values |= {"score": sum(parts), "token_scores": parts}
        values |= spoken(values)
        if not {"response", "response_ids"} & set(values):
            raise ValueError("has no response")
        return {"prompt": "", "response": None, **values}

    def cell(self, part: str, value: Any) -> Any:
        if part == "step":
            return to_float(value)
        if isinstance(value, str):
            if part in STRUCTURED or (part in ("prompt", "response") and value.startswith(('[{"', "[{'"))):
                return chat.normalize_messages(parse_json_text(value))
            if self.textual and part in ("index", "turn", "policy_version"):
                whole = to_integer(to_float(value))
                return value if whole is None else whole
            return value
        return chat.normalize_messages(value) if part in ("prompt", "response", "messages") else value

    def keep(self, made: Record, row: Row) -> None:
        """Parts of the reward, and every column that is none of a sample's own."""
        for part, column in self.parts.items():
            value = row.get(column)
            if value is None or to_float(value) is not None:
                made.rewards[part] = to_float(value)
        for column, value in row.items():
            if column in self.taken or value is None:
                continue
            if column not in self.parts.values() or to_float(value) is None:
                made.extras[column] = to_jsonable(value)


def spoken(values: Row) -> Row:
    """Prompt and response that only the conversation tells; the response may stand beside it, and at its end."""
    talk, response = values.get("messages"), values.get("response")
    if not talk or not chat.is_conversation(talk):
        return {}
    if response is None:
        at = chat.find_response_start(talk)
        return {"prompt": chat.render_prompt(talk[:at]), "response": chat.render_response(talk[at:])}
    if "prompt" in values:
        return {}
    answered = talk[-1]["role"] == "assistant"
    return {"prompt": chat.render_prompt(talk[:-1] if answered else talk)}


def truth_within(value: Any, depth: int = 3) -> Any:
    """What an object of the row calls the ground truth: `reward_model` in data of verl, `env_extras` of SkyRL."""
    if not isinstance(value, dict) or not depth:
        return None
    within = (truth_within(inner, depth - 1) for inner in value.values())
    return value.get("ground_truth") or next((found for found in within if found is not None), None)


def rewarded(names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """The columns of reward functions in a table as TRL logs it: the numbers between `completion` and `advantage`."""
    end = next((names.index(name) for name in ADVANTAGE if name in names), 0)
    if not as_trl(names):
        return []
    return [name for name in names[1 + len(ASKED) : end] if all(numeric(row.get(name)) for row in rows)]


def as_trl(names: Sequence[str]) -> bool:
    return names[0] in STEPS and tuple(names[1 : 1 + len(ASKED)]) == ASKED


def numeric(value: Any) -> bool:
    return value is None or is_number(value)


def explained(names: Sequence[str], rows: Sequence[Row], parts: Iterable[str]) -> bool:
    """Whether the advantages of the first rows are in the order of the sums of these parts."""
    column = next((name for name in ADVANTAGE if name in names), "")
    if not as_trl(names) or not column:
        return False
    scored_rows = (
        (
            repr(row.get("prompt")),
            sum_rewards({part: to_float(row.get(part)) for part in parts}),
            row.get(column),
        )
        for row in rows
    )
    return has_consistent_advantages((prompt, score, to_float(advantage)) for prompt, score, advantage in scored_rows)


def named(column: str) -> str:
    found = PART.match(column)
    return (found["after"] or found["before"]) if found else column


def parse_json_text(text: str) -> Any:
    """JSON in a cell; what is none stays text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def has_only_tokens(found: Mapping[str, str]) -> bool:
    return "response_ids" in found and "response" not in found and "messages" not in found
