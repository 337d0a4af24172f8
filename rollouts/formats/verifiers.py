"""Episodes of prime-rl and verifiers: `traces.jsonl`, appended, one line per episode.

| line                                                          | since                        |
|---------------------------------------------------------------|------------------------------|
| an episode with the `traces` of its agents, its group and run | verifiers 0.4, August 2026   |
| a trace itself, with its own `run`                            | before                       |

A trace is a graph of messages. Each path from its root to a leaf is a sample: a harness that compacts its context or
calls itself creates branches. A message has the tokens that it adds; log-probs and advantages exist for sampled tokens
only. The score is the sum of score times weight, and unknown if scoring did not run (null).
prime-rl writes all episodes to `all` and the trained ones to `effective`: they are the same samples. Later versions
write training and evaluations to the same chunks, `00000.jsonl`: only the episodes of the upload's split are read.
Source: verifiers/v1/{episode,trace,graph}.py, PrimeIntellect-ai/verifiers a60a606e and 91d4f69e; `FileMonitor` in
src/prime_rl/monitors/file.py, PrimeIntellect-ai/prime-rl 559b4477, and file/monitor.py, 048a6e23.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, BinaryIO

from rollouts.formats.base import DumpContext
from rollouts.formats.native import to_boolean, to_floats, to_object, to_token_ids
from rollouts.formats.readers import JsonObject, chat, get_list, get_object, read_jsonl_rows
from rollouts.samples import LineProblem, Record, SkippedRow, is_number, to_float, to_integer, to_text

name = "verifiers"

HEAD = re.compile(rb'\s*\{.*"(?:traces|nodes)"\s*:\s*\[', re.DOTALL)
FILE = re.compile(r"(?:\A|/)traces\.jsonl\Z")
TRAINED_FILE = re.compile(r"(?:\A|/)effective/traces\.jsonl\Z")
CHUNK_FILE = re.compile(r"(?:\A|/)\d{5}\.jsonl\Z")
SPLITS = {"train": "a training", "eval": "an evaluation"}
GROUND_TRUTH_KEYS = ("answer", "ground_truth", "solution")
MAX_EPISODE_CHARS = 256 << 20  # of all its branches: each repeats the messages that it shares with others
NODE_CHARS = 64  # of a node, in addition to its text
USAGE_KEYS = ("prompt_tokens", "cached_input_tokens", "completion_tokens", "reasoning_tokens", "cost")


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head)) and (bool(FILE.search(filename)) or b'"sampled"' in head)


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
    is_trained, is_chunk = bool(TRAINED_FILE.search(context.filename)), bool(CHUNK_FILE.search(context.filename))
    for row in read_jsonl_rows(stream):
        if isinstance(row, LineProblem):
            yield row
            continue
        line, episode = row
        if "trace_id" in episode and "branches" in episode:
            yield SkippedRow("a later update of a trace by prime-rl")
            continue
        if not isinstance(episode.get("traces"), list) and not isinstance(episode.get("nodes"), list):
            yield LineProblem(line, "is not an episode: it has neither `traces` nor `nodes`")
            continue
        if is_chunk and (split := get_episode_split(episode)) and split != context.split:
            yield SkippedRow(f"an episode of {SPLITS[split]}: use --split {split} to read it")
            continue
        try:
            records = list(build_samples(episode))
        except ValueError as error:
            yield LineProblem(line, str(error))
            continue
        for record in records:
            record.extras |= {"trained": True} if is_trained else {}
        yield from records
        if not records:
            yield SkippedRow("an episode that failed before the first answer of the model")


def get_episode_split(episode: JsonObject) -> str:
    """Returns `train` or `eval`, from the traces of prime-rl or from the run; empty if unknown."""
    kinds = [get_object(trace, "info").get("kind") for trace in get_list(episode, "traces")]
    run = get_object(episode, "run")
    kinds += [get_object(run, "work").get("type"), run.get("type")]
    return next((kind for kind in kinds if kind in ("train", "eval")), "")


def build_samples(episode: JsonObject) -> Iterator[Record]:
    """Yields one sample per leaf with an answer of the model. Raises ValueError if the episode is too large."""
    chars = 0
    for trace in get_list(episode, "traces") if isinstance(episode.get("traces"), list) else [episode]:
        nodes = [node if isinstance(node, dict) else {} for node in get_list(trace, "nodes")]
        paths = []
        for path, path_chars in find_paths(nodes):
            chars += path_chars
            if chars > MAX_EPISODE_CHARS:
                raise ValueError(f"its branches have more than {MAX_EPISODE_CHARS:,} characters together")
            if any(node.get("sampled") for node in path):
                paths.append(path)
        for turn, path in enumerate(paths):
            messages = [node["message"] for node in path]
            start = next(index for index, node in enumerate(path) if node.get("sampled"))
            record = Record(chat.render_prompt(messages[:start]), chat.render_response(messages[start:]), messages)
            record.trajectory, record.turn = to_text(trace.get("id")), turn if len(paths) > 1 else None
            set_tokens(record, path)
            set_trace_values(record, trace)
            set_episode_values(record, episode, trace)
            yield record


def find_paths(nodes: Sequence[JsonObject]) -> Iterator[tuple[list[JsonObject], int]]:
    """Yields the path from the root to each leaf, in the order of the leaves, and its characters without the leaf.
    Skips nodes that are not messages. Parents precede their children."""
    parents = [to_integer(node.get("parent")) for node in nodes]
    sizes = [count_chars(node) if chat.is_message(node.get("message")) else 0 for node in nodes]
    inner_nodes = set[int | None]()
    for child in reversed(range(len(nodes))):
        if sizes[child] or child in inner_nodes:
            inner_nodes.add(parents[child])
    for leaf in (index for index in range(len(nodes)) if sizes[index] and index not in inner_nodes):
        path, parent = [leaf], parents[leaf]
        while parent is not None and 0 <= parent < path[-1]:
            path.append(parent)
            parent = parents[parent]
        chars = sum(sizes[index] or NODE_CHARS for index in path[1:])  # a skipped node takes time
        yield [nodes[index] for index in reversed(path) if sizes[index]], chars


def count_chars(node: JsonObject) -> int:
    """Returns about how many characters a node has in a record."""
    return NODE_CHARS + len(chat.render_message(node["message"])) + len(get_list(node, "token_ids"))


def set_tokens(record: Record, path: Sequence[JsonObject]) -> None:
    """Sets ids, mask and the arrays per token, if every answer of the model has its tokens. Those of another message
    may be stored with the answer after it."""
    tokens = [to_token_ids(node.get("token_ids") or []) or [] for node in path]
    masks = [get_mask(node, len(ids)) for node, ids in zip(path, tokens, strict=True)]
    if not any(tokens) or list(map(len, tokens)) != list(map(len, masks)):
        return
    answers = [(node["message"], ids) for node, ids in zip(path, tokens, strict=True) if node.get("sampled")]
    if any(not ids and chat.render_message(message) for message, ids in answers):
        return
    all_tokens, sampled = list(chain.from_iterable(tokens)), list(chain.from_iterable(masks))
    start = sampled.index(True) if True in sampled else len(sampled)
    record.prompt_ids, record.response_ids = all_tokens[:start], all_tokens[start:]
    record.response_mask = list(map(int, sampled[start:]))
    for field, key in (("logprobs", "logprobs"), ("advantages", "advantages"), ("ref_logprobs", "reference_logprobs")):
        setattr(record, field, align_values([node.get(key) for node in path], masks, start))


def get_mask(node: JsonObject, count: int) -> list[bool]:
    """Returns which tokens of a message the model sampled. Without a mask: all of a sampled message, else none."""
    return list(map(bool, get_list(node, "mask"))) or [bool(node.get("sampled"))] * count


def align_values(values: Sequence[Any], masks: Sequence[Sequence[bool]], start: int) -> list[float | None] | None:
    """Aligns the values of sampled tokens to all tokens from `start` on; None if no list has the right length."""
    aligned: list[float | None] = []
    is_known = False
    for value, mask in zip(values, masks, strict=True):
        numbers = to_floats(value) if value else None
        if numbers is not None and len(numbers) == sum(mask):
            is_known, remaining = True, iter(numbers)
            aligned += [next(remaining) if is_sampled else None for is_sampled in mask]
        else:
            aligned += [None] * len(mask)
    return aligned[start:] if is_known else None


def set_trace_values(record: Record, trace: JsonObject) -> None:
    """Sets the values that a trace has for one agent."""
    rewards = {str(key): parse_reward(value) for key, value in get_object(trace, "rewards").items()}
    record.rewards = {key: score for key, (score, _) in rewards.items()}
    weighted = [score * weight for score, weight in rewards.values() if score is not None]
    record.score = sum(weighted) if weighted else to_float(trace.get("reward"))
    record.metrics, record.timing = to_object(trace.get("metrics")), to_object(trace.get("timing"))
    record.tools = get_list(trace, "tools") or None
    calls = [call for call in get_list(trace, "calls") if isinstance(call, dict)]
    reasons = [call["finish_reason"] for call in calls if isinstance(call.get("finish_reason"), str)]
    stop = trace.get("stop_condition")
    record.finish_reason = reasons[-1] if reasons else to_text(stop)
    record.truncated = to_boolean(trace.get("is_truncated"))
    info, agent = get_object(trace, "info"), get_object(trace, "agent")
    if record.advantages is None and (advantage := to_float(info.get("advantage"))) is not None:
        record.advantages = [advantage]
    extras = {
        "agent": agent.get("name"),
        "model": next((call["model"] for call in calls if call.get("model")), None),
        "trainable": agent.get("trainable"),
        "stop_condition": stop,
        "ok": trace.get("ok"),
        "errors": get_list(trace, "errors"),
        "usage": sum_usage(calls),
        "info": info,
    }
    record.extras |= {key: value for key, value in extras.items() if value not in (None, [], {})}


def parse_reward(value: Any) -> tuple[float | None, float]:
    """Returns score and weight of `{score, weight}`, or of a plain number as in older versions."""
    if isinstance(value, dict):
        weight = to_float(value.get("weight"))
        return to_float(value.get("score")), 1.0 if weight is None else weight
    return to_float(value), 1.0


def sum_usage(calls: Sequence[JsonObject]) -> dict[str, float]:
    """Returns the sums of token counts and cost over all calls, without the keys that no call reports."""
    reports = [get_object(call, "usage") for call in calls]
    values = {key: [report[key] for report in reports if is_number(report.get(key))] for key in USAGE_KEYS}
    return {key: sum(numbers) for key, numbers in values.items() if numbers}


def set_episode_values(record: Record, episode: JsonObject, trace: JsonObject) -> None:
    """Sets the values that all traces of an episode share: task, group, run and step."""
    task, env = get_object(trace, "task") or get_object(episode, "task"), get_object(episode, "env")
    data = get_object(task, "data")
    run = get_object(episode, "run") or get_object(trace, "run")
    work = get_object(run, "work") or run
    policy = get_object(work, "policy")
    record.group = to_text(get_object(episode, "group").get("id") or task.get("hash") or task.get("key"))
    record.data_source = to_text(env.get("name") or env.get("id") or None)
    record.ground_truth = next((to_text(data[key]) for key in GROUND_TRUTH_KEYS if data.get(key) is not None), None)
    record.policy_version = to_integer(policy.get("end"))
    extras = {"episode": episode.get("id") if "traces" in episode else None, "task": data, "policy": policy}
    record.extras |= {key: value for key, value in extras.items() if value}
    record.extras["step"] = to_integer(work.get("step")) or 0
