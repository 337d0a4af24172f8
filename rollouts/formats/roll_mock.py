"""ROLL's batches to load again, `{train|val}/step_{step:06d}.pkl`: a pickled DataProto, written by `rollout_mock`.

| in the batch                                         | becomes                                                   |
|------------------------------------------------------|-----------------------------------------------------------|
| input_ids, attention_mask, response_mask             | prompt and response ids, response mask, without padding   |
| infer_logprobs, of the token behind it               | log-probs                                                 |
| scores, a number per row or its last token           | score                                                     |
| column prompt, messages                              | prompt                                                    |
| column id of its domain, else group_ids              | group                                                     |
| columns traj_id, step                                | trajectory, turn                                          |
| columns ground_truth, source                         | ground truth, data source                                 |

The text of the responses is not in it: it is decoded where the run's tokenizer is known. Its rows join those of the
step's `roll_jsonl`, group by group in their order, and add none to a step of which that is known.
With several domains each writes the same file, and the last one wins: such a file holds one domain's rows.
Source: `RolloutMockMixin._dump_batch`, `DataProto.__getstate__` and `postprocess_generate` of ROLL 8eb27cc2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from rolloutdeck.safe_pickle.batches.batch import Batch, open_rollout
from rollouts.errors import UnreadableDump
from rollouts.formats import native
from rollouts.formats.base import Told
from rollouts.formats.readers.jsonl import prompt_of
from rollouts.formats.readers.seekable import pickled
from rollouts.formats.readers.values import ids, mask, plain, reals
from rollouts.formats.roll_jsonl import RLVR, Places, kept, unpacked
from rollouts.samples.record import Record
from rollouts.samples.values import integer, number, told_text

name = "roll-mock"

CLASS = b"roll.distributed.scheduler.protocol"
WINDOW = 16  # rows that are decoded at once
OF_AGENTS = frozenset(("group_ids", "traj_id", "step", "tags", "episode_scores"))


def sniff(filename: str, head: bytes) -> bool:
    return head.startswith(b"\x80") and CLASS in head[:4096]


def read(stream: BinaryIO, told: Told) -> Iterator[Record]:
    """Records in the order of the rows. Raises UnreadableDump when it is no such file."""
    with pickled(stream, told) as path, open_rollout(path) as batch:
        yield from Rows(batch, told).read()


class Rows:
    """The rows of an open batch, as records."""

    def __init__(self, batch: Batch, told: Told) -> None:
        if not batch.rows or "input_ids" not in batch.fields:
            raise UnreadableDump("The batch holds no rows with tokens.")
        self.batch, self.told = batch, told
        self.columns = {name: batch.column(name) for name in batch.columns}
        self.step = integer(batch.meta.get("global_step"))
        self.places = Places()

    def read(self) -> Iterator[Record]:
        for start in range(0, self.batch.rows, WINDOW):
            window = [self.record(row) for row in range(start, min(start + WINDOW, self.batch.rows))]
            if self.told.decode is not None:
                responses = self.told.decode([made.response_ids or [] for made in window])
                for made, response in zip(window, responses, strict=True):
                    made.response, made.textless = response, False
            yield from window

    def record(self, row: int) -> Record:
        values = {name: column[row] for name, column in self.columns.items()}
        spoken = unpacked(plain(values.get("messages")))
        prompt, messages = asked(plain(values.get("prompt")) or spoken)
        made = Record(prompt, "", messages or native.messages(spoken), textless=True)
        self.keep_tokens(made, row)
        self.keep_place(made, values)
        made.ground_truth = told_text(plain(values.get("ground_truth")))
        made.data_source = native.label(plain(values.get("source", values.get("tags"))))
        made.extras |= kept({key: plain(value) for key, value in values.items()}, RLVR | OF_AGENTS)
        if self.step != self.told.step:
            made.extras["step"] = self.step
        return made

    def keep_tokens(self, made: Record, row: int) -> None:
        """The response begins with the first token that the model wrote; where it wrote none, nothing is one."""
        tokens, attended, written = (
            self.batch.numbers(name, row) for name in ("input_ids", "attention_mask", "response_mask")
        )
        assert tokens is not None
        if attended is None or written is None or not len(tokens) == len(attended) == len(written):
            raise UnreadableDump("The batch's masks are not as long as its tokens.")
        begin = next((at for at, one in enumerate(attended) if one), 0)
        end = begin + sum(map(bool, attended))
        first = next((at for at, one in enumerate(written) if one), end)
        made.prompt_ids, made.response_ids = ids(tokens[begin:first]), ids(tokens[first:end])
        made.response_mask = mask(written[first:end])
        logprobs = self.batch.numbers("infer_logprobs", row)
        if logprobs is not None and len(logprobs) == len(tokens) - 1 and first:
            made.logprobs = reals(logprobs[first - 1 : end - 1])
        if scores := self.batch.numbers("scores", row):
            made.score = number(scores[0] if len(scores) == 1 else sum(scores))

    def keep_place(self, made: Record, values: dict[str, Any]) -> None:
        made.group, made.index, made.trajectory = self.places.place(
            plain(values.get("domain")), plain(values.get("id", values.get("group_ids")))
        )
        if (trajectory := native.label(plain(values.get("traj_id")))) is not None:
            made.trajectory, made.turn = trajectory, integer(plain(values.get("step")))


def asked(value: Any) -> tuple[str, list[dict[str, Any]] | None]:
    """No prompt for what is neither text nor messages: a batch of agents has none but its tokens."""
    try:
        return prompt_of(value)
    except ValueError:
        return "", None
