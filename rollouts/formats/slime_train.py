"""slime's train dump, `{rollout_id}_{rank}.pt`, format_version 2: the training inputs of each sample of a rollout.

| in a sample                            | becomes                                  |
|----------------------------------------|------------------------------------------|
| tokens, response_lengths               | prompt and response ids                  |
| loss_masks, rollout_log_probs          | response mask, log-probs                 |
| ref_log_probs, advantages              | log-probs of the reference, advantages   |
| rewards                                | `normalized_reward`                      |
| raw_reward of the file, by place       | score                                    |
| truncated, source_names                | truncated, data source                   |

It has no text and adds no samples to a step with a rollout dump: it is merged into that by trajectory, see
`slime_rollout.TrajectoryAssigner`. The other numbers per token (values, returns, kl, entropy) are stored as their mean.
Source: `_build_dump_payload` of slime 624b824a.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, BinaryIO

from rolloutdeck.safe_pickle.batches import RowConverter, open_torch_dict
from rolloutdeck.trainers.slime import is_slime_dump
from rollouts.errors import UnreadableDumpError
from rollouts.formats import native
from rollouts.formats.base import DumpContext
from rollouts.formats.readers.seekable import provide_pickle_file
from rollouts.formats.readers.values import summarize_value, to_jsonable
from rollouts.formats.slime_rollout import SlimeSampleDict, TrajectoryAssigner, get_saved_samples
from rollouts.samples import LineProblem, Record, to_float, to_integer

name = "slime-train"

VERSION = 2
WINDOW = 16  # rows that are decoded together
ARRAYS = {
    "loss_masks": "response_mask", "rollout_log_probs": "logprobs", "ref_log_probs": "ref_logprobs",
    "advantages": "advantages",
}  # fmt: skip
KNOWN_KEYS = frozenset(
    ("tokens", "response_lengths", "rewards", "truncated", "source_names", "sample_index", "rollout_position",
     "rollout_ids", "total_lengths", "rollout_mask_sums")
)  # fmt: skip


def sniff(filename: str, head: bytes) -> bool:
    return is_slime_dump(head, trained=True)


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem]:
    """Yields records in the order of the rollout. Raises UnreadableDumpError for any other file."""
    with provide_pickle_file(stream, context) as path, open_torch_dict(path) as saved:
        yield from records(saved, context)


def records(saved: SlimeSampleDict, context: DumpContext) -> Iterator[Record | LineProblem]:
    if saved.get("format_version") != VERSION:
        raise UnreadableDumpError(
            f"A train dump of version {to_jsonable(saved.get('format_version'))}; {VERSION} is read."
        )
    samples, step = get_saved_samples(saved, "train dump"), to_integer(to_jsonable(saved.get("rollout_id")))
    trajectories = TrajectoryAssigner(map(names_of, samples))
    raw = saved.get("raw_reward")
    scores = raw if isinstance(raw, list) and len(raw) == len(samples) else []
    rows, window = RowConverter(), list[Record]()
    for place, sample in enumerate(samples):
        row = rows.plain(sample)
        if not isinstance(row, dict):
            yield LineProblem(place + 1, "is no sample")
            continue
        made = record(row, scores)
        made.trajectory, made.turn = trajectories.assign(place)
        if step != context.step:
            made.extras["step"] = step
        window.append(made)
        if len(window) == WINDOW:
            yield from decode_window(window, context)
            window = []
    yield from decode_window(window, context)


def names_of(sample: Any) -> tuple[int | None, int | None]:
    row = sample if isinstance(sample, dict) else {}
    return to_integer(row.get("rollout_ids")), to_integer(row.get("sample_index"))


def record(row: SlimeSampleDict, scores: Sequence[Any]) -> Record:
    made = Record(textless=True)
    tokens, length = native.to_token_ids(row.get("tokens")), to_integer(row.get("response_lengths"))
    if tokens is not None and length is not None and 0 <= length <= len(tokens):
        made.prompt_ids, made.response_ids = tokens[: len(tokens) - length], tokens[len(tokens) - length :]
    set_arrays(made, row, length)
    place = to_integer(row.get("rollout_position"))
    made.score = to_float(to_jsonable(scores[place])) if place is not None and 0 <= place < len(scores) else None
    made.truncated = native.to_boolean(row.get("truncated"))
    made.data_source = native.to_label(row.get("source_names"))
    if (normalized := to_float(row.get("rewards"))) is not None:
        made.extras["normalized_reward"] = normalized
    return made


def set_arrays(made: Record, row: SlimeSampleDict, length: int | None) -> None:
    """Sets the arrays of the length of the response; stores other arrays as their mean, other values unchanged."""
    for key, value in row.items():
        if key in KNOWN_KEYS or value is None:
            continue
        read_values = native.to_mask if key == "loss_masks" else native.to_floats
        found = read_values(value) if isinstance(value, list) and len(value) == length else None
        if found is not None and key in ARRAYS:
            setattr(made, ARRAYS[key], found)
        elif found is not None and (known := [one for one in found if one is not None]):
            made.extras[f"{key}_mean"] = fmean(known)
        elif not isinstance(value, list):
            made.extras[str(key)] = summarize_value(value)


def decode_window(window: list[Record], context: DumpContext) -> Iterator[Record]:
    """Yields the records, with decoded text if the tokenizer of the run is known."""
    if context.decode_tokens is not None:
        prompts = context.decode_tokens([made.prompt_ids or [] for made in window])
        responses = context.decode_tokens([made.response_ids or [] for made in window])
        for made, prompt, response in zip(window, prompts, responses, strict=True):
            made.prompt, made.response, made.textless = prompt, response, False
    yield from window
