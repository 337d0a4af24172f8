"""ROLL's rollouts, `rollout_dump_data.step_{step}.jsonl`: one line, an object of columns, a list per column.

| RLVR                      | agentic                                   | becomes                              |
|---------------------------|-------------------------------------------|--------------------------------------|
| prompt, messages (JSON)   | messages (JSON) up to the first answer    | prompt                               |
| responses                 | messages from the first answer on         | response                             |
| scores                    | trajectory_data: reward_info              | score                                |
| id, of its domain         | trajectory_data: env_info.group_id        | group                                |
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
from rollouts.formats.readers.jsonl import (
    parse_json_leniently,
    parse_prompt,
    parse_response_text,
    read_jsonl_rows,
    render_messages,
)
from rollouts.formats.readers.values import parse_continuation, to_jsonable
from rollouts.samples import LineProblem, Record, to_float, to_integer, to_text

name = "roll-jsonl"

FILE = re.compile(r"(?:.*/)?rollout_dump_data\.step_\d+\.jsonl\Z", re.DOTALL)
COLUMNS = re.compile(rb'\s*\{\s*"[^"\\]{1,80}"\s*:\s*\[')
ANSWERS = re.compile(rb'"(?:responses|trajectory_data)"\s*:\s*\[')
RLVR_COLUMNS = frozenset(("prompt", "messages", "responses", "scores", "id", "ground_truth", "source", "global_step"))
AGENTIC = frozenset(("messages", "tools", "global_step"))

Row = dict[str, Any]


def sniff(filename: str, head: bytes) -> bool:
    return bool(COLUMNS.match(head)) and (bool(FILE.match(filename)) or bool(ANSWERS.search(head)))


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem]:
    """Yields records in the order of the rows. Raises UnreadableDumpError if no line holds columns with answers."""
    groups, found = GroupAssigner(), False
    for line in read_jsonl_rows(stream):
        if isinstance(line, LineProblem):
            yield line
            continue
        columns = {key: value for key, value in line[1].items() if isinstance(value, list)}
        if not {"responses", "trajectory_data"} & set(columns):
            yield LineProblem(line[0], "has no column `responses` or `trajectory_data`")
            continue
        found = True
        yield from records(columns, context, groups)
    if not found:
        raise UnreadableDumpError("No line of it holds a column `responses` or `trajectory_data`.")


def records(
    columns: dict[str, list[Any]], context: DumpContext, groups: GroupAssigner
) -> Iterator[Record | LineProblem]:
    count = len(columns.get("responses", columns.get("trajectory_data", ())))
    for key in [key for key, values in columns.items() if len(values) != count]:
        length = len(columns.pop(key))
        yield LineProblem(1, f"its column `{key}` has {length:,} values, not {count:,}; it is left out", repaired=True)
    for at in range(count):
        row = {key: values[at] for key, values in columns.items()}
        try:
            made = agentic(row) if "trajectory_data" in row else rlvr(row, groups)
        except ValueError as error:
            yield LineProblem(at + 1, f"row {at + 1}: {error}")
            continue
        if (step := to_integer(row.get("global_step"))) != context.step:
            made.extras["step"] = step
        yield made


def rlvr(row: Row, groups: GroupAssigner) -> Record:
    """Raises ValueError if prompt or response is not text."""
    spoken = decode_json_text(row.get("messages"))
    prompt, messages = parse_prompt(spoken if row.get("prompt") is None else row["prompt"])
    made = Record(prompt, parse_response_text(row["responses"]), messages or native.to_messages(spoken))
    made.score = to_float(row.get("scores"))
    made.group, made.index, made.trajectory = groups.assign(row.get("domain"), row.get("id"))
    made.ground_truth = to_text(row.get("ground_truth"))
    made.data_source = native.to_label(row.get("source"))
    made.extras |= collect_extra_columns(row, RLVR_COLUMNS)
    return made


def agentic(row: Row) -> Record:
    """Raises ValueError if there is no list of messages."""
    spoken = decode_json_text(row.get("messages"))
    if not isinstance(spoken, list) or render_messages(spoken) is None:
        raise ValueError("its `messages` are no list of messages")
    first = next((at for at, turn in enumerate(spoken) if turn["role"] == "assistant"), len(spoken))
    prompt, asked = parse_prompt(spoken[:first])
    made = Record(prompt, parse_continuation(spoken[first:]), asked)
    made.tools = native.to_list(decode_json_text(row.get("tools"))) or None
    made.extras |= collect_extra_columns(row, AGENTIC)
    data = made.extras.get("trajectory_data")
    keep_trajectory(made, data if isinstance(data, dict) else {})
    made.data_source = made.data_source or native.to_label(row.get("exp_name"))
    return made


def keep_trajectory(made: Record, data: Row) -> None:
    """Sets the fields that `trajectory_data` has. All of it is also in the extras."""
    env, reward, failure = part(data, "env_info"), part(data, "reward_info"), part(data, "failure_info")
    made.trajectory = native.to_label(data.get("trajectory_id"))
    made.group = native.to_label(env.get("group_id"))
    made.data_source = native.to_label(env.get("tag"))
    made.score = to_float(reward.get("episode_reward"))
    made.finish_reason = native.to_label(failure.get("stop_reason", data.get("finish_reason")))
    made.truncated = native.to_boolean(part(data, "length_info").get("truncated"))
    if mode := native.to_label(env.get("mode")):
        made.extras["mode"] = mode


def part(data: Row, key: str) -> Row:
    found = data.get(key)
    return found if isinstance(found, dict) else {}


def collect_extra_columns(row: Row, known: frozenset[str]) -> dict[str, Any]:
    """Returns the other columns that are not empty. Decodes JSON that was written as text."""
    found = {key: to_jsonable(decode_json_text(value)) for key, value in row.items() if key not in known}
    return {key: value for key, value in found.items() if value not in (None, "", [], {})}


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
