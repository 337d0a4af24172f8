"""Episodes of prime-rl and verifiers: `traces.jsonl`, appended, one a line.

| line                                                         | since                        |
|--------------------------------------------------------------|------------------------------|
| an episode with the `traces` of its agents, its group and run | verifiers 0.4, August 2026   |
| a trace itself, with its own `run`                           | before                       |

A trace is a graph of messages: each way from its root to a leaf is a sample, since a harness that compacts its context
or calls itself branches. A message holds the tokens that it adds; log-probs and advantages stand for sampled tokens
only. The score is the sum of score times weight; null, where scoring did not run, is no score.
prime-rl writes every arrival to `all` and what was trained to `effective`: the same samples, which count once. Later it
writes one stream of training and evaluations in chunks, `00000.jsonl`: the episodes of the told split are read.
Source: verifiers/v1/{episode,trace,graph}.py, PrimeIntellect-ai/verifiers a60a606e and 91d4f69e; `FileMonitor` in
src/prime_rl/monitors/file.py, PrimeIntellect-ai/prime-rl 559b4477, and file/monitor.py, 048a6e23.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, BinaryIO

from rollouts.formats.base import DumpContext
from rollouts.formats.native import to_boolean, to_floats, to_token_ids
from rollouts.formats.readers import chat
from rollouts.formats.readers.jsonl import read_jsonl_rows
from rollouts.samples import LineProblem, Record, SkippedRow, to_float, to_integer, to_text

name = "verifiers"

HEAD = re.compile(rb'\s*\{.*"(?:traces|nodes)"\s*:\s*\[', re.DOTALL)
FILE = re.compile(r"(?:\A|/)traces\.jsonl\Z")
TRAINED = re.compile(r"(?:\A|/)effective/traces\.jsonl\Z")
CHUNK = re.compile(r"(?:\A|/)\d{5}\.jsonl\Z")
SPLITS = {"train": "a training", "eval": "an evaluation"}
TRUTHS = ("answer", "ground_truth", "solution")
MOST_CHARS = 256 << 20  # of all branches of an episode: each repeats what stands before it
NODE_CHARS = 64  # that a node takes besides its text
SUMMED = ("prompt_tokens", "cached_input_tokens", "completion_tokens", "reasoning_tokens", "cost")

Thing = dict[str, Any]


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head)) and (bool(FILE.search(filename)) or b'"sampled"' in head)


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
    """Records in the order of the lines. Raises UnreadableDumpError if no line holds an object."""
    trained, mixed = bool(TRAINED.search(context.filename)), bool(CHUNK.search(context.filename))
    for found in read_jsonl_rows(stream):
        if isinstance(found, LineProblem):
            yield found
            continue
        line, row = found
        if "trace_id" in row and "branches" in row:
            yield SkippedRow("what prime-rl tells later of a trace")
            continue
        if not isinstance(row.get("traces"), list) and not isinstance(row.get("nodes"), list):
            yield LineProblem(line, "is no episode: it has neither `traces` nor `nodes`")
            continue
        if mixed and (split := get_episode_split(row)) and split != context.split:
            yield SkippedRow(f"an episode of {SPLITS[split]}: --split {split} takes those")
            continue
        try:
            made = list(samples(row))
        except ValueError as error:
            yield LineProblem(line, str(error))
            continue
        for record in made:
            record.extras |= {"trained": True} if trained else {}
        yield from made
        if not made:
            yield SkippedRow("an episode that failed before the model said anything")


def get_episode_split(episode: Thing) -> str:
    """`train` or `eval`, as prime-rl stamps its traces or its run says; empty where neither does."""
    kinds = [part(trace, "info").get("kind") for trace in listed(episode.get("traces")) if isinstance(trace, dict)]
    run = part(episode, "run")
    return next(
        (kind for kind in (*kinds, part(run, "work").get("type"), run.get("type")) if kind in ("train", "eval")), ""
    )


def samples(row: Thing) -> Iterator[Record]:
    traces = row["traces"] if isinstance(row.get("traces"), list) else [row]
    room = Room()
    for trace in traces:
        if isinstance(trace, dict):
            yield from branches(row, trace, room)


class Room:
    """What the branches of an episode may still hold."""

    def __init__(self) -> None:
        self.left = MOST_CHARS

    def take(self, chars: int) -> None:
        """Raises ValueError."""
        self.left -= chars
        if self.left < 0:
            raise ValueError(f"its branches hold more than {MOST_CHARS:,} characters together")


def branches(episode: Thing, trace: Thing, room: Room) -> Iterator[Record]:
    """A sample for each leaf of the graph below which the model said something."""
    nodes = [node if isinstance(node, dict) else {} for node in listed(trace.get("nodes"))]
    paths = [path for path in ways(nodes, room) if any(node.get("sampled") for node in path)]
    for place, path in enumerate(paths):
        made = spoken(path)
        keep_tokens(made, path)
        made.trajectory, made.turn = to_text(trace.get("id")), place if len(paths) > 1 else None
        keep_trace(made, trace)
        keep_episode(made, episode, trace)
        yield made


def is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def part(thing: Thing, key: str) -> Thing:
    """The object under a key; {} for anything else."""
    value = thing.get(key)
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def ways(nodes: Sequence[Thing], room: Room) -> Iterator[list[Thing]]:
    """The paths from a root to each leaf, in the order of the leaves. A parent stands before its children; what is no
    message is passed over. Raises ValueError for paths that hold more than there is room for."""
    parents = [to_integer(node.get("parent")) for node in nodes]
    sizes = [size(node) if is_message(node.get("message")) else 0 for node in nodes]
    inner = set[int | None]()
    for child in reversed(range(len(nodes))):
        if sizes[child] or child in inner:
            inner.add(parents[child])
    for leaf in (place for place in range(len(nodes)) if sizes[place] and place not in inner):
        path, at = [leaf], parents[leaf]
        while at is not None and 0 <= at < path[-1]:
            path.append(at)
            room.take(sizes[at] or NODE_CHARS)  # what is passed over takes time
            at = parents[at]
        yield [nodes[at] for at in reversed(path) if sizes[at]]


def size(node: Thing) -> int:
    """About how many characters a node takes in a record."""
    tokens = node.get("token_ids")
    return NODE_CHARS + len(chat.render_message(node["message"])) + (len(tokens) if isinstance(tokens, list) else 0)


def spoken(path: Sequence[Thing]) -> Record:
    """The response begins with the first message that a call of the model made."""
    messages = [node["message"] for node in path]
    at = next(at for at, node in enumerate(path) if node.get("sampled"))
    return Record(chat.render_prompt(messages[:at]), chat.render_response(messages[at:]), messages)


def keep_tokens(made: Record, path: Sequence[Thing]) -> None:
    """Ids, mask and what is told per token, where every message has its tokens."""
    tokens = [to_token_ids(node.get("token_ids") or []) for node in path]
    masks = [[bool(one) for one in listed(node.get("mask"))] for node in path]
    if not any(tokens) or [len(one or ()) for one in tokens] != [len(one) for one in masks]:
        return
    every, sampled = list(chain.from_iterable(one or [] for one in tokens)), list(chain.from_iterable(masks))
    start = next((at for at, one in enumerate(sampled) if one), len(sampled))
    made.prompt_ids, made.response_ids = every[:start], every[start:]
    made.response_mask = [int(one) for one in sampled[start:]]
    for field, key in (("logprobs", "logprobs"), ("advantages", "advantages"), ("ref_logprobs", "reference_logprobs")):
        setattr(made, field, spread([node.get(key) for node in path], masks, start))


def spread(values: Sequence[Any], masks: Sequence[Sequence[bool]], start: int) -> list[float | None] | None:
    """What is told of sampled tokens, a place for each token from `start` on; None where nothing fits."""
    result: list[float | None] = []
    known = False
    for value, mask in zip(values, masks, strict=True):
        found = to_floats(value) if value else None
        if found is not None and len(found) == sum(mask):
            known, each = True, iter(found)
            result += [next(each) if is_sampled else None for is_sampled in mask]
        else:
            result += [None] * len(mask)
    return result[start:] if known else None


def keep_trace(made: Record, trace: Thing) -> None:
    """What the record of one agent says."""
    parts = {str(key): reward(value) for key, value in part(trace, "rewards").items()}
    made.rewards = {key: score for key, (score, _) in parts.items()}
    scored = [score * weight for score, weight in parts.values() if score is not None]
    made.score = sum(scored) if scored else to_float(trace.get("reward"))
    made.metrics = trace["metrics"] if isinstance(trace.get("metrics"), dict) else None
    made.timing = trace["timing"] if isinstance(trace.get("timing"), dict) else None
    made.tools = listed(trace.get("tools")) or None
    calls = [call for call in listed(trace.get("calls")) if isinstance(call, dict)]
    reasons = [call["finish_reason"] for call in calls if isinstance(call.get("finish_reason"), str)]
    stop = trace.get("stop_condition")
    made.finish_reason = reasons[-1] if reasons else to_text(stop)
    made.truncated = to_boolean(trace.get("is_truncated"))
    info, agent = part(trace, "info"), part(trace, "agent")
    if made.advantages is None and (advantage := to_float(info.get("advantage"))) is not None:
        made.advantages = [advantage]
    kept = {
        "agent": agent.get("name"),
        "model": next((call["model"] for call in calls if call.get("model")), None),
        "trainable": agent.get("trainable"),
        "stop_condition": stop,
        "ok": trace.get("ok"),
        "errors": listed(trace.get("errors")),
        "usage": usage(calls),
        "info": info,
    }
    made.extras |= {key: value for key, value in kept.items() if value not in (None, [], {})}


def reward(value: Any) -> tuple[float | None, float]:
    """Score and weight: `{score, weight}`, a plain number before, null where scoring did not run."""
    if isinstance(value, dict):
        weight = to_float(value.get("weight"))
        return to_float(value.get("score")), 1.0 if weight is None else weight
    return to_float(value), 1.0


def usage(calls: Sequence[Thing]) -> dict[str, float]:
    """Tokens of all calls; what no call reports is not there, which is not zero."""
    reports = [call["usage"] for call in calls if isinstance(call.get("usage"), dict)]
    values_by_key = {
        key: [report[key] for report in reports if isinstance(report.get(key), (int, float))] for key in SUMMED
    }
    return {key: sum(values) for key, values in values_by_key.items() if values}


def keep_episode(made: Record, episode: Thing, trace: Thing) -> None:
    """What all traces of an episode share: its task, its group, the run and the step that it was made for."""
    task, env = part(trace, "task") or part(episode, "task"), part(episode, "env")
    data = part(task, "data")
    run = part(episode, "run") or part(trace, "run")
    work = part(run, "work") or run
    policy = part(work, "policy")
    made.group = to_text(part(episode, "group").get("id") or task.get("hash") or task.get("key"))
    made.data_source = to_text(env.get("name") or env.get("id") or None)
    made.ground_truth = next((to_text(data[key]) for key in TRUTHS if data.get(key) is not None), None)
    made.policy_version = to_integer(policy.get("end"))
    whose = episode.get("id") if "traces" in episode else None
    kept = {"episode": whose, "task": data, "policy": policy}
    made.extras |= {key: value for key, value in kept.items() if value}
    made.extras["step"] = to_integer(work.get("step")) or 0
