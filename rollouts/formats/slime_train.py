"""slime's train dump, `{rollout_id}_{rank}.pt`, format_version 2: what each sample of a rollout was trained with.

| in a sample                            | becomes                                  |
|----------------------------------------|------------------------------------------|
| tokens, response_lengths               | prompt and response ids                  |
| loss_masks, rollout_log_probs          | response mask, log-probs                 |
| ref_log_probs, advantages              | log-probs of the reference, advantages   |
| rewards                                | `normalized_reward`                      |
| raw_reward of the file, by place       | score                                    |
| truncated, source_names                | truncated, data source                   |

Nothing of it is text, and it adds no samples to a step of which the rollout is known: it joins that, by trajectory, see
`slime_rollout.Threads`. The other numbers per token (values, returns, kl, entropy) are told by their mean.
Source: `_build_dump_payload` of slime 624b824a.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, BinaryIO

from rolloutdeck.safe_pickle.batches.torch_dict import Rows, open_saved
from rolloutdeck.trainers.slime import begins
from rollouts.errors import UnreadableDump
from rollouts.formats import native
from rollouts.formats.base import Told
from rollouts.formats.readers.seekable import pickled
from rollouts.formats.readers.values import brief, plain
from rollouts.formats.slime_rollout import Row, Threads, samples_of
from rollouts.samples.record import Problem, Record
from rollouts.samples.values import integer, number

name = "slime-train"

VERSION = 2
WINDOW = 16  # rows that are decoded at once
ARRAYS = {
    "loss_masks": "response_mask", "rollout_log_probs": "logprobs", "ref_log_probs": "ref_logprobs",
    "advantages": "advantages",
}  # fmt: skip
TOLD = frozenset(
    ("tokens", "response_lengths", "rewards", "truncated", "source_names", "sample_index", "rollout_position",
     "rollout_ids", "total_lengths", "rollout_mask_sums")
)  # fmt: skip


def sniff(filename: str, head: bytes) -> bool:
    return begins(head, trained=True)


def read(stream: BinaryIO, told: Told) -> Iterator[Record | Problem]:
    """Records in the order of the rollout. Raises UnreadableDump when it is no such file."""
    with pickled(stream, told) as path, open_saved(path) as saved:
        yield from records(saved, told)


def records(saved: Row, told: Told) -> Iterator[Record | Problem]:
    if saved.get("format_version") != VERSION:
        raise UnreadableDump(f"A train dump of version {plain(saved.get('format_version'))}; {VERSION} is read.")
    samples, step = samples_of(saved, "train dump"), integer(plain(saved.get("rollout_id")))
    threads = Threads(map(names_of, samples))
    raw = saved.get("raw_reward")
    scores = raw if isinstance(raw, list) and len(raw) == len(samples) else []
    rows, window = Rows(), list[Record]()
    for place, sample in enumerate(samples):
        row = rows.plain(sample)
        if not isinstance(row, dict):
            yield Problem(place + 1, "is no sample")
            continue
        made = record(row, scores)
        made.trajectory, made.turn = threads.place(place)
        if step != told.step:
            made.extras["step"] = step
        window.append(made)
        if len(window) == WINDOW:
            yield from decoded(window, told)
            window = []
    yield from decoded(window, told)


def names_of(sample: Any) -> tuple[int | None, int | None]:
    row = sample if isinstance(sample, dict) else {}
    return integer(row.get("rollout_ids")), integer(row.get("sample_index"))


def record(row: Row, scores: Sequence[Any]) -> Record:
    made = Record(textless=True)
    tokens, length = native.ids(row.get("tokens")), integer(row.get("response_lengths"))
    if tokens is not None and length is not None and 0 <= length <= len(tokens):
        made.prompt_ids, made.response_ids = tokens[: len(tokens) - length], tokens[len(tokens) - length :]
    keep_arrays(made, row, length)
    place = integer(row.get("rollout_position"))
    made.score = number(plain(scores[place])) if place is not None and 0 <= place < len(scores) else None
    made.truncated = native.truth(row.get("truncated"))
    made.data_source = native.label(row.get("source_names"))
    if (normalized := number(row.get("rewards"))) is not None:
        made.extras["normalized_reward"] = normalized
    return made


def keep_arrays(made: Record, row: Row, length: int | None) -> None:
    """Arrays of the response's length; what has no name of its own by its mean, what is no array as it is."""
    for key, value in row.items():
        if key in TOLD or value is None:
            continue
        read_values = native.mask if key == "loss_masks" else native.reals
        found = read_values(value) if isinstance(value, list) and len(value) == length else None
        if found is not None and key in ARRAYS:
            setattr(made, ARRAYS[key], found)
        elif found is not None and (known := [one for one in found if one is not None]):
            made.extras[f"{key}_mean"] = fmean(known)
        elif not isinstance(value, list):
            made.extras[str(key)] = brief(value)


def decoded(window: list[Record], told: Told) -> Iterator[Record]:
    """With their text, where the run's tokenizer is known."""
    if told.decode is not None:
        prompts = told.decode([made.prompt_ids or [] for made in window])
        responses = told.decode([made.response_ids or [] for made in window])
        for made, prompt, response in zip(window, prompts, responses, strict=True):
            made.prompt, made.response, made.textless = prompt, response, False
    yield from window
