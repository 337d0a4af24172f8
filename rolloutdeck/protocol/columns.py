"""Maps columns of a table to the parts of a sample, by common names. Client and server use the same mapping."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rolloutdeck.protocol.wire import SAMPLE_KEYS

# Tables that some trainers write, or that are exported from their runs. `--map` accepts these names.
COLUMN_PRESETS: dict[str, dict[str, str]] = {
    "areal": {
        "prompt": "prompt", "response": "completion", "score": "reward", "group": "task_id", "index": "sample_idx",
        "policy_version": "tail_version",
    },
    "open-instruct": {
        "prompt_ids": "prompt_tokens", "response_ids": "response_tokens", "score": "reward", "advantages": "advantage",
        "group": "prompt_idx", "index": "sample_idx", "data_source": "dataset", "step": "step",
        "ground_truth": "ground_truth", "finish_reason": "finish_reason", "logprobs": "logprobs",
    },
    "swift": {"prompt": "prompt", "response": "completion", "step": "step", "advantages": "advantages"},
    "skyrl": {
        "prompt": "input_prompt", "response": "output_response", "score": "score", "finish_reason": "stop_reason",
        "data_source": "data_source",
    },
    "openrlhf": {"response": "text", "score": "reward", "step": "global_step"},
}  # fmt: skip
# Column names of each part if there is no explicit mapping, the most likely first. `answer` is not a response: in data
# sets it is the expected answer.
COMMON_COLUMN_NAMES: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "query", "input", "instruction", "problem", "prompt_text", "queries",
               "input_prompt", "full_prompt", "prompts"),
    "response": ("response", "completion", "output", "generation", "generated_text", "model_response", "response_text",
                 "prediction", "model_output", "output_response", "predict", "responses", "completions", "generations",
                 "predictions", "outputs", "text"),
    "score": ("score", "reward", "total_reward", "episode_reward", "rewards", "scores", "is_correct", "correct"),
    "ground_truth": ("ground_truth", "label", "gts", "gold", "target", "reference", "solution", "labels", "answer"),
    "step": ("step", "global_step", "training_step", "train_step", "iteration", "rollout_id", "gen_step"),
    "group": ("group", "group_id", "uid", "prompt_id", "prompt_idx", "problem_id", "example_id", "task_id"),
    "index": ("index", "sample_idx", "sample_index", "sample_id"),
    "trajectory": ("trajectory", "trajectory_id", "traj_id"),
    "turn": ("turn",),
    "messages": ("messages", "conversation", "conversations", "messages_and_choices", "turns"),
    "data_source": ("data_source", "dataset", "env_name", "domain", "source"),
    "finish_reason": ("finish_reason", "stop_reason", "finish_reasons", "stop_reasons"),
    "truncated": ("truncated", "is_truncated"),
    "prompt_ids": ("prompt_ids", "prompt_tokens", "prompt_token_ids"),
    "response_ids": ("response_ids", "response_tokens", "completion_ids", "response_token_ids", "output_ids"),
    "response_mask": ("response_mask", "loss_mask"),
    "logprobs": ("logprobs", "rollout_log_probs"),
    "advantages": ("advantages", "advantage"),
    "policy_version": ("policy_version",),
}  # fmt: skip
NATIVE_KEYS = tuple(key for key in SAMPLE_KEYS if key != "rewards")  # a table may also have `rewards` as one number
REWARD_COLUMN = re.compile(r"(?:reward_(?P<after>\w+)|(?P<before>\w+)_reward)\Z")  # `reward_format`, `format_reward`
REWARD_PREFIX = "rewards."  # prefix of a reward component: `rewards.format=format_score`
RESPONSE_PARTS = ("response", "response_ids", "messages")
LIST_PARTS = frozenset(("messages", "prompt_ids", "response_ids", "response_mask", "logprobs"))
NUMBER_PARTS = frozenset(("step", "index", "turn", "policy_version", "truncated"))
TEXT_PARTS = frozenset(("group", "trajectory", "data_source", "finish_reason"))  # or a number
JSON_TEXTS = ('[{"', "[{'")  # the start of a text that is a JSON list of messages
PARTS = frozenset((*SAMPLE_KEYS, "step"))
NUMBERED = re.compile(r"(?P<base>.*[^\d_])_(?P<number>\d{1,6})\Z", re.DOTALL)
LOGGED = re.compile(rb'\s*\{\s*(?:"_type"\s*:\s*"table[^"]*"\s*,\s*)?"columns"\s*:\s*(?=\[)')
# A string without its closing quote matches up to the end. Otherwise each quote inside it would start another string.
JSON_TOKEN = re.compile(rb'"(?P<key>[^"\\]{1,80})"\s{0,20}:|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
MAX_SCANNED_BYTES = 1 << 20  # the part of a file that is searched for objects
MAX_ROW_DEPTH = 4  # nesting depth at which rows are searched


def parse_column_mapping(text: str) -> dict[str, str]:
    """Returns {part: column} for `prompt=question,response=answer` or the name of a preset. Raises ValueError."""
    if text in COLUMN_PRESETS:
        return dict(COLUMN_PRESETS[text])
    columns = {}
    for pair in filter(None, (pair.strip() for pair in text.split(","))):
        part, sign, column = (word.strip() for word in pair.partition("="))
        if not sign or not column or not (part in PARTS or part.startswith(REWARD_PREFIX)):
            raise ValueError(
                f"`{pair[:80]}` is not a column mapping. Use PART=COLUMN with one of the parts "
                f"{', '.join(sorted(PARTS))} or {REWARD_PREFIX}NAME, or one of the presets {', '.join(COLUMN_PRESETS)}."
            )
        columns[part] = column
    return columns


def guess_columns(names: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Returns {part: column} for a table with these columns: the `known` mapping, and the other parts by name."""
    names, columns = list(names), dict(known)
    columns |= {key: key for key in NATIVE_KEYS if key in names and key not in columns and key not in columns.values()}
    # `Global Step` and `global-step` are `global_step`.
    normalized = {re.sub("[ -]", "_", name.strip().lower()): name for name in reversed(names)}
    for part, common_names in COMMON_COLUMN_NAMES.items():
        used = set(columns.values())
        candidates = (normalized[name] for name in common_names if name in normalized and normalized[name] not in used)
        if part not in columns and (column := next(candidates, "")):
            columns[part] = column
    if "rewards" in names and "rewards" not in columns.values():
        columns["rewards"] = "rewards"
    return columns


