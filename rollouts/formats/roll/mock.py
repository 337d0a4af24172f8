"""ROLL's saved batches, `{train|val}/step_{step:06d}.pkl`: a pickled DataProto, written by `rollout_mock`.

| in the batch                                         | becomes                                                   |
|------------------------------------------------------|-----------------------------------------------------------|
| input_ids, attention_mask, response_mask             | prompt and response ids, response mask, without padding   |
| infer_logprobs, shifted by one token                 | log-probs                                                 |
| scores, a number per row or its last token           | score                                                     |
| column prompt, messages                              | prompt                                                    |
| column id of its domain, else traj_group_id, else    | group                                                     |
| group_ids                                            |                                                           |
| columns traj_id, step                                | trajectory, turn                                          |
| columns ground_truth, source                         | ground truth, data source                                 |

The file has no response text: it is decoded if the tokenizer of the run is known. Its rows are merged into those of the
`roll_jsonl` of the step, group by group in order, and add no rows to a step that has one.
With several domains, each writes the same file and the last one wins: such a file has the rows of one domain.
Source: `RolloutMockMixin._dump_batch`, `DataProto.__getstate__` and `postprocess_generate` of ROLL 8eb27cc2.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO

from rolloutdeck.safe_pickle.batches import RolloutBatch, open_roll_batch
from rollouts.errors import UnreadableDumpError
from rollouts.formats import native
from rollouts.formats.base import DumpContext, decode_texts
from rollouts.formats.readers import (
    collect_extras,
    parse_prompt_or_empty,
    provide_pickle_file,
    set_batch_tokens,
    to_jsonable,
)
from rollouts.formats.roll.jsonl import RLVR_COLUMNS, GroupAssigner, decode_json_text, decode_value
from rollouts.samples import Record, to_float, to_integer, to_text

name = "roll-mock"

CLASS = b"roll.distributed.scheduler.protocol"
KNOWN_COLUMNS = RLVR_COLUMNS | frozenset(("group_ids", "traj_group_id", "traj_id", "step", "tags", "episode_scores"))
GROUP_COLUMNS = ("id", "traj_group_id", "group_ids")


def sniff(filename: str, head: bytes) -> bool:
    return head.startswith(b"\x80") and CLASS in head[:4096]


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record]:
    with provide_pickle_file(stream, context) as path, open_roll_batch(path) as batch:
        reader = RollBatchReader(batch, context)
        yield from decode_texts(map(reader.build_record, range(batch.rows)), context, with_prompts=False)


class RollBatchReader:
    """The rows of an open batch, as records."""

    def __init__(self, batch: RolloutBatch, context: DumpContext) -> None:
        if not batch.rows or "input_ids" not in batch.fields:
            raise UnreadableDumpError("The batch holds no rows with tokens.")
        self.batch, self.context = batch, context
        self.columns = {name: batch.column(name) for name in batch.columns}
        self.step = to_integer(batch.meta.get("global_step"))
        self.groups = GroupAssigner()

    def build_record(self, row: int) -> Record:
        values = {name: to_jsonable(column[row]) for name, column in self.columns.items()}
        conversation = decode_json_text(values.get("messages"))
        prompt, messages = parse_prompt_or_empty(values.get("prompt") or conversation)
        record = Record(prompt, "", messages or native.to_messages(conversation), textless=True)
        self.set_tokens(record, row)
        self.set_position(record, values)
        record.ground_truth = to_text(values.get("ground_truth"))
        record.data_source = native.to_label(values.get("source", values.get("tags")))
        record.extras |= collect_extras(values, KNOWN_COLUMNS, decode_value)
        if self.step != self.context.step:
            record.extras["step"] = self.step
        return record

    def set_tokens(self, record: Record, row: int) -> None:
        """Sets the tokens. The response starts at the first generated token; it is empty if there is none."""
        tokens, attention, response = (
            self.batch.numbers(name, row) for name in ("input_ids", "attention_mask", "response_mask")
        )
        assert tokens is not None
        if attention is None or response is None or not len(tokens) == len(attention) == len(response):
            raise UnreadableDumpError("The batch's masks are not as long as its tokens.")
        start = next((index for index, value in enumerate(attention) if value), 0)
        end = start + sum(map(bool, attention))
        first = next((index for index, value in enumerate(response) if value), end)
        logprobs = self.batch.numbers("infer_logprobs", row)
        if logprobs is not None:  # one value per token after the first
            logprobs = logprobs[first - 1 : end - 1] if first and len(logprobs) == len(tokens) - 1 else None
        set_batch_tokens(record, tokens[start:first], tokens[first:end], response[first:end], logprobs)
        if scores := self.batch.numbers("scores", row):
            record.score = to_float(scores[0] if len(scores) == 1 else sum(scores))

    def set_position(self, record: Record, values: dict[str, Any]) -> None:
        prompt = next((values[name] for name in GROUP_COLUMNS if values.get(name) is not None), None)
        record.group, record.index, record.trajectory = self.groups.assign(values.get("domain"), prompt)
        if (trajectory := native.to_label(values.get("traj_id"))) is not None:
            record.trajectory, record.turn = trajectory, to_integer(values.get("step"))
