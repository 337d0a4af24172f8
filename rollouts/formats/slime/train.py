"""slime's train dump, `{rollout_id}_{rank}.pt`, format_version 2: the training inputs of each sample of a rollout.
miles writes it without a version, with a list per key in `rollout_data`: the samples of one data-parallel rank.

| in a sample                            | becomes                                  |
|----------------------------------------|------------------------------------------|
| tokens, response_lengths               | prompt and response ids                  |
| loss_masks, rollout_log_probs          | response mask, log-probs                 |
| ref_log_probs, advantages              | log-probs of the reference, advantages   |
| rewards                                | `normalized_reward`                      |
| raw_reward of the file, by position    | score                                    |
| truncated, source_names                | truncated, data source                   |

It has no text and adds no samples to a step with a rollout dump: it is merged into that by trajectory, see
`slime_rollout.TrajectoryAssigner`. The other numbers per token (values, returns, kl, entropy) are stored as their mean.
With context parallelism, miles writes a slice of the numbers per token for each rank: these are not read. Its
`raw_reward` has the order of the whole batch, so it is not read either. Source: `_build_dump_payload` of slime
624b824a; `save_debug_train_data_for_rank` in miles/utils/train_dump_utils.py, radixark/miles 31f1ca96.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, BinaryIO

from rolloutdeck.safe_pickle.batches import RowConverter, TooManyValuesError, open_torch_dict
from rolloutdeck.trainers.slime import is_slime_dump
from rollouts.errors import UnreadableDumpError
from rollouts.formats import native
from rollouts.formats.base import DumpContext, decode_texts
from rollouts.formats.readers import provide_pickle_file, summarize_value
from rollouts.formats.slime.rollout import SlimeSampleDict, TrajectoryAssigner, get_saved_samples, split_tokens
from rollouts.samples import LineProblem, Record, SkippedRow, to_float, to_integer

name = "slime-train"

VERSION = 2
ARRAYS = {
    "loss_masks": "response_mask", "rollout_log_probs": "logprobs", "ref_log_probs": "ref_logprobs",
    "advantages": "advantages",
}  # fmt: skip
KNOWN_KEYS = frozenset(
    ("tokens", "response_lengths", "rewards", "truncated", "source_names", "sample_index", "rollout_position",
     "rollout_ids", "total_lengths", "rollout_mask_sums", "multimodal_train_inputs")
)  # fmt: skip
# Keys of miles whose values are of the batch, and its other names of slime's keys.
BATCH_KEYS = frozenset(
    ("raw_reward", "total_lengths", "partition", "dynamic_global_batch_size", "step_slots", "step_adapter_names",
     "step_adapter_batch_sizes", "prompt_group_sizes")
)  # fmt: skip
RENAMED_KEYS = {"sample_indices": "sample_index"}
SPLIT_VALUES = "numbers per token that are split over context-parallel ranks"


def sniff(filename: str, head: bytes) -> bool:
    return is_slime_dump(head, trained=True)


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
    with provide_pickle_file(stream, context) as path, open_torch_dict(path) as saved:
        yield from decode_texts(read_records(saved, context), context)


def read_records(saved: SlimeSampleDict, context: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
    if isinstance(saved.get("rollout_data"), dict):
        if (to_integer(saved.get("cp_size")) or 1) > 1:
            yield SkippedRow(SPLIT_VALUES)
        saved = {"samples": build_samples(saved["rollout_data"]), "rollout_id": saved.get("rollout_id")}
    elif saved.get("format_version") != VERSION:
        version = to_integer(saved.get("format_version"))
        raise UnreadableDumpError(f"It is a train dump of version {version}; only version {VERSION} is supported.")
    samples, step = get_saved_samples(saved, "train dump"), to_integer(saved.get("rollout_id"))
    trajectories = TrajectoryAssigner(samples, "rollout_ids", "sample_index")
    raw = saved.get("raw_reward")
    scores = raw if isinstance(raw, list) and len(raw) == len(samples) else []
    converter = RowConverter()
    for position, sample in enumerate(samples):
        try:
            row = converter.plain(sample)
            if not isinstance(row, dict):
                raise ValueError("is not a sample")
        except (ValueError, TooManyValuesError) as error:
            yield LineProblem(position + 1, str(error))
            continue
        record = build_record(row, scores)
        record.trajectory, record.turn = trajectories.assign(position)
        if step != context.step:
            record.extras["step"] = step
        yield record


def build_samples(columns: SlimeSampleDict) -> list[SlimeSampleDict]:
    """Returns the samples of a dump with a list per key, each with its values."""
    tokens = columns.get("tokens")
    count = len(tokens) if isinstance(tokens, list) else 0
    samples: list[SlimeSampleDict] = [{} for _ in range(count)]
    converter = RowConverter()
    for key, column in columns.items():
        values = column if isinstance(column, list) else converter.plain({key: column}).get(key)
        if key not in BATCH_KEYS and isinstance(values, list) and len(values) == count:
            for sample, value in zip(samples, values, strict=True):
                sample[RENAMED_KEYS.get(key, key)] = value
    return samples


def build_record(row: SlimeSampleDict, scores: Sequence[Any]) -> Record:
    record = Record(textless=True)
    split_tokens(record, row.get("tokens"), row.get("response_lengths"))
    set_arrays(record, row, to_integer(row.get("response_lengths")))
    position = to_integer(row.get("rollout_position"))
    if position is not None and 0 <= position < len(scores):
        record.score = to_float(scores[position])
    record.truncated = native.to_boolean(row.get("truncated"))
    record.data_source = native.to_label(row.get("source_names"))
    if (normalized := to_float(row.get("rewards"))) is not None:
        record.extras["normalized_reward"] = normalized
    return record


def set_arrays(record: Record, row: SlimeSampleDict, length: int | None) -> None:
    """Sets the arrays of the length of the response; stores other arrays as their mean, other values unchanged."""
    for key, value in row.items():
        if key in KNOWN_KEYS or value is None:
            continue
        convert = native.to_mask if key == "loss_masks" else native.to_floats
        values = convert(value) if isinstance(value, list) and len(value) == length else None
        if values is not None and key in ARRAYS:
            setattr(record, ARRAYS[key], values)
        elif values is not None and (known := [number for number in values if number is not None]):
            record.extras[f"{key}_mean"] = fmean(known)
        elif not isinstance(value, list):
            record.extras[str(key)] = summarize_value(value)
