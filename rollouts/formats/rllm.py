"""rLLM's episodes: `{train|val}_step_{N}_epoch_{e}/episode_hash{…}_id{…}.json`, one episode per file.

A trajectory is a sample. Each step has the full conversation so far in `chat_completions`, so the last step has all of
it. If a step starts a new conversation, the trajectory gives one sample per conversation, with different `turn`. Token
ids are not written. Source: `EpisodeLogger.log_episode` in rllm/utils/episode_logger.py:80, rllm-org/rllm 9beb6e0f.

`rllm eval` writes `episodes/episode_{idx:06d}_{task}.json`, the unchanged episode: token ids and log-probs are in the
steps, the results of the evaluator in `signals` of the trajectory, the row of the task in its `metadata`. Source:
`EvalEpisodeStore.write` in rllm/eval/episode_store.py:106, `Episode` in rllm/types.py:317, of the same commit.
"""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.formats.native import to_floats, to_object, to_token_ids
from rollouts.formats.readers import (
    BROKEN_UTF8,
    JsonObject,
    chat,
    get_list,
    get_object,
    read_json_document,
    render_content,
)
from rollouts.samples import LineProblem, Record, SkippedRow, describe_json_type, to_float, to_integer, to_text

name = "rllm-episode"

HEAD = re.compile(rb'\s*\{\s*"training_step"\s*:.*"episode_id"\s*:', re.DOTALL)
EVAL_HEAD = re.compile(rb'\s*\{\s*"id"\s*:\s*"[^"]*"\s*,\s*"task"\s*:')
EVAL_FILE = re.compile(r"(?:\A|/)episode_\d{6}_[^/]*\.json\Z")
GROUND_TRUTH_KEYS = ("ground_truth", "answer", "solution")
EPISODE_KEYS = ("session_id", "epoch", "episode_id", "eval_idx", "task", "task_hash", "is_correct", "metadata")
STEP_KEYS = ("thought", "action", "reward", "done", "timing")
LIMIT_REASON = re.compile(r"max_.*_exceeded\Z", re.IGNORECASE)


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head)) or bool(EVAL_FILE.search(filename) and EVAL_HEAD.match(head))


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
    episode, is_utf8 = read_json_document(stream)
    if not isinstance(episode, dict):
        raise UnreadableDumpError(f"It holds {describe_json_type(episode)} where an episode is expected.")
    if not is_utf8:
        yield LineProblem(1, BROKEN_UTF8, repaired=True)
    trajectories = get_objects(episode, "trajectories")
    if not trajectories:
        yield SkippedRow("an episode without a trajectory")
    for index, trajectory in enumerate(trajectories):
        records = list(build_samples(episode, trajectory, index))
        yield from records
        if not records:
            yield SkippedRow("a trajectory without a step")


def get_objects(value: JsonObject, key: str) -> list[JsonObject]:
    return [item for item in get_list(value, key) if isinstance(item, dict)]


def build_samples(episode: JsonObject, trajectory: JsonObject, index: int) -> Iterator[Record]:
    """Yields a sample for each conversation of a trajectory."""
    groups = group_steps(get_objects(trajectory, "steps"))
    for turn, steps in enumerate(groups):
        record = build_record(steps[-1])
        record.trajectory, record.turn = f"{get_episode_id(episode)}/{index}", turn if len(groups) > 1 else None
        record.score = to_float(trajectory.get("reward"))
        if record.score is None:
            record.score = to_float(steps[-1].get("reward"))
        record.extras["agent"] = trajectory.get("name")
        record.extras["steps"] = [{key: step.get(key) for key in STEP_KEYS} for step in steps]
        record.rewards = {name: to_float(value) for name, value in get_object(trajectory, "signals").items()}
        record.timing = to_object(trajectory.get("timing"))
        if len(steps) == 1:
            set_tokens(record, steps[0])
        set_episode_values(record, episode)
        yield record


def group_steps(steps: list[JsonObject]) -> list[list[JsonObject]]:
    """Groups the steps: a step that continues the messages of the previous step is in the same group."""
    groups: list[list[JsonObject]] = []
    for step in steps:
        previous = get_list(groups[-1][-1], "chat_completions") if groups else []
        if previous and get_list(step, "chat_completions")[: len(previous)] == previous:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def build_record(step: JsonObject) -> Record:
    messages = step.get("chat_completions")
    if messages and chat.is_conversation(messages):
        prompt, response = chat.render_conversation(messages)
        return Record(prompt, response or render_content(step.get("model_response")), messages)
    prompts = (step[key] for key in ("observation", "input") if step.get(key) is not None)
    response = render_content(step.get("model_response") or step.get("output"))
    return Record(render_content(next(prompts, None)), response)


def set_tokens(record: Record, step: JsonObject) -> None:
    """Sets the tokens of the only step of an evaluation, with log-probs if there is one per response token."""
    record.prompt_ids = to_token_ids(step.get("prompt_ids")) or None
    record.response_ids = to_token_ids(step.get("response_ids")) or None
    logprobs = to_floats(step.get("logprobs"))
    if logprobs and record.response_ids and len(logprobs) == len(record.response_ids):
        record.logprobs = logprobs


def get_episode_id(episode: JsonObject) -> Any:
    return episode["episode_id"] if "episode_id" in episode else episode.get("id")


def set_episode_values(record: Record, episode: JsonObject) -> None:
    task, reason = episode.get("task"), episode.get("termination_reason")
    record.group = to_text(episode.get("task_hash"))
    rollout = str(get_episode_id(episode)).rpartition(":")[2]
    record.index = to_integer(int(rollout)) if rollout.isascii() and rollout.isdigit() and len(rollout) < 10 else None
    if isinstance(episode.get("is_correct"), bool):
        record.rewards["acc"] = float(episode["is_correct"])
    record.metrics = to_object(episode.get("metrics"))
    if isinstance(reason, str):
        record.finish_reason, record.truncated = reason, bool(LIMIT_REASON.match(reason))
    if isinstance(task, dict):
        row = {**get_object(task, "metadata"), **task}
        record.group = record.group or to_text(task.get("id"))
        record.ground_truth = next((to_text(row[key]) for key in GROUND_TRUTH_KEYS if row.get(key) is not None), None)
        record.data_source = to_text(row.get("data_source"))
    record.extras |= {key: episode[key] for key in EPISODE_KEYS if episode.get(key) is not None}
    record.extras |= {"artifacts": episode["artifacts"]} if episode.get("artifacts") else {}
    record.extras["step"] = to_integer(episode.get("training_step")) or 0
