"""rLLM's episodes: `{train|val}_step_{N}_epoch_{e}/episode_hash{…}_id{…}.json`, one episode a file.

A trajectory is a sample. Its steps hold the whole conversation so far in `chat_completions`, so that the last has all;
where a step begins a conversation of its own, the trajectory has a sample for each, told apart by `turn`. Token ids are
not written. Source: `EpisodeLogger.log_episode` in rllm/utils/episode_logger.py:80, rllm-org/rllm 9beb6e0f.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from rollouts.errors import UnreadableDump
from rollouts.formats import chat, whole_json
from rollouts.formats.base import Told
from rollouts.formats.jsonl import BROKEN_UTF8, content_text, integer, kind, number, told_text
from rollouts.records import LeftOut, Problem, Record

name = "rllm-episode"

HEAD = re.compile(rb'\s*\{\s*"training_step"\s*:.*"episode_id"\s*:', re.DOTALL)
TRUTHS = ("ground_truth", "answer", "solution")
OF_EPISODE = ("session_id", "epoch", "episode_id", "task", "task_hash", "is_correct", "metadata")
OF_STEP = ("thought", "action", "reward", "done", "timing")
CUT = re.compile(r"max_.*_exceeded\Z", re.IGNORECASE)

Thing = dict[str, Any]


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head))


def read(stream: BinaryIO, told: Told) -> Iterator[Record | Problem | LeftOut]:
    """Records in the order of the trajectories. Raises UnreadableDump."""
    episode, whole = whole_json.value(stream)
    if not isinstance(episode, dict):
        raise UnreadableDump(f"It holds {kind(episode)} where an episode is expected.")
    if not whole:
        yield Problem(1, BROKEN_UTF8, kept=True)
    trajectories = listed(episode.get("trajectories"))
    if not trajectories:
        yield LeftOut("an episode without a trajectory")
    for place, trajectory in enumerate(trajectories):
        found = list(samples(episode, trajectory, place))
        yield from found
        if not found:
            yield LeftOut("a trajectory without a step")


def listed(value: Any) -> list[Thing]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def samples(episode: Thing, trajectory: Thing, place: int) -> Iterator[Record]:
    """A sample for each conversation of a trajectory."""
    found = conversations(listed(trajectory.get("steps")))
    for turn, steps in enumerate(found):
        made = spoken(steps[-1])
        made.trajectory = f"{episode.get('episode_id')}/{place}"
        made.turn = turn if len(found) > 1 else None
        made.score = number(trajectory.get("reward"))
        if made.score is None:
            made.score = number(steps[-1].get("reward"))
        made.extras["agent"] = trajectory.get("name")
        made.extras["steps"] = [{key: step.get(key) for key in OF_STEP} for step in steps]
        timing = trajectory.get("timing")
        made.timing = timing if isinstance(timing, dict) else None
        keep_episode(made, episode)
        yield made


def conversations(steps: list[Thing]) -> list[list[Thing]]:
    """The steps, put together where one goes on with the messages of the one before."""
    found: list[list[Thing]] = []
    for step in steps:
        before = found[-1][-1].get("chat_completions") if found else None
        now = step.get("chat_completions")
        if before and isinstance(before, list) and isinstance(now, list) and now[: len(before)] == before:
            found[-1].append(step)
        else:
            found.append([step])
    return found


def spoken(step: Thing) -> Record:
    messages = step.get("chat_completions")
    if messages and chat.is_talk(messages):
        at = chat.parted(messages)
        said = chat.answered(messages[at:]) or content_text(step.get("model_response"))
        return Record(chat.asked(messages[:at]), said, messages)
    return Record(content_text(step.get("observation")), content_text(step.get("model_response")))


def keep_episode(made: Record, episode: Thing) -> None:
    task, reason = episode.get("task"), episode.get("termination_reason")
    made.group = told_text(episode.get("task_hash"))
    rollout = str(episode.get("episode_id")).rpartition(":")[2]
    made.index = integer(int(rollout)) if rollout.isascii() and rollout.isdigit() and len(rollout) < 10 else None
    if isinstance(episode.get("is_correct"), bool):
        made.rewards["acc"] = float(episode["is_correct"])
    made.metrics = episode["metrics"] if isinstance(episode.get("metrics"), dict) else None
    if isinstance(reason, str):
        made.finish_reason, made.truncated = reason, bool(CUT.match(reason))
    if isinstance(task, dict):
        made.ground_truth = next((told_text(task[key]) for key in TRUTHS if task.get(key) is not None), None)
        made.data_source = told_text(task.get("data_source"))
    made.extras |= {key: episode[key] for key in OF_EPISODE if episode.get(key) is not None}
    made.extras["step"] = integer(episode.get("training_step")) or 0
