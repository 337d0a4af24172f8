"""slime's rollouts, `{rollout_id}.pt` and, of an eval, `eval_{rollout_id}.pt`: a `torch.save` of {"rollout_id": step,
"samples": [Sample.to_dict()]}, written by `--save-debug-rollout-data` and `--dump-details`.

| in a sample                           | becomes                                                                    |
|---------------------------------------|----------------------------------------------------------------------------|
| prompt (text or messages), response   | as recorded, including special tokens                                      |
| tokens, response_length               | prompt and response ids                                                    |
| loss_mask, rollout_log_probs          | response mask, log-probs                                                   |
| reward                                | score; of a dict its `score`, else `reward`, else its only number, and the |
|                                       | others parts of the reward, because the file lacks the `--reward-key`      |
| group_index                           | group. An eval joins its data sets, each of which counts from 0, so the    |
|                                       | same number with another prompt is another group                           |
| index, rollout_id                     | trajectory: one execution that was cut into several samples has one        |
|                                       | `rollout_id`, which is not the step, and its samples are turns             |
| label, status, weight_versions        | ground truth, finish reason and truncated, policy version                  |

The images and videos of `multimodal_inputs` are extras of these names; `multimodal_train_inputs`, the tensors that the
model gets of them, is not stored. All other keys that are not empty become extras, also those of a custom generate
function. Long lists of numbers
(experts, log-probs of the teacher) are summarized, not copied.
Source: `save_debug_rollout_data` and `Sample` of slime 624b824a.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from rolloutdeck.safe_pickle.batches import RowConverter, TooManyValuesError, open_torch_dict
from rolloutdeck.trainers.slime import SLIME_HEAD_BYTES, is_slime_dump
from rollouts.errors import UnreadableDumpError
from rollouts.formats import native
from rollouts.formats.base import DumpContext
from rollouts.formats.readers import (
    collect_extras,
    get_object,
    parse_prompt,
    parse_response_text,
    provide_pickle_file,
    summarize_value,
    to_jsonable,
)
from rollouts.samples import LineProblem, Record, is_number, to_float, to_integer, to_text

name = "slime-rollout"

EVAL_FILE = re.compile(r"(?<![a-z])eval_\d[^/]*\Z", re.IGNORECASE)
SCORE_KEYS = ("score", "reward")  # of a reward dict
SOURCE_KEYS = ("source_name", "data_source", "dataset", "dataset_name")  # of `metadata`
# Keys that are stored in fields of the record.
KNOWN_KEYS = frozenset(
    ("group_index", "index", "rollout_id", "prompt", "tokens", "response", "response_length", "label", "reward",
     "loss_mask", "rollout_log_probs", "status", "non_generation_time", "weight_versions", "multimodal_inputs",
     "multimodal_train_inputs")
)  # fmt: skip

SlimeSampleDict = dict[Any, Any]


def sniff(filename: str, head: bytes) -> bool:
    return is_slime_dump(head, trained=False) and b"samples" in head[:SLIME_HEAD_BYTES]


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem]:
    with provide_pickle_file(stream, context) as path, open_torch_dict(path) as saved:
        yield from read_records(saved, context)


def get_saved_samples(saved: SlimeSampleDict, what: str) -> list[Any]:
    """Raises UnreadableDumpError if there are none."""
    samples = saved.get("samples")
    if not isinstance(samples, list) or not samples:
        raise UnreadableDumpError(f"The file holds no {what}: a list `samples` is expected.")
    return samples


def read_records(saved: SlimeSampleDict, context: DumpContext) -> Iterator[Record | LineProblem]:
    samples, step = get_saved_samples(saved, "rollout"), to_integer(saved.get("rollout_id"))
    is_eval = context.split == "eval" or EVAL_FILE.search(context.filename)
    trajectories = None if is_eval else TrajectoryAssigner(samples, "rollout_id", "index")
    groups, converter = SlimeGroupAssigner(joins_data_sets=bool(is_eval)), RowConverter()
    for position, sample in enumerate(samples):
        try:
            row = converter.plain(sample)
            if not isinstance(row, dict):
                raise ValueError("is not a sample")
            record = build_record(row)
        except (ValueError, TooManyValuesError) as error:
            yield LineProblem(position + 1, str(error))
            continue
        record.group, record.index = groups.assign(to_integer(row.get("group_index")), record.prompt)
        if trajectories:
            record.trajectory, record.turn = trajectories.assign(position)
        if step != context.step:
            record.extras["step"] = step
        yield record


def build_record(row: SlimeSampleDict) -> Record:
    """Raises ValueError if prompt or response is neither text nor messages."""
    prompt, messages = parse_prompt(to_jsonable(row.get("prompt")))
    record = Record(prompt, parse_response_text(to_jsonable(row.get("response"))), messages)
    set_tokens(record, row)
    set_reward(record, to_jsonable(row.get("reward")))
    record.ground_truth = to_text(to_jsonable(row.get("label")))
    record.finish_reason = native.to_label(row.get("status"))
    record.truncated = None if record.finish_reason is None else record.finish_reason == "truncated"
    if seconds := to_float(row.get("non_generation_time")):
        record.timing = {"non_generation": seconds}
    set_policy_version(record, row.get("weight_versions"))
    metadata = row.get("metadata")
    if isinstance(metadata, dict):
        record.data_source = next((native.to_label(metadata[key]) for key in SOURCE_KEYS if metadata.get(key)), None)
    record.extras |= collect_extras(row, KNOWN_KEYS, summarize_value)
    record.extras |= collect_extras(get_object(row, "multimodal_inputs"), (), summarize_value)
    if record.extras.get("remove_sample") is False:  # slime's default
        del record.extras["remove_sample"]
    return record


def set_tokens(record: Record, row: SlimeSampleDict) -> None:
    """Sets the arrays that have the length of the response. Other arrays would be aligned to the wrong tokens."""
    length = split_tokens(record, row.get("tokens"), row.get("response_length"))
    if length is None:
        return
    for field, key, convert in (
        ("response_mask", "loss_mask", native.to_mask),
        ("logprobs", "rollout_log_probs", native.to_floats),
    ):
        values = convert(row.get(key))
        if values is not None and len(values) == length:
            setattr(record, field, values)


def split_tokens(record: Record, tokens: Any, response_length: Any) -> int | None:
    """Sets prompt and response ids. Returns the length of the response; None if tokens or length are not valid."""
    ids, length = native.to_token_ids(tokens), to_integer(response_length)
    if ids is None or length is None or not 0 <= length <= len(ids):
        return None
    record.prompt_ids, record.response_ids = ids[: len(ids) - length], ids[len(ids) - length :]
    return length


def set_reward(record: Record, reward: Any) -> None:
    if not isinstance(reward, dict):
        record.score = to_float(reward)
        return
    parts = {key: to_float(value) for key, value in reward.items() if is_number(value)}
    main = next((key for key in SCORE_KEYS if key in parts), next(iter(parts)) if len(parts) == 1 else None)
    record.score = parts.pop(main, None) if main else None
    record.rewards = parts
    record.extras |= {key: value for key, value in reward.items() if not is_number(value) and value is not None}


def set_policy_version(record: Record, versions: Any) -> None:
    """Sets the weight version at the start of the generation; stores all versions if they changed during it."""
    if not isinstance(versions, list) or not versions:
        return
    first = versions[0]
    is_numeric = isinstance(first, str) and re.fullmatch(r"\d{1,18}", first)
    record.policy_version = int(first) if is_numeric else to_integer(first)
    if len(set(map(str, versions))) > 1 or record.policy_version is None:
        record.extras["weight_versions"] = summarize_value(versions)


class SlimeGroupAssigner:
    """Assigns a group and an index in it to each sample. Samples with the same number are one group, also if a part of
    an execution has another prompt. `joins_data_sets`: another prompt with the same number is another group."""

    def __init__(self, *, joins_data_sets: bool) -> None:
        self.joins_data_sets = joins_data_sets
        self.last: int | None = None
        self.names: dict[int, tuple[str, str]] = {}  # group number -> (first prompt, group name)
        self.repeats: Counter[int] = Counter()
        self.sizes: Counter[str] = Counter()

    def assign(self, number: int | None, prompt: str) -> tuple[str | None, int | None]:
        """Returns (group, index). Both are None without a number; then equal prompts form a group."""
        if number is None:
            return None, None
        first, group = self.names.get(number, ("", ""))
        if not group or (first != prompt and (self.joins_data_sets or number != self.last)):
            group = f"{number}.{self.repeats[number]}" if self.repeats[number] else str(number)
            self.repeats[number] += 1
            self.names[number] = prompt, group
        self.last = number
        self.sizes[group] += 1
        return group, self.sizes[group] - 1


class TrajectoryAssigner:
    """Assigns trajectories: samples of the same rollout are turns of one; others have their own, by index.

    `rollout_key` and `index_key` are the keys of both in a sample. Gives the same result for the train dump of the same
    rollout, so that the two are merged.
    """

    def __init__(self, samples: Iterable[Any], rollout_key: str, index_key: str) -> None:
        rows = [sample if isinstance(sample, dict) else {} for sample in samples]
        self.names = [(to_integer(row.get(rollout_key)), to_integer(row.get(index_key))) for row in rows]
        self.counts = Counter(rollout for rollout, _ in self.names if rollout is not None)
        self.turns: Counter[int] = Counter()

    def assign(self, position: int) -> tuple[str | None, int | None]:
        """Returns trajectory and turn of the sample at this position. Call it in order."""
        rollout, index = self.names[position]
        if rollout is not None and self.counts[rollout] > 1:
            self.turns[rollout] += 1
            return str(rollout), self.turns[rollout] - 1
        return None if index is None else str(index), None