def find_other_names(layouts: Iterable[Iterable[str]], columns: Mapping[str, str]) -> dict[str, str]:
    """Returns {name: part} for rows with these keys: a name that some rows use in place of the column of its part.

    `reward` is such a name if other rows have `score`. If a row has both, they are two different things.
    """
    known = [set(names) for names in layouts]
    used, result = set(columns.values()), dict[str, str]()
    for part, column in columns.items():
        for name in COMMON_COLUMN_NAMES.get(part, ()):
            having = [names for names in known if name in names]
            if having and name not in used and not any(column in names for names in having):
                result.setdefault(name, part)
    return result


def rename_keys(
    row: Mapping[str, Any], other_names: Mapping[str, str], columns: Mapping[str, str]
) -> Mapping[str, Any]:
    """Returns the row with the column of each part that it has under another name, see `find_other_names`.

    A value that is no such part keeps its name: `turns` may be a number, and not messages.
    """
    for name, part in other_names.items():
        column = columns[part]
        if name in row and column not in row and is_value_of_part(part, row[name]):
            row = {column if key == name else key: value for key, value in row.items()}
    return row


def is_value_of_part(part: str, value: Any) -> bool:
    """Whether a value has a type that the part may have. Libraries have types of their own for numbers and lists."""
    is_text, is_object = isinstance(value, str), isinstance(value, Mapping)
    if part in LIST_PARTS:
        return not is_text and not is_object and hasattr(value, "__len__")
    if part in NUMBER_PARTS:
        return not is_text and not is_object and not hasattr(value, "__len__")
    if part in TEXT_PARTS:
        return not is_object and (is_text or not hasattr(value, "__len__"))
    return part != "score" or not is_text


def has_response_part(columns: Mapping[str, str]) -> bool:
    return any(part in columns for part in RESPONSE_PARTS)


def choose_row_format(names: Iterable[str], example: Mapping[str, Any]) -> str:
    """Returns the dump format of logged rows with these keys: `native`, or a table, whose columns are found by name.

    Both formats read rows whose keys are those of `SAMPLE_KEYS` in the same way; `native` is faster. Rows without a
    response are `native` too: the server counts each of them as rejected. `example` is one of the rows.
    """
    names = list(names)
    columns = guess_columns(names, {})
    if not has_response_part(columns):
        return "table" if group_numbered_columns(names) or find_samples_column(example) else "native"
    others = [name for name in names if name not in columns.values()]
    is_nested = any(isinstance(example.get(name), Mapping) for name in others)  # it may hold the ground truth
    is_renamed = any(part != column for part, column in columns.items()) or any(map(REWARD_COLUMN.match, others))
    is_text = all(
        isinstance(example.get(part), str) and not example[part].startswith(JSON_TEXTS)
        for part in ("prompt", "response")
    )
    if is_text and not is_nested and not is_renamed:
        return "native"
    return "token-table" if has_only_tokens(columns) else "table"


