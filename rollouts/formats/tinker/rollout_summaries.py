"""tinker-cookbook's `iteration_{N:06d}/{train|eval_…}_rollout_summaries.jsonl`: one line per trajectory, without text.

| key                               | in the record                                                             |
|-----------------------------------|---------------------------------------------------------------------------|
| total_reward                      | score                                                                     |
| final_reward                      | `final_reward`, what the group added to the rewards of the turns          |
| steps[].metrics, trajectory_metrics | parts of the reward; of a name in several turns the last                |
| group_idx, traj_idx               | order of lines and index                                                  |
| tags                              | data source: the first; all of them are stored                            |
| sampling_client_step              | policy version                                                            |
| steps                             | stored, with lengths in tokens, rewards and what the environment logged   |

The lines join the texts of `logtree` by their numbers, see `trajectory_key`. Lines without a text there are samples
without text. Source: `serialize_rollout_summaries` in tinker_cookbook/rl/rollout_logging.py,
thinking-machines-lab/tinker-cookbook 9dfcc3a2, schema_version 1.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any, BinaryIO

from rollouts.formats.base import DumpContext
from rollouts.formats.readers import JsonObject, get_list, get_object, read_jsonl_rows
from rollouts.formats.tinker.trajectory_key import GroupNamer, TrajectoryNumbers, format_reward
from rollouts.samples import LineProblem, Record, to_float, to_integer, to_text

name = "tinker-rollouts"

FILE = re.compile(r"_rollout_summaries\.jsonl\Z")
HEAD = re.compile(rb'\s*\{\s*"schema_version"\s*:\s*\d+\s*,\s*"split"\s*:[^{}\[\]]*"traj_idx"\s*:')
MAX_GROUP_ROWS = 4096  # lines that are read together


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head))


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem]:
    namer = GroupNamer()
    for key, items in groupby(number_groups(stream), key=lambda item: item[0]):
        if key is None:
            yield from (item for _, item in items if isinstance(item, LineProblem))
            continue
        rows = [row for _, row in items if isinstance(row, dict)]
        group = namer.name_group([get_numbers(row) for row in rows])
        for index, row in enumerate(rows):
            yield build_record(row, group, index, context)


def number_groups(stream: BinaryIO) -> Iterator[tuple[tuple[Any, int] | None, JsonObject | LineProblem]]:
    """Yields each row with the number of its group; None for a problem."""
    previous, count = None, 0
    for item in read_jsonl_rows(stream):
        if isinstance(item, LineProblem):
            yield None, item
            continue
        line, row = item
        if not isinstance(row.get("steps"), list) or to_integer(row.get("traj_idx")) is None:
            yield None, LineProblem(line, "is not a summary of a trajectory: it has no `traj_idx` or no `steps`")
            continue
        group = to_integer(row.get("group_idx"))
        count = count + 1 if group == previous else 0
        previous = group
        yield (group, count // MAX_GROUP_ROWS), row


def get_numbers(row: JsonObject) -> TrajectoryNumbers:
    """Returns the numbers that name the trajectory."""
    turns = [
        (
            to_integer(step.get("ob_len")) or 0,
            to_integer(step.get("ac_len")) or 0,
            format_reward(to_float(step.get("reward"))),
        )
        for step in get_list(row, "steps")
        if isinstance(step, dict)
    ]
    return turns, format_reward(to_float(row.get("final_reward")))


def build_record(row: JsonObject, group: str, index: int, context: DumpContext) -> Record:
    record = Record(textless=True)
    record.score = to_float(row.get("total_reward"))
    record.group, record.index, record.trajectory = group, index, f"{group}/{index}"
    for step in get_list(row, "steps"):
        record.rewards |= {key: to_float(value) for key, value in get_object(step, "metrics").items()}
    record.rewards |= {key: to_float(value) for key, value in get_object(row, "trajectory_metrics").items()}
    record.policy_version = to_integer(row.get("sampling_client_step"))
    tags = get_list(row, "tags")
    record.data_source = to_text(tags[0]) if tags else None
    record.extras = {
        "group_idx": row.get("group_idx"),
        "final_reward": to_float(row.get("final_reward")),
        "tags": tags,
        "steps": get_list(row, "steps"),
        "final_ob_len": row.get("final_ob_len"),
    }
    step = to_integer(row.get("iteration"))
    if context.split == "train":
        record.extras["trainer_version"] = step  # tinker-cookbook compares both numbers with its limit of staleness
    if step != context.step:
        record.extras["step"] = step
    return record
