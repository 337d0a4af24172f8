"""rLLM's episodes: `{train|val}_step_{N}_epoch_{e}/episode_hash{…}_id{…}.json`, one episode a file.

A trajectory is a sample. Each step has the full conversation so far in `chat_completions`, so the last step has all of
it. If a step starts a new conversation, the trajectory gives one sample per conversation, with different `turn`. Token
ids are not written. Source: `EpisodeLogger.log_episode` in rllm/utils/episode_logger.py:80, rllm-org/rllm 9beb6e0f.

`rllm eval` writes `episodes/episode_{idx:06d}_{task}.json`, the unchanged episode: token ids and log-probs are in the
steps, the results of the evaluator in `signals` of the trajectory, the row of the task in its `metadata`. Source:
`EvalEpisodeStore.write` in rllm/eval/episode_store.py:106, `Episode` in rllm/types.py:317, of the same commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.formats.native import to_floats, to_token_ids
from rollouts.formats.readers import chat, json_document
from rollouts.formats.readers.jsonl import BROKEN_UTF8, render_content
from rollouts.samples import LineProblem, Record, SkippedRow, describe_json_type, to_float, to_integer, to_text

name = "rllm-episode"

HEAD = re.compile(rb'\s*\{\s*"training_step"\s*:.*"episode_id"\s*:', re.DOTALL)
EVALUATED = re.compile(rb'\s*\{\s*"id"\s*:\s*"[^"]*"\s*,\s*"task"\s*:')
EVALUATED_FILE = re.compile(r"(?:\A|/)episode_\d{6}_[^/]*\.json\Z")
TRUTHS = ("ground_truth", "answer", "solution")
OF_EPISODE = ("session_id", "epoch", "episode_id", "eval_idx", "task", "task_hash", "is_correct", "metadata")
OF_STEP = ("thought", "action", "reward", "done", "timing")
CUT = re.compile(r"max_.*_exceeded\Z", re.IGNORECASE)

Thing = dict[str, Any]


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head)) or bool(EVALUATED_FILE.search(filename) and EVALUATED.match(head))


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
    """Yields records in the order of the trajectories. Raises UnreadableDumpError."""
    episode, whole = json_document.read_json_document(stream)
    if not isinstance(episode, dict):
        raise UnreadableDumpError(f"It holds {describe_json_type(episode)} where an episode is expected.")
    if not whole:
        yield LineProblem(1, BROKEN_UTF8, repaired=True)
    trajectories = listed(episode.get("trajectories"))
    if not trajectories:
        yield SkippedRow("an episode without a trajectory")
    for place, trajectory in enumerate(trajectories):
        found = list(samples(episode, trajectory, place))
        yield from found
        if not found:
            yield SkippedRow("a trajectory without a step")


def listed(value: Any) -> list[Thing]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def samples(episode: Thing, trajectory: Thing, place: int) -> Iterator[Record]:
    """Yields a sample for each conversation of a trajectory."""
    found = conversations(listed(trajectory.get("steps")))
    for turn, steps in enumerate(found):
        made = spoken(steps[-1])
        made.trajectory = f"{id_of(episode)}/{place}"
        made.turn = turn if len(found) > 1 else None
        made.score = to_float(trajectory.get("reward"))
        if made.score is None:
            made.score = to_float(steps[-1].get("reward"))
        made.extras["agent"] = trajectory.get("name")
        made.extras["steps"] = [{key: step.get(key) for key in OF_STEP} for step in steps]
        made.rewards = {name: to_float(value) for name, value in part(trajectory, "signals").items()}
        if len(steps) == 1:
            keep_tokens(made, steps[0])
        timing = trajectory.get("timing")
        made.timing = timing if isinstance(timing, dict) else None
        keep_episode(made, episode)
        yield made


def conversations(steps: list[Thing]) -> list[list[Thing]]:
    """Groups the steps: a step that continues the messages of the previous step is in the same group."""
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
    if messages and chat.is_conversation(messages):
        at = chat.find_response_start(messages)
        said = chat.render_response(messages[at:]) or render_content(step.get("model_response"))
        return Record(chat.render_prompt(messages[:at]), said, messages)
    asked = next((step[key] for key in ("observation", "input") if step.get(key) is not None), None)
    return Record(render_content(asked), render_content(step.get("model_response") or step.get("output")))


def keep_tokens(made: Record, step: Thing) -> None:
    """Sets the tokens of the only step of an evaluation, with log-probs if there is one per response token."""
    made.prompt_ids, made.response_ids = (to_token_ids(step.get(key)) or None for key in ("prompt_ids", "response_ids"))
    logprobs = to_floats(step.get("logprobs"))
    if logprobs and made.response_ids and len(logprobs) == len(made.response_ids):
        made.logprobs = logprobs


def id_of(episode: Thing) -> Any:
    return episode["episode_id"] if "episode_id" in episode else episode.get("id")


def part(value: Thing, key: str) -> Thing:
    inner = value.get(key)
    return inner if isinstance(inner, dict) else {}


def keep_episode(made: Record, episode: Thing) -> None:
    task, reason = episode.get("task"), episode.get("termination_reason")
    made.group = to_text(episode.get("task_hash"))
    rollout = str(id_of(episode)).rpartition(":")[2]
    made.index = to_integer(int(rollout)) if rollout.isascii() and rollout.isdigit() and len(rollout) < 10 else None
    if isinstance(episode.get("is_correct"), bool):
        made.rewards["acc"] = float(episode["is_correct"])
    made.metrics = episode["metrics"] if isinstance(episode.get("metrics"), dict) else None
    if isinstance(reason, str):
        made.finish_reason, made.truncated = reason, bool(CUT.match(reason))
    if isinstance(task, dict):
        row = {**part(task, "metadata"), **task}
        made.group = made.group or to_text(task.get("id"))
        made.ground_truth = next((to_text(row[key]) for key in TRUTHS if row.get(key) is not None), None)
        made.data_source = to_text(row.get("data_source"))
    made.extras |= {key: episode[key] for key in OF_EPISODE if episode.get(key) is not None}
    made.extras |= {"artifacts": episode["artifacts"]} if episode.get("artifacts") else {}
    made.extras["step"] = to_integer(episode.get("training_step")) or 0
