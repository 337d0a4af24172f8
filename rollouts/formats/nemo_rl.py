"""NeMo-RL: `train_data_step{N}.jsonl` and `val_data_step{N}.jsonl`, one line per sample.

Each value except `idx` is in a list of one, because the batch is written by an iterator of batches of one.

| key                                       | in the record                                                        |
|-------------------------------------------|----------------------------------------------------------------------|
| content                                   | train: the texts of the messages, without their roles; val: messages |
| filtered_rewards                          | score; only dynamic sampling writes it                               |
| rewards                                   | score if there is no `filtered_rewards`; else they are those of all  |
|                                           | generated samples, cut to as many as were selected: not of this line |
| token_ids, token_loss_mask, input_lengths | ids and mask without the padding of the batch                        |
| advantages, generation_logprobs           | per token of the response                                            |
| prev_logprobs, sample_loss_mask, agent_ref| extras, unchanged                                                    |

Without roles, a conversation is assumed to alternate and to end with the assistant: of an even number of texts the
first is the prompt; of an odd number (it starts with a system text) the first two are. Source:
`log_batched_dict_as_jsonl` in nemo_rl/utils/logger.py:1071 and its calls in nemo_rl/algorithms/grpo.py:3633 and 4017,
NVIDIA-NeMo/RL 7ea279a.
"""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from rollouts.formats.base import DumpContext
from rollouts.formats.native import to_floats, to_mask, to_token_ids
from rollouts.formats.readers import JsonObject, chat, convert_rows, read_jsonl_rows, to_jsonable
from rollouts.samples import LineProblem, Record, to_float, to_integer, to_json

name = "nemo-rl"

FILE = re.compile(r"(?:\A|/)(?:train|val)_data_step\d+\.jsonl\Z")
HEAD = re.compile(rb'\s*\{\s*"(?:content|agent_ref)"\s*:\s*\[')
KNOWN_KEYS = frozenset(
    ("content", "rewards", "filtered_rewards", "token_ids", "token_loss_mask", "input_lengths", "advantages",
     "generation_logprobs", "prev_logprobs", "idx")
)  # fmt: skip


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head)) and (bool(FILE.search(filename)) or b'"input_lengths": [' in head)


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem]:
    return convert_rows(read_jsonl_rows(stream), convert_row)


def convert_row(row: JsonObject) -> Record:
    """Raises ValueError if the row has no content."""
    row = {key: unwrap(value) if key != "idx" else value for key, value in row.items()}
    record = build_record(row.get("content"))
    record.score = to_float(row.get("filtered_rewards" if "filtered_rewards" in row else "rewards"))
    set_tokens(record, row)
    extras = {key: value for key, value in row.items() if key not in KNOWN_KEYS and value is not None}
    record.extras |= {key: to_jsonable(value) for key, value in extras.items()}
    return record


def unwrap(value: Any) -> Any:
    """Returns the value in a list of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def build_record(content: Any) -> Record:
    """Returns a record with prompt and response. Raises ValueError if there is no content."""
    content = [content] if isinstance(content, str) else content
    if not isinstance(content, list) or not content:
        raise ValueError("has no `content`")
    if chat.is_conversation(content):
        return Record(*chat.render_conversation(content), content)
    texts = [text if isinstance(text, str) else to_json(text) for text in content]
    start = 1 + len(texts) % 2 if len(texts) > 1 else 0
    return Record("\n".join(texts[:start]), "\n".join(texts[start:]))


def set_tokens(record: Record, row: JsonObject) -> None:
    """Sets the tokens. The response starts at the first trained token; tokens after `input_lengths` are padding."""
    tokens, trained = to_token_ids(row.get("token_ids")), to_mask(row.get("token_loss_mask"))
    if tokens is None or trained is None or len(tokens) != len(trained):
        return
    end = to_integer(row.get("input_lengths"))
    end = len(tokens) if end is None or not 0 <= end <= len(tokens) else end
    start = trained.index(1, 0, end) if 1 in trained[:end] else end
    record.prompt_ids, record.response_ids = tokens[:start], tokens[start:end]
    record.response_mask = trained[start:end]
    for field, key in (("advantages", "advantages"), ("logprobs", "generation_logprobs")):
        values = to_floats(row.get(key))
        if values is not None and len(values) == len(tokens):
            setattr(record, field, values[start:end])
    previous = to_floats(row.get("prev_logprobs"))
    if previous is not None:
        record.extras["prev_logprobs"] = previous[start:end]
