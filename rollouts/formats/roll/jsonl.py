"""ROLL's rollouts, `rollout_dump_data.step_{step}.jsonl`: one line, an object of columns, a list per column.

| RLVR                      | agentic                                   | becomes                              |
|---------------------------|-------------------------------------------|--------------------------------------|
| prompt, messages (JSON)   | messages (JSON) up to the first answer    | prompt                               |
| responses                 | messages from the first answer on         | response                             |
| scores                    | trajectory_data: reward_info              | score                                |
| id, of its domain         | trajectory_data: env_info.group_id        | group                                |
|                           | with tag, episode_id and seed             |                                      |
|                           | trajectory_data: trajectory_id            | trajectory                           |
| ground_truth, source      | trajectory_data: env_info.tag, or exp_name| ground truth, data source            |
|                           | trajectory_data: stop_reason, truncated   | finish reason, truncated             |

Other columns become extras, also the full `trajectory_data`. The n responses to a prompt are consecutive rows. The n-th
row of a group is also its n-th row in `roll_mock`, which is how the two are merged. Train and validation of an agentic
step have the same file name and may overwrite each other: all versions count (`formats.ADDITIVE_FORMATS`), and
`env_info.mode` tells them apart.
Source: `write_to_json_process` in roll/pipeline/rlvr/utils.py, `dump_rollout_trajectories` in roll/pipeline/agentic/
utils.py and the agent-native environment manager of ROLL 8eb27cc2.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

from rollouts.errors import UnreadableDumpError
from rollouts.formats import native
from rollouts.formats.base import DumpContext
from rollouts.formats.readers import (
    JsonObject,
    collect_extras,
    get_object,
    is_conversation,
    parse_json_leniently,
    parse_prompt,
    parse_response_text,
    read_jsonl_rows,
    to_jsonable,
)
from rollouts.samples import LineProblem, Record, to_float, to_integer, to_text

name = "roll-jsonl"

FILE = re.compile(r"(?:.*/)?rollout_dump_data\.step_\d+\.jsonl\Z", re.DOTALL)
HEAD = re.compile(rb'\s*\{\s*"[^"\\]{1,80}"\s*:\s*\[')
RESPONSE_HEAD = re.compile(rb'"(?:responses|trajectory_data)"\s*:\s*\[')
RLVR_COLUMNS = frozenset(("prompt", "messages", "responses", "scores", "id", "ground_truth", "source", "global_step"))
AGENTIC_COLUMNS = frozenset(("messages", "tools", "global_step"))


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head)) and (bool(FILE.match(filename)) or bool(RESPONSE_HEAD.search(head)))


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem]:
    """Yields records in the order of the rows. Raises UnreadableDumpError if no line holds columns with responses."""
    groups, has_responses = GroupAssigner(), False
    for line in read_jsonl_rows(stream):
        if isinstance(line, LineProblem):
            yield line
            continue
        columns = {key: value for key, value in line[1].items() if isinstance(value, list)}
        if not {"responses", "trajectory_data"} & set(columns):
            yield LineProblem(line[0], "has no column `responses` or `trajectory_data`")
            continue
        has_responses = True
        yield from read_columns(columns, context, groups)
    if not has_responses:
        raise UnreadableDumpError("No line of it holds a column `responses` or `trajectory_data`.")


def read_columns(
    columns: dict[str, list[Any]], context: DumpContext, groups: GroupAssigner
) -> Iterator[Record | LineProblem]:
    count = len(columns.get("responses", columns.get("trajectory_data", ())))
    for key in [key for key, values in columns.items() if len(values) != count]:
        length = len(columns.pop(key))
        yield LineProblem(1, f"its column `{key}` has {length:,} values, not {count:,}; it is excluded", repaired=True)
    for index in range(count):
        row = {key: values[index] for key, values in columns.items()}
        try:
            record = build_agentic_record(row) if "trajectory_data" in row else build_rlvr_record(row, groups)
        except ValueError as error:
            yield LineProblem(index + 1, f"row {index + 1}: {error}")
            continue
        if (step := to_integer(row.get("global_step"))) != context.step:
            record.extras["step"] = step
        yield record


def build_rlvr_record(row: JsonObject, groups: GroupAssigner) -> Record:
    """Raises ValueError if prompt or response is not text."""
    conversation = decode_json_text(row.get("messages"))
    prompt, messages = parse_prompt(conversation if row.get("prompt") is None else row["prompt"])
    record = Record(prompt, parse_response_text(row["responses"]), messages or native.to_messages(conversation))
    record.score = to_float(row.get("scores"))
    record.group, record.index, record.trajectory = groups.assign(row.get("domain"), row.get("id"))
    record.ground_truth = to_text(row.get("ground_truth"))
    record.data_source = native.to_label(row.get("source"))
    record.extras |= collect_extras(row, RLVR_COLUMNS, decode_value)
    return record


def build_agentic_record(row: JsonObject) -> Record:
    """Raises ValueError if there is no list of messages."""
    turns = decode_json_text(row.get("messages"))
    if not is_conversation(turns):
        raise ValueError("its `messages` are not a list of messages")
    first = next((index for index, turn in enumerate(turns) if turn["role"] == "assistant"), len(turns))
    prompt, messages = parse_prompt(turns[:first])
    record = Record(prompt, render_continuation(turns[first:]), messages)
    record.tools = native.to_list(decode_json_text(row.get("tools"))) or None
    record.extras |= collect_extras(row, AGENTIC_COLUMNS, decode_value)
    set_trajectory_values(record, get_object(record.extras, "trajectory_data"))
    record.data_source = record.data_source or native.to_label(row.get("exp_name"))
    return record


def render_continuation(messages: list[JsonObject]) -> str:
    """Renders a response of one or several turns. The prompt ends with the role of the first turn."""
    text = parse_response_text(messages)
    return text.removeprefix("assistant\n") if len(messages) > 1 else text


def set_trajectory_values(record: Record, data: JsonObject) -> None:
    """Sets the fields that `trajectory_data` has. All of it is also in the extras."""
    env, failure = get_object(data, "env_info"), get_object(data, "failure_info")
    record.trajectory = native.to_label(data.get("trajectory_id"))
    record.group = build_episode_group(env)
    record.data_source = native.to_label(env.get("tag"))
    record.score = to_float(get_object(data, "reward_info").get("episode_reward"))
    record.finish_reason = native.to_label(failure.get("stop_reason", data.get("finish_reason")))
    record.truncated = native.to_boolean(get_object(data, "length_info").get("truncated"))
    if mode := native.to_label(env.get("mode")):
        record.extras["mode"] = mode


def build_episode_group(env: JsonObject) -> str | None:
    """Returns ROLL's `traj_group_id`, which `roll_mock` has too. The environments of a group run several episodes in a
    step, each with another task. Without the number of the episode: the group of environments."""
    parts = [native.to_label(env.get(name)) for name in ("tag", "group_id", "episode_id", "seed")]
    return parts[1] if None in parts else "_".join(map(str, parts))


def decode_value(value: Any) -> Any:
    return to_jsonable(decode_json_text(value))


def decode_json_text(value: Any) -> Any:
    """Returns an object or list that was written as JSON text; any other value unchanged."""
    if not isinstance(value, str) or value[:1] not in ("{", "["):
        return value
    try:
        return parse_json_leniently(value.encode("utf-8", "surrogatepass"))[0]
    except ValueError:
        return value


class GroupAssigner:
    """Assigns group, index and trajectory to each row. Each domain numbers its own prompts: if two domains have the
    same id, the group of the later one includes the domain."""

    def __init__(self) -> None:
        self.domains: dict[str, str | None] = {}  # id -> the first domain with this id
        self.sizes: Counter[str] = Counter()

    def assign(self, domain: Any, prompt: Any) -> tuple[str | None, int | None, str | None]:
        """Returns (group, index, trajectory). All are None without an id; then equal prompts form a group."""
        number, area = native.to_label(prompt), native.to_label(domain)
        if number is None:
            return None, None, None
        group = number if self.domains.setdefault(number, area) == area else f"{number}.{area}"
        self.sizes[group] += 1
        index = self.sizes[group] - 1
        return group, index, f"{area or ''}_{number}_{index}"