def has_only_tokens(columns: Mapping[str, str]) -> bool:
    return "response_ids" in columns and "response" not in columns and "messages" not in columns


def is_generation_mapping(columns: Mapping[str, str]) -> bool:
    """Whether a table without an explicit mapping contains generations. Text alone is a data set."""
    if any(part in columns for part in ("prompt", "score", "advantages", "prompt_ids")):
        return has_response_part(columns)
    return "messages" in columns and columns.get("response", "text") != "text"


def has_generation_columns(names: Iterable[str]) -> bool:
    """Whether a table with these columns contains generations, one or several per row."""
    names = list(names)
    return is_generation_mapping(guess_columns(names, {})) or bool(group_numbered_columns(names))


def group_numbered_columns(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Returns {number: {name: column}} for columns like `input_1`, `output_1`, `input_2`; {} for any other table."""
    groups: dict[str, dict[str, str]] = {}
    for name in names:
        if match := NUMBERED.match(name):
            groups.setdefault(match["number"], {})[match["base"]] = name
    first = next(iter(groups.values()), {})
    return groups if is_generation_mapping(guess_columns(first, {})) else {}


def find_samples_column(row: Mapping[str, Any]) -> str:
    """Returns the column that contains the samples of a row as a list of objects; "" if there is none."""
    for name, value in row.items():
        first = value[0] if isinstance(value, list) and value else None
        if not isinstance(first, dict) or "role" in first or {"type", "text"} <= set(first):
            continue
        rest = [other for other in row if other != name]
        keys = [*first, "response"] if isinstance(first.get("message"), dict) else [*first]
        adds_generations = has_generation_columns([*rest, *keys]) and not has_generation_columns(rest)
        if adds_generations and has_response_part(guess_columns(keys, {})):
            return name if all(isinstance(item, dict) for item in value) else ""
    return ""


def parse_logged_columns(start: bytes) -> list[str]:
    """Returns the columns of a table as logged by trackers, `{"columns": […], "data": […]}`; [] for other JSON."""
    match = LOGGED.match(start)
    if not match:
        return []
    try:
        names = json.JSONDecoder().raw_decode(start[match.end() :].decode("utf-8", "replace"))[0]
    except (ValueError, RecursionError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def find_row_keys(start: bytes) -> Iterator[list[str]]:
    """Yields the keys of each object that may be a row, in JSON that starts with these bytes.

    These are the outermost object, the objects directly in it, and objects in lists. Complete objects are first.
    """
    stack: list[list[str] | None] = []  # the open objects (their keys) and lists (None)
    for token in JSON_TOKEN.finditer(start[:MAX_SCANNED_BYTES]):
        if token[0] in (b"{", b"["):
            stack.append([] if token[0] == b"{" else None)
        elif token[0] in (b"}", b"]"):
            keys = stack.pop() if stack else None
            if keys and _is_row_position(stack):
                yield keys
        elif token["key"] and stack and (keys := stack[-1]) is not None:
            keys.append(token["key"].decode("utf-8", "replace"))
    yield from (keys for depth, keys in enumerate(stack[:MAX_ROW_DEPTH]) if keys and _is_row_position(stack[:depth]))


def _is_row_position(parents: Sequence[list[str] | None]) -> bool:
    """Whether an object inside these parents may be a row. A parent that is None is a list."""
    return len(parents) <= 1 or (len(parents) < MAX_ROW_DEPTH and parents[-1] is None)


def format_column_names(names: Sequence[str], max_names: int = 20) -> str:
    """Returns the first names in backticks and the number of the others."""
    text = ", ".join(f"`{name[:40]}`" for name in names[:max_names])
    return f"{text} and {len(names) - max_names} more" if len(names) > max_names else text or "none"


def number_repeated_names(names: Sequence[str]) -> list[str]:
    """Returns column names that differ. Of several equal ones the last keeps its name, as in an object of JSON; those
    before it are `name#1`, `name#2`."""
    seen: Counter[str] = Counter()
    totals, result = Counter(names), []
    for name in names:
        seen[name] += 1
        result.append(name if not name or seen[name] == totals[name] else f"{name}#{seen[name]}")
    return result
