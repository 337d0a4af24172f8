"""Converts the rows of one table to records: which column is which part of a sample, a reward part, the score.

The parts and the common names of columns are in `rolloutdeck.protocol.columns`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from rolloutdeck import protocol
from rollouts.errors import UnreadableDumpError
from rollouts.formats import native
from rollouts.formats.base import DumpContext
from rollouts.formats.readers import JsonObject, chat, to_jsonable
from rollouts.formats.trl_completions import has_consistent_advantages, sum_rewards
from rollouts.samples import Record, is_number, to_float, to_integer, to_text

STRUCTURED_PARTS = frozenset(
    ("messages", "prompt_ids", "response_ids", "response_mask", "logprobs", "advantages", "rewards", "tools")
)
# The first columns of tables that TRL and ms-swift log.
STEP_COLUMNS, TEXT_COLUMNS = ("step", "gen_step"), ["prompt", "completion"]
ADVANTAGE_COLUMNS = ("advantage", "advantages")


def read_column_mapping(text: str) -> dict[str, str]:
    """Parses the mapping that came with the upload to {part: column}. Raises UnreadableDumpError."""
    try:
        return protocol.parse_column_mapping(text)
    except ValueError as error:
        raise UnreadableDumpError(str(error)) from None


def resolve_column_mapping(names: Iterable[str], text: str = "") -> dict[str, str]:
    """Returns {part: column}. Raises UnreadableDumpError without a response, or if a column of `text` is missing."""
    names, requested = list(names), read_column_mapping(text)
    known = protocol.format_column_names(names)
    missing = [column for column in requested.values() if column not in names]
    if missing and text not in protocol.COLUMN_PRESETS:
        raise UnreadableDumpError(f"It has no column `{missing[0][:80]}`; it has {known}.")
    columns = protocol.guess_columns(names, {part: column for part, column in requested.items() if column in names})
    if not protocol.has_response_part(columns):
        raise UnreadableDumpError(
            f"It is unknown which column contains the response; the table has {known}. "
            "Specify it with `--map prompt=COLUMN,response=COLUMN`."
        )
    return columns


class TableMapping:
    """The mapping of one table. `columns` is {part: column}, `first_rows` are used to recognise reward columns."""

    def __init__(
        self, columns: dict[str, str], names: list[str], first_rows: Sequence[JsonObject], *, is_csv: bool
    ) -> None:
        self.columns, self.is_csv = columns, is_csv
        self.mapped_columns = set(columns.values())
        rewards = {
            part.removeprefix(protocol.REWARD_PREFIX): name
            for part, name in columns.items()
            if part.startswith(protocol.REWARD_PREFIX)
        }
        others = [name for name in names if name not in self.mapped_columns]
        rewards |= {
            match["after"] or match["before"]: name for name in others if (match := protocol.REWARD_COLUMN.match(name))
        }
        logged = [name for name in find_reward_columns(names, first_rows) if name not in rewards.values()]
        self.reward_columns = rewards | {name: name for name in logged if name in others}
        has_parts = "score" not in columns and bool(self.reward_columns)
        self.sums_rewards = has_parts and match_advantages(names, first_rows, self.reward_columns.values())

    def build_record(self, row: JsonObject, context: DumpContext) -> Record:
        """Raises ValueError."""
        record = native.build_native_record(self.to_native_row(row))
        record.textless = protocol.has_only_tokens(self.columns)
        if record.textless and context.decode_tokens:
            prompt, record.response = context.decode_tokens([record.prompt_ids or [], record.response_ids or []])
            record.prompt, record.textless = record.prompt or prompt, False
        self.set_rewards_and_extras(record, row)
        if record.ground_truth is None:
            record.ground_truth = to_text(find_ground_truth(record.extras))
        if self.sums_rewards:
            record.score = sum_rewards(record.rewards)
        if context.step is None:
            column = self.columns.get("step", "")
            record.extras["step"] = native.parse_row_step(row.get(column), column) or 0
        return record

    def to_native_row(self, row: JsonObject) -> JsonObject:
        """Returns the row with the names of `wire.SAMPLE_KEYS`. Raises ValueError if it has no response."""
        values = {
            part: self.convert_cell(part, row[column])
            for part, column in self.columns.items()
            if column in row
            and not part.startswith(protocol.REWARD_PREFIX)
            and (part == "response" or not is_missing(part, row[column]))
        }
        score = row.get(self.columns.get("score", ""))
        if isinstance(score, dict):
            values |= {"score": None, "rewards": score}
        elif isinstance(score, list) and score and all(map(is_number, score)):  # one per token, as in SkyRL
            values |= {"score": sum(score), "token_scores": score}
        values |= render_missing_texts(values)
        if not {"response", "response_ids"} & set(values):
            raise ValueError(protocol.describe_missing_response(row))
        return {"prompt": "", "response": None, **values}

    def convert_cell(self, part: str, value: Any) -> Any:
        if part == "step":
            return to_float(value)
        if not isinstance(value, str):
            return protocol.normalize_messages(value) if part in ("prompt", "response", "messages") else value
        if part in STRUCTURED_PARTS or (part in ("prompt", "response") and value.startswith(protocol.JSON_TEXTS)):
            return protocol.normalize_messages(protocol.parse_json_text(value))
        if self.is_csv and part in ("index", "turn", "policy_version"):
            number = to_integer(to_float(value))
            return value if number is None else number
        return value

    def set_rewards_and_extras(self, record: Record, row: JsonObject) -> None:
        """Sets the reward parts. Stores every column that is not mapped as an extra."""
        for name, column in self.reward_columns.items():
            value = row.get(column)
            if value is None or to_float(value) is not None:
                record.rewards[name] = to_float(value)
        for column, value in row.items():
            if column in self.mapped_columns or value is None:
                continue
            if column not in self.reward_columns.values() or to_float(value) is None:
                record.extras[column] = to_jsonable(value)


def is_missing(part: str, value: Any) -> bool:
    """Returns whether the cell is empty: null, or NaN in a column of text, which pandas writes."""
    return value is None or (value != value and part in ("prompt", "messages", "ground_truth"))


def render_missing_texts(values: JsonObject) -> JsonObject:
    """Returns the prompt and response that only the messages have. The messages may contain the response or not."""
    messages, response = values.get("messages"), values.get("response")
    if not messages or not protocol.is_conversation(messages):
        return {}
    if response is None:
        return dict(zip(("prompt", "response"), chat.render_conversation(messages), strict=True))
    if "prompt" in values:
        return {}
    is_answered = messages[-1]["role"] == "assistant"
    return {"prompt": chat.render_prompt(messages[:-1] if is_answered else messages)}


def find_ground_truth(value: Any, depth: int = 3) -> Any:
    """Returns `ground_truth` of nested objects, such as `reward_model` in verl data and `env_extras` of SkyRL."""
    if not isinstance(value, dict) or not depth:
        return None
    nested = (find_ground_truth(inner, depth - 1) for inner in value.values())
    return value.get("ground_truth") or next((truth for truth in nested if truth is not None), None)


def find_reward_columns(names: Sequence[str], rows: Sequence[JsonObject]) -> list[str]:
    """Returns the reward functions of a table that TRL logged: the numbers between `completion` and `advantage`."""
    if not is_trl_table(names):
        return []
    end = next((names.index(name) for name in ADVANTAGE_COLUMNS if name in names), 0)
    return [
        name
        for name in names[1 + len(TEXT_COLUMNS) : end]
        if all(row.get(name) is None or is_number(row[name]) for row in rows)
    ]


def is_trl_table(names: Sequence[str]) -> bool:
    return names[0] in STEP_COLUMNS and list(names[1 : 1 + len(TEXT_COLUMNS)]) == TEXT_COLUMNS


def match_advantages(names: Sequence[str], rows: Sequence[JsonObject], rewards: Iterable[str]) -> bool:
    """Returns whether the advantages of the rows are consistent with the sum of these reward columns."""
    column = next((name for name in ADVANTAGE_COLUMNS if name in names), "")
    if not is_trl_table(names) or not column:
        return False
    parts = list(rewards)
    scores = (sum_rewards({part: to_float(row.get(part)) for part in parts}) for row in rows)
    return has_consistent_advantages(
        (repr(row.get("prompt")), score, to_float(row.get(column))) for row, score in zip(rows, scores, strict=True)
    )
