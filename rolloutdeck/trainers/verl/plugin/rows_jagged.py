"""Rows of V1's TransferQueue: jagged tensors without padding, NonTensorStacks for all other values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rolloutdeck.trainers.verl.plugin import rows
from rolloutdeck.trainers.verl.plugin.rows import VerlRow

FIELDS = (
    "prompts", "responses", "rm_scores", "num_turns", "reward_model", "data_source", "extra_info", "extra_fields",
)  # fmt: skip


class JaggedBatch:
    """The data of one batch, read from the queue at creation, without padding rows.

    `keys` are `{uid}_{session}_{output}`, in the order of verl's own files.
    """

    def __init__(self, queue: Any, meta: Any) -> None:
        pads = {key for key, tag in zip(meta.keys, meta.tags, strict=True) if tag.get("is_padding")}
        self.queue, self.partition = queue, meta.partition_id
        self.keys = sorted((key for key in meta.keys if key not in pads), key=rows.build_sort_key)
        self.versions = {key: tag.get("min_global_steps") for key, tag in zip(meta.keys, meta.tags, strict=True)}
        self.count = len(self.keys)
        data = self.read(self.keys, FIELDS)
        self.prompts, self.responses = (list(data[name].unbind()) for name in ("prompts", "responses"))
        self.scores = [float(scores.sum()) for scores in data["rm_scores"].unbind()] if "rm_scores" in data else []
        self.columns = {name: rows.read_column(data.get(name, None), self.count) for name in FIELDS[3:]}
        self.tokens: dict[int, dict[str, Any]] = {}

    def read(self, keys: Sequence[str], fields: Sequence[str]) -> Any:
        """Blocks until the queue answers: must run on the trainer's thread, before the trainer clears these keys."""
        return self.queue.kv_batch_get(keys=list(keys), partition_id=self.partition, select_fields=list(fields))

    def groups(self) -> list[str]:
        return [key.rpartition("_")[0].rpartition("_")[0] or key for key in self.keys]

    def count_token_groups(self) -> int:
        """Counts the groups whose tokens were read."""
        groups = self.groups()
        return len({groups[index] for index in self.tokens})

    def count_sessions(self) -> int:
        """Counts the trajectories: the outputs of one session count once."""
        return len({key.rpartition("_")[0] for key in self.keys})

    def read_tokens(self, indices: Sequence[int]) -> None:
        if not indices:
            return
        data = self.read([self.keys[index] for index in indices], rows.TOKEN_FIELDS)
        values = {name: data[name].unbind() for name in rows.TOKEN_FIELDS if name in data}
        for position, index in enumerate(indices):
            self.tokens[index] = {name: parts[position] for name, parts in values.items()}

    def rows(self, max_tokens: int | None) -> list[VerlRow]:
        """Returns the rows without texts."""
        result = [self._build_row(index, max_tokens) for index in range(self.count)]
        for index, fields in self.tokens.items():
            values = {name: part.tolist() for name, part in fields.items()}
            rows.add_token_fields(result[index], self.prompts[index].tolist(), self.responses[index].tolist(), values)
        return result

    def _build_row(self, index: int, max_tokens: int | None) -> VerlRow:
        row: VerlRow = {}
        columns = {name: values[index] for name, values in self.columns.items()}
        columns["version"] = self.versions[self.keys[index]]
        rows.add_group_from_key(row, self.keys[index])
        rows.add_columns(row, columns, self.scores[index] if self.scores else None)
        rows.add_lengths(row, len(self.responses[index]), max_tokens)
        fields = columns["extra_fields"]
        extras = fields.get("reward_extra_info") if isinstance(fields, Mapping) else None
        rows.add_reward_extras(row, extras if isinstance(extras, Mapping) else {})
        return row

    def add_texts(self, target: Sequence[VerlRow], tokenizer: Any) -> None:
        rows.add_texts(target, self.prompts, self.responses, tokenizer)
