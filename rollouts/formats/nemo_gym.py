"""NeMo-Gym's rollouts, `*_trajectory_collection.jsonl`, `rollouts.jsonl` or any name: one line per rollout, appended.

| key                                          | in the record                                                     |
|----------------------------------------------|-------------------------------------------------------------------|
| responses_create_params: instructions, input | prompt, messages; its tools                                       |
| response.output                              | response; its items become messages, see `readers.response_items` |
| reward                                       | score                                                             |
| reward_components, other numbers             | parts of the reward                                               |
| _ng_task_index, _ng_rollout_index            | group, index                                                      |
| agent_ref.name                               | data source                                                       |
| expected_answer, answer, ground_truth        | ground truth                                                      |
| response.incomplete_details, status          | finish reason, truncated                                          |
| prompt_token_ids, generation_token_ids,      | ids, mask and log-probs, if the prompt of each answer continues   |
| generation_log_probs of items                | the tokens before it                                              |

NeMo-RL writes such lines as `trajectory_collection.jsonl` in its log folder. It replaces the ids of an item by their
text, `prompt_str` and `generation_str`: then these are prompt and response. Source: `run_from_config` in
nemo_gym/rollout_collection.py, NVIDIA-NeMo/Gym 07d6b0d0; `collect_trajectories` in examples/nemo_gym/
run_grpo_nemo_gym.py and nemo_rl/environments/nemo_gym.py, NVIDIA-NeMo/RL.
"""

import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from rollouts.formats.base import DumpContext
from rollouts.formats.native import to_boolean, to_floats, to_token_ids
from rollouts.formats.readers import JsonObject, chat, convert_items, get_list, get_object, read_jsonl_rows
from rollouts.samples import LineProblem, Record, SkippedRow, is_number, to_float, to_integer, to_text

name = "nemo-gym"

HEAD = re.compile(rb'\s*\{\s*"(?:responses_create_params|response|agent_ref|_ng_\w+)"\s*:')
PARAMETERS = "responses_create_params"
GROUND_TRUTH_KEYS = ("expected_answer", "ground_truth", "answer")
KNOWN_KEYS = frozenset((PARAMETERS, "response", "reward", "reward_components", "agent_ref", "truncated"))
CUT_REASON = "max_output_tokens"


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head)) and f'"{PARAMETERS}"'.encode() in head


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
    for item in read_jsonl_rows(stream):
        if isinstance(item, LineProblem):
            yield item
            continue
        line, row = item
        if "_ng_failure_class" in row:
            yield SkippedRow("a rollout that failed")
        elif not isinstance(row.get(PARAMETERS), dict) or not isinstance(row.get("response"), dict):
            yield LineProblem(line, f"is not a rollout: it has no `{PARAMETERS}` or no `response`")
        else:
            yield build_record(row, context)


def build_record(row: JsonObject, context: DumpContext) -> Record:
    parameters, response = row[PARAMETERS], row["response"]
    prompt, items = build_prompt(parameters), get_list(response, "output")
    answer = convert_items(items)
    record = Record(chat.render_prompt(prompt), chat.render_response(answer), [*prompt, *answer])
    generated = [item for item in items if isinstance(item, dict)]
    set_recorded_text(record, generated)
    set_tokens(record, generated)
    record.tools = get_list(parameters, "tools") or None
    record.score = to_float(row.get("reward"))
    numbers = {key: value for key, value in row.items() if is_number(value) and not key.startswith("_")}
    record.rewards = {key: to_float(value) for key, value in numbers.items() if key not in KNOWN_KEYS}
    record.rewards |= {key: to_float(value) for key, value in get_object(row, "reward_components").items()}
    task = row.get("_ng_task_index")
    record.group, record.index = None if task is None else to_text(task), to_integer(row.get("_ng_rollout_index"))
    record.data_source = to_text(get_object(row, "agent_ref").get("name"))
    record.ground_truth = next((to_text(row[key]) for key in GROUND_TRUTH_KEYS if row.get(key) is not None), None)
    reason = get_object(response, "incomplete_details").get("reason")
    record.finish_reason = to_text(reason or response.get("status"))
    record.truncated = True if reason == CUT_REASON else to_boolean(row.get("truncated"))
    others = {key: value for key, value in row.items() if key not in KNOWN_KEYS and key not in numbers}
    others |= {"model": response.get("model"), "usage": response.get("usage")}
    record.extras = {key: value for key, value in others.items() if value not in (None, [], {}) and key[:4] != "_ng_"}
    if context.step is None:
        record.extras["step"] = 0
    return record


def build_prompt(parameters: JsonObject) -> list[JsonObject]:
    instructions, given = parameters.get("instructions"), parameters.get("input")
    messages = [{"role": "system", "content": instructions}] if isinstance(instructions, str) and instructions else []
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    return [*messages, *convert_items(given if isinstance(given, list) else [])]


def set_recorded_text(record: Record, items: Sequence[JsonObject]) -> None:
    """Sets the texts that the trainer decoded, if each prompt continues the texts before it."""
    text = ""
    start = None
    for item in items:
        prompt, generation = item.get("prompt_str"), item.get("generation_str")
        if not isinstance(prompt, str) or not isinstance(generation, str):
            continue
        if not prompt.startswith(text):
            return
        start = len(prompt) if start is None else start
        text = prompt + generation
    if start is not None:
        record.prompt, record.response = text[:start], text[start:]


def set_tokens(record: Record, items: Sequence[JsonObject]) -> None:
    """Sets ids, mask and log-probs: 1 for generated tokens, 0 for tokens of tools and of users."""
    tokens: list[int] = []
    mask: list[int] = []
    logprobs: list[float | None] = []
    start = None
    for item in items:
        prompt, generation = to_token_ids(item.get("prompt_token_ids")), to_token_ids(item.get("generation_token_ids"))
        if prompt is None or generation is None:
            continue
        if prompt[: len(tokens)] != tokens:
            return
        start = len(prompt) if start is None else start
        added = len(prompt) - len(tokens)
        known = to_floats(item.get("generation_log_probs")) or []
        tokens = [*prompt, *generation]
        mask += [0] * added + [1] * len(generation)
        logprobs += [None] * added + (known if len(known) == len(generation) else [None] * len(generation))
    if start is None:
        return
    record.prompt_ids, record.response_ids, record.response_mask = tokens[:start], tokens[start:], mask[start:]
    if any(value is not None for value in logprobs):
        record.logprobs = logprobs[start:]
