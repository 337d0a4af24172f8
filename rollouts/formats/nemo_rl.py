"""NeMo-RL: `train_data_step{N}.jsonl` and `val_data_step{N}.jsonl`, a line per sample.

Each value stands in a list of one, since the batch is written by an iterator of batches of one; only `idx` does not.

| key                                       | in the record                                                        |
|-------------------------------------------|----------------------------------------------------------------------|
| content                                   | train: the texts of the messages, without their roles; val: messages |
| rewards                                   | score; with dynamic sampling of all, `filtered_rewards` of the kept   |
| token_ids, token_loss_mask, input_lengths | ids and mask, cut to their real length: the batch is padded           |
| advantages, generation_logprobs           | per token of the response                                            |
| prev_logprobs, sample_loss_mask, agent_ref| kept as they are                                                     |

Where roles are lost, conversations end with the assistant and take turns: of an even number of texts the first is the
prompt, of an odd number (a system text before it) the first two are. Source: `log_batched_dict_as_jsonl` in
nemo_rl/utils/logger.py:1071 and its calls in nemo_rl/algorithms/grpo.py:3633 and 4017, NVIDIA-NeMo/RL 7ea279a.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from rollouts.formats.base import DumpContext
from rollouts.formats.native import to_floats, to_mask, to_token_ids
from rollouts.formats.readers import chat
from rollouts.formats.readers.jsonl import read_jsonl_rows
from rollouts.formats.readers.values import to_jsonable
from rollouts.samples import LineProblem, Record, SkippedRow, to_float, to_integer, to_json

name = "nemo-rl"

FILE = re.compile(r"(?:\A|/)(?:train|val)_data_step\d+\.jsonl\Z")
HEAD = re.compile(rb'\s*\{\s*"(?:content|agent_ref)"\s*:\s*\[')
TOLD = frozenset(
    ("content", "rewards", "token_ids", "token_loss_mask", "input_lengths", "advantages", "generation_logprobs",
     "prev_logprobs", "idx")
)  # fmt: skip

Row = dict[str, Any]


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head)) and (bool(FILE.search(filename)) or b'"input_lengths": [' in head)


def read(stream: BinaryIO, told: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
    """Records in the order of the lines. Raises UnreadableDump when no line holds an object."""
    for found in read_jsonl_rows(stream):
        if isinstance(found, LineProblem):
            yield found
            continue
        try:
            yield record(found[1])
        except ValueError as error:
            yield LineProblem(found[0], str(error))


def record(row: Row) -> Record:
    """Raises ValueError."""
    row = {key: inner(value) if key != "idx" else value for key, value in row.items()}
    made = spoken(row.get("content"))
    made.score = to_float(row.get("rewards"))
    keep_tokens(made, row)
    made.extras |= {key: to_jsonable(value) for key, value in row.items() if key not in TOLD and value is not None}
    return made


def inner(value: Any) -> Any:
    """The value in its list of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def spoken(content: Any) -> Record:
    """Prompt and response. Raises ValueError."""
    content = [content] if isinstance(content, str) else content
    if not isinstance(content, list) or not content:
        raise ValueError("has no `content`")
    if chat.is_conversation(content):
        at = chat.find_response_start(content)
        return Record(chat.render_prompt(content[:at]), chat.render_response(content[at:]), content)
    texts = [text if isinstance(text, str) else to_json(text) for text in content]
    at = 1 + len(texts) % 2 if len(texts) > 1 else 0
    return Record("\n".join(texts[:at]), "\n".join(texts[at:]))


def keep_tokens(made: Record, row: Row) -> None:
    """Ids from the first that is trained on are the response's; padding ends with `input_lengths`."""
    tokens, trained = to_token_ids(row.get("token_ids")), to_mask(row.get("token_loss_mask"))
    if tokens is None or trained is None or len(tokens) != len(trained):
        return
    end = to_integer(row.get("input_lengths"))
    end = len(tokens) if end is None or not 0 <= end <= len(tokens) else end
    start = next((at for at, one in enumerate(trained[:end]) if one), end)
    made.prompt_ids, made.response_ids = tokens[:start], tokens[start:end]
    made.response_mask = trained[start:end]
    for field, key in (("advantages", "advantages"), ("logprobs", "generation_logprobs")):
        values = to_floats(row.get(key))
        if values is not None and len(values) == len(tokens):
            setattr(made, field, values[start:end])
    before = to_floats(row.get("prev_logprobs"))
    if before is not None:
        made.extras["prev_logprobs"] = before[start:end]
