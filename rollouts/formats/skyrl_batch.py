"""SkyRL's training batch, `dumped_data/global_step_{N}_training_input.pkl`: a pickled TensorBatch.

| tensor                                   | in the record                                                        |
|------------------------------------------|----------------------------------------------------------------------|
| sequences, attention_mask, response_mask | prompt and response ids, without padding                             |
| loss_mask                                | response mask: 0 for tokens of a tool                                |
| rollout_logprobs, else action_log_probs  | log-probs                                                            |
| base_action_log_probs, advantages        | log-probs of the reference, advantages                               |
| rewards                                  | score, their sum; SkyRL removes them before it writes the file       |
| action_log_probs, values, returns, kl    | stored as their mean                                                 |

Response tensors are as wide as the longest response; a mask says which values are of the row. They are padded on the
left, in older versions on the right. `policy_prompt_boundaries` gives the groups; in older versions equal prompts are
one. The last `pad_size` rows fill the batch and are skipped. There is no text: it is decoded if the tokenizer of the
run is known. Source: `convert_to_training_input` in skyrl/train/trainer.py, `pad_training_input_batch` in
skyrl/backends/skyrl_train/training_batch.py, NovaSky-AI/SkyRL a9564572.
"""

from collections.abc import Iterator, Sequence
from itertools import compress
from statistics import fmean
from typing import Any, BinaryIO

from rolloutdeck.safe_pickle.batches import RolloutBatch, open_tensor_batch
from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext, decode_texts
from rollouts.formats.readers import provide_pickle_file, set_batch_tokens
from rollouts.samples import Record, SkippedRow, to_float, to_integer

name = "skyrl-batch"

CLASS = b"training_batch"
RESPONSE_FIELDS = {"base_action_log_probs": "ref_logprobs", "advantages": "advantages"}
MEAN_FIELDS = ("action_log_probs", "values", "returns", "kl")
TOKEN_FIELDS = ("sequences", "attention_mask", "response_mask")


def sniff(filename: str, head: bytes) -> bool:
    return head.startswith(b"\x80") and CLASS in head[:4096] and b"TrainingInputBatch" in head[:4096]


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | SkippedRow]:
    with provide_pickle_file(stream, context) as path, open_tensor_batch(path) as batch:
        reader = TrainingBatchReader(batch)
        yield from decode_texts(map(reader.build_record, range(batch.rows)), context)


class TrainingBatchReader:
    """The rows of an open batch, as records."""

    def __init__(self, batch: RolloutBatch) -> None:
        if not batch.rows or any(field not in batch.fields for field in TOKEN_FIELDS):
            raise UnreadableDumpError("The batch holds no rows with tokens.")
        self.batch = batch
        self.samples = batch.rows - (to_integer(batch.meta.get("pad_size")) or 0)
        self.groups = find_groups(batch.meta.get("policy_prompt_boundaries"), batch.rows)
        uids = batch.meta.get("uids")
        self.uids = uids if isinstance(uids, list) and len(uids) == batch.rows else None
        self.prompts: dict[tuple[int, ...], int] = {}  # if the file has no groups, equal prompts are one

    def build_record(self, row: int) -> Record | SkippedRow:
        if row >= self.samples:
            return SkippedRow("padding")
        record = Record(textless=True)
        mask = [bool(value) for value in self.read_numbers("response_mask", row)]
        self.set_tokens(record, row, mask)
        for field, attribute in RESPONSE_FIELDS.items():
            if values := self.read_response(field, row, mask):
                setattr(record, attribute, [to_float(value) for value in values])
        if rewards := self.read_response("rewards", row, mask):
            record.score = to_float(sum(rewards))
        for field in MEAN_FIELDS:
            known = [value for value in map(to_float, self.read_response(field, row, mask) or ()) if value is not None]
            record.extras |= {f"{field}_mean": fmean(known)} if known else {}
        if self.uids:
            record.group = str(self.uids[row])
        elif row in self.groups:
            record.group, record.index = self.groups[row]
        else:
            record.group = str(self.prompts.setdefault(tuple(record.prompt_ids or ()), len(self.prompts)))
        return record

    def set_tokens(self, record: Record, row: int, mask: Sequence[bool]) -> None:
        """Sets the tokens: those of the response are in the last columns, as many as the mask has."""
        tokens, attention = (self.read_numbers(field, row) for field in ("sequences", "attention_mask"))
        start = len(tokens) - len(mask)
        if start < 0 or len(attention) != len(tokens):
            raise UnreadableDumpError("The batch's masks are not as long as its tokens.")
        is_response = [False] * start + list(mask)
        is_prompt = [bool(real) and not generated for real, generated in zip(attention, is_response, strict=True)]
        logprobs = self.read_response("rollout_logprobs", row, mask) or self.read_response(
            "action_log_probs", row, mask
        )
        trained = self.read_response("loss_mask", row, mask)
        set_batch_tokens(
            record,
            list(compress(tokens, is_prompt)),
            list(compress(tokens, is_response)),
            None if trained is None else [int(bool(value)) for value in trained],
            logprobs,
        )

    def read_numbers(self, field: str, row: int) -> list[Any]:
        values = self.batch.numbers(field, row)
        assert values is not None, field
        return values

    def read_response(self, field: str, row: int, mask: Sequence[bool]) -> list[Any] | None:
        """Returns the values of the response's tokens; None if the field is missing or has another width."""
        values = self.batch.numbers(field, row)
        return list(compress(values, mask)) if values is not None and len(values) == len(mask) else None


def find_groups(boundaries: Any, rows: int) -> dict[int, tuple[str, int]]:
    """Returns {row: (group, index in it)} from the first and the next row of each prompt."""
    groups: dict[int, tuple[str, int]] = {}
    last = 0
    for number, bounds in enumerate(boundaries if isinstance(boundaries, list) else ()):
        first, end = map(to_integer, bounds) if isinstance(bounds, (tuple, list)) and len(bounds) == 2 else (None, None)
        if first != last or end is None or not first < end <= rows:
            return {}
        groups |= {row: (str(number), row - first) for row in range(first, end)}
        last = end
    return groups
