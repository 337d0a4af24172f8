"""The batches that verl saves to load again: `gen_batch.dp` (V0, fully async) and `tq_batch.pt` (V1).

| in the record        | gen_batch.dp                                     | tq_batch.pt                               |
|----------------------|--------------------------------------------------|-------------------------------------------|
| ids, mask, log-probs | prompts, responses, response_mask, rollout_log_probs, without padding                        |
| score                | sum of rm_scores, if the reward was streamed                                                 |
| rewards              | the columns in `reward_extra_keys` of its meta   | `extra_fields` -> `reward_extra_info`     |
| group, trajectory    | n consecutive rows; `uid` if rewards were not    | its key `{uuid}_{session}_{output}`       |
|                      | streamed                                         |                                           |
| ground truth, source | only if rewards were not streamed; 0.8 has them  | reward_model, data_source                 |
|                      | in the `new_batch.dp` next to it                 |                                           |
| messages             | raw_prompt                                                                                   |

They have no text. If the tokenizer of the run is known, tokens are decoded as verl does for its JSONL; else the prompt
is rendered from its messages and the response is textless. Rows with the tag `is_padding` fill a batch and are skipped.
Source: `AgentLoopWorker._postprocess`, `RolloutSkip.dump`, `RolloutTqSkip._dump`;
`rolloutdeck.safe_pickle` reads the bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rolloutdeck.safe_pickle import SafePickleError
from rolloutdeck.safe_pickle.batches import RolloutBatch, open_batch
from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext, decode_texts
from rollouts.formats.readers import collect_extras, get_object, parse_prompt_or_empty, set_batch_tokens, to_jsonable
from rollouts.formats.verl.jsonl import assign_position
from rollouts.samples import Record, SkippedRow, is_number, to_float, to_integer, to_text

LABEL_FILE = "new_batch.dp"
# Columns that are stored in fields of the record, or that repeat them.
KNOWN_COLUMNS = frozenset(
    ("raw_prompt", "prompt", "uid", "session_id", "data_source", "reward_model", "reward_extra_info", "extra_fields",
     "metrics", "num_turns", "__num_turns__", "global_steps", "index", "multi_modal_inputs", "tools_kwargs",
     "interaction_kwargs", "rollout_reward_scores", "mm_processor_kwargs", "mm_processor_output", "extras",
     "request_id", "agent_name")
)  # fmt: skip
STORED_COLUMNS = frozenset(("index", "num_turns", "__num_turns__", "data_source", "uid", "raw_prompt"))


@dataclass(frozen=True, slots=True)
class VerlBatchFormat:
    """A batch file. Reading keeps a few rows at a time in memory."""

    name: str
    filename: str

    def sniff(self, filename: str, head: bytes) -> bool:
        """Returns False: these files are files of an artifact, with a known format."""
        return False

    def read(self, stream: BinaryIO, context: DumpContext) -> Iterator[Record | SkippedRow]:
        if context.path is None:
            raise UnreadableDumpError(
                f"A {self.filename} cannot be logged as a dump. Log its folder with `log_artifact`."
            )
        try:
            with open_batch(context.path) as batch:
                reader = VerlBatchReader(batch, context)
                yield from decode_texts(map(reader.read_row, range(batch.rows)), context)
        except SafePickleError as error:
            raise UnreadableDumpError(f"{context.filename} cannot be read: {error}.") from error


FORMATS = (VerlBatchFormat("verl-gen-batch", "gen_batch.dp"), VerlBatchFormat("verl-tq-batch", "tq_batch.pt"))


class VerlBatchReader:
    """The rows of an open batch, as records."""

    def __init__(self, batch: RolloutBatch, context: DumpContext) -> None:
        self.batch = batch
        self.context = context
        self.columns = {name: batch.column(name) for name in batch.columns if is_needed(name)}
        self.columns = {**load_label_columns(context.sibling_paths.get(LABEL_FILE), batch.rows), **self.columns}
        keys = batch.meta.get("reward_extra_keys")
        self.reward_keys = [key for key in keys if isinstance(key, str)] if isinstance(keys, list | tuple) else []
        self.n = to_integer(context.facts.get("samples_per_prompt")) or 0
        self.longest = to_integer(context.facts.get("max_response_length")) or get_padded_length(batch)

    def read_row(self, row: int) -> Record | SkippedRow:
        if self.batch.is_padding(row):
            return SkippedRow("padding")
        tokens, values = self.batch.tokens(row), {name: values[row] for name, values in self.columns.items()}
        prompt, messages = parse_prompt_or_empty(to_jsonable(values.get("raw_prompt", values.get("prompt"))))
        record = Record(prompt, "", messages, textless=True)
        set_batch_tokens(record, tokens.prompt_ids, tokens.response_ids, tokens.response_mask, tokens.logprobs)
        if tokens.rm_scores is not None:
            record.score = to_float(sum(tokens.rm_scores))
        record.truncated = len(tokens.response_ids) >= self.longest if self.longest else None
        self.set_position(record, row, values.get("uid"))
        self.set_values(record, values)
        return record

    def set_position(self, record: Record, row: int, uid: Any) -> None:
        if key := self.batch.keys[row] if self.batch.keys else "":
            assign_position(record, key, None)
            return
        record.group = uid if isinstance(uid, str) else str(row // self.n) if self.n else None
        record.index = row % self.n if self.n else None

    def set_values(self, record: Record, values: dict[str, Any]) -> None:
        """Sets reward extras, labels, and the keys that an agent loop added."""
        values = {**values, **get_object(values, "extra_fields")}
        turns = to_integer(values.setdefault("num_turns", values.get("__num_turns__")))
        set_rewards(record, {key: values[key] for key in self.reward_keys if key in values})
        set_rewards(record, get_object(values, "reward_extra_info"))
        record.ground_truth = to_text(to_jsonable(get_object(values, "reward_model").get("ground_truth")))
        source = values.get("data_source")
        record.data_source = source if isinstance(source, str) else None
        record.metrics = to_jsonable(values["metrics"]) if isinstance(values.get("metrics"), dict) else None
        numbers = {"num_turns": turns, "dataset_index": to_integer(values.get("index"))}
        record.policy_version = to_integer(values.get("min_global_steps"))
        record.extras |= {key: value for key, value in numbers.items() if value is not None}
        record.extras |= collect_extras(values, KNOWN_COLUMNS.union(self.reward_keys))
        if isinstance(row := values.get("extra_info"), dict):
            repeated = {key for key in row if is_repeated(key, row[key], values)}
            record.extras["extra_info"] = collect_extras(row, repeated)


def is_repeated(key: str, value: Any, values: dict[str, Any]) -> bool:
    """Whether a value of `extra_info` is stored in the record already. The agent loop adds its own keys to it."""
    is_stored = key not in KNOWN_COLUMNS or key in STORED_COLUMNS
    return is_stored and key in values and bool(to_jsonable(values[key]) == to_jsonable(value))


def is_needed(name: str) -> bool:
    """Returns False for images and other large columns that no page shows."""
    return not name.startswith("multi_modal") and name != "mm_processor_output"


def load_label_columns(path: Path | None, rows: int) -> dict[str, list[Any]]:
    """Returns the columns of the `new_batch.dp` of 0.8, one value per row of the batch; {} if the row counts differ."""
    if path is None:
        return {}
    with open_batch(path) as batch:
        times = rows // batch.rows if batch.rows else 0
        if not times or times * batch.rows != rows:
            return {}
        columns = {name: batch.column(name) for name in batch.columns if is_needed(name)}
    return {name: [value for value in values for _ in range(times)] for name, values in columns.items()}


def get_padded_length(batch: RolloutBatch) -> int:
    """Returns the maximum response length of the run if the batch is padded to it, else 0."""
    field = batch.fields.get("responses")
    return field.shape[1] if field and not field.jagged and len(field.shape) == 2 else 0


def set_rewards(record: Record, extra: dict[Any, Any]) -> None:
    """Stores numbers as reward parts, and other values (e.g. a parsed answer) as extras."""
    for key, value in extra.items():
        if is_number(value):
            record.rewards[str(key)] = to_float(value)
        elif value is not None:
            record.extras[str(key)] = to_jsonable(value)
