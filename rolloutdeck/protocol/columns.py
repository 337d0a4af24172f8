"""Which column of a table is which part of a sample, by the names that people and trainers use. Standard library only.

Both sides go by it: what is taken from a folder is what the server can read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rolloutdeck.protocol.wire import SAMPLE_KEYS

# Tables that some trainers write, or that are written of their runs; `--map` takes these names.
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
    "openrlhf": {"response": "text", "score": "reward", "step": "global_step"},
}  # fmt: skip
# Of each part, the names that are taken for it where nobody said anything, the likeliest first. `answer` is none for a
# response: in data sets it is the expected one.
COMMON_COLUMN_NAMES: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "query", "input", "instruction", "problem", "prompt_text", "queries",
               "input_prompt", "full_prompt", "prompts"),
    "response": ("response", "completion", "output", "generation", "generated_text", "model_response", "response_text",
                 "prediction", "model_output", "output_response", "predict", "responses", "completions", "generations",
                 "predictions", "outputs", "text"),
    "score": ("score", "reward", "total_reward", "episode_reward", "rewards", "scores", "is_correct", "correct"),
    "ground_truth": ("ground_truth", "label", "gts", "gold", "target", "reference", "solution", "labels", "answer"),
    "step": ("step", "global_step", "training_step", "train_step", "iteration", "rollout_id",
             "gen_step"),
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
NATIVE_KEYS = tuple(key for key in SAMPLE_KEYS if key != "rewards")  # which a table may have as one number, too
REWARD_PREFIX = "rewards."  # before the name of a part of the reward: `rewards.format=format_score`
PARTS = frozenset((*SAMPLE_KEYS, "step"))
NUMBERED = re.compile(r"(?P<base>.*[^\d_])_(?P<number>\d{1,6})\Z", re.DOTALL)
LOGGED = re.compile(rb'\s*\{\s*(?:"_type"\s*:\s*"table[^"]*"\s*,\s*)?"columns"\s*:\s*(?=\[)')
# A text that does not end is one too, up to the end: else each of its quotes would begin one more.
JSON_TOKEN = re.compile(rb'"(?P<key>[^"\\]{1,80})"\s{0,20}:|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
MAX_SCANNED_BYTES = 1 << 20  # bytes in which objects are looked for
MAX_ROW_DEPTH = 4  # of objects in which rows are looked for


def parse_column_mapping(text: str) -> dict[str, str]:
    """{part: column} of `prompt=question,response=answer`, or of a preset's name. Raises ValueError."""
    if text in COLUMN_PRESETS:
        return dict(COLUMN_PRESETS[text])
    found = {}
    for pair in filter(None, (one.strip() for one in text.split(","))):
        part, sign, column = (word.strip() for word in pair.partition("="))
        if not sign or not column or not (part in PARTS or part.startswith(REWARD_PREFIX)):
            raise ValueError(
                f"`{pair[:80]}` maps no column: say PART=COLUMN with a part of {', '.join(sorted(PARTS))} or "
                f"{REWARD_PREFIX}NAME, or one of {', '.join(COLUMN_PRESETS)}."
            )
        found[part] = column
    return found


def normalize_column_name(name: str) -> str:
    """`Global Step` and `global-step` are `global_step`."""
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def guess_columns(names: Iterable[str], found: Mapping[str, str]) -> dict[str, str]:
    """{part: column} of a table with these columns: as it was `found`, the rest by their names."""
    names, made = list(names), dict(found)
    made |= {key: key for key in NATIVE_KEYS if key in names and key not in made and key not in made.values()}
    lower = {normalize_column_name(name): name for name in reversed(names)}
    for part, usual in COMMON_COLUMN_NAMES.items():
        taken = set(made.values())
        likely = (lower[name] for name in usual if name in lower and lower[name] not in taken)
        if part not in made and (column := next(likely, "")):
            made[part] = column
    if "rewards" in names and "rewards" not in made.values():
        made["rewards"] = "rewards"
    return made


def has_response_part(found: Mapping[str, str]) -> bool:
    return any(part in found for part in ("response", "response_ids", "messages"))


def is_generation_mapping(found: Mapping[str, str]) -> bool:
    """Whether a table that nobody spoke of is one of generations: a text alone is a data set."""
    if any(part in found for part in ("prompt", "score", "advantages", "prompt_ids")):
        return has_response_part(found)
    return "messages" in found and found.get("response", "text") != "text"


def has_generation_columns(names: Iterable[str]) -> bool:
    """Whether columns of these names are of generations, one in a row or several."""
    names = list(names)
    return is_generation_mapping(guess_columns(names, {})) or bool(group_numbered_columns(names))


def group_numbered_columns(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """{number: {name: column}} of a table that holds a generation in every few columns: `input_1`, `output_1`,
    `score_1`, `input_2`, …; {} of every other."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        if one := NUMBERED.match(name):
            found.setdefault(one["number"], {})[one["base"]] = name
    first = next(iter(found.values()), {})
    return found if is_generation_mapping(guess_columns(first, {})) else {}


def find_samples_column(row: Mapping[str, Any]) -> str:
    """The column of a row that holds its samples, as objects in a list; "" where there is none."""
    for name, value in row.items():
        first = value[0] if isinstance(value, list) and value else None
        if not isinstance(first, dict) or "role" in first or {"type", "text"} <= set(first):
            continue
        rest = [other for other in row if other != name]
        keys = [*first, "response"] if isinstance(first.get("message"), dict) else [*first]
        if (
            has_response_part(guess_columns(keys, {}))
            and has_generation_columns([*rest, *keys])
            and not has_generation_columns(rest)
        ):
            return name if all(isinstance(one, dict) for one in value) else ""
    return ""


def parse_logged_columns(start: bytes) -> list[str]:
    """The columns of a table as trackers keep it, `{"columns": […], "data": […]}`; none of every other JSON."""
    found = LOGGED.match(start)
    if not found:
        return []
    try:
        names = json.JSONDecoder().raw_decode(start[found.end() :].decode("utf-8", "replace"))[0]
    except (ValueError, RecursionError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def find_row_keys(start: bytes) -> Iterator[list[str]]:
    """The keys of the objects that may be rows in JSON of which this is the beginning: the outermost, those right in
    it, and those in lists. Those that end in it come first."""
    open_: list[list[str] | None] = []
    for token in JSON_TOKEN.finditer(start[:MAX_SCANNED_BYTES]):
        if token[0] in (b"{", b"["):
            open_.append([] if token[0] == b"{" else None)
        elif token[0] in (b"}", b"]"):
            keys = open_.pop() if open_ else None
            if keys and is_row_position(open_):
                yield keys
        elif token["key"] and open_ and (keys := open_[-1]) is not None:
            keys.append(token["key"].decode("utf-8", "replace"))
    yield from (keys for depth, keys in enumerate(open_[:MAX_ROW_DEPTH]) if keys and is_row_position(open_[:depth]))


def is_row_position(around: Sequence[list[str] | None]) -> bool:
    """Whether an object may be a row; None is a list."""
    return len(around) <= 1 or (len(around) < MAX_ROW_DEPTH and around[-1] is None)


def format_column_names(names: Sequence[str], most: int = 20) -> str:
    shown = ", ".join(f"`{name[:40]}`" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "none"
