"""Rows of a `DataProto`: padded tensors in `batch`, arrays in `non_tensor_batch`, as in V0 and fully async."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rolloutdeck.trainers.verl.plugin import rows
from rolloutdeck.trainers.verl.plugin.rows import VerlRow

COLUMNS = {
    "reward_model": "reward_model", "extra_info": "extra_info", "data_source": "data_source",
    "num_turns": "__num_turns__", "version": "min_global_steps",
}  # fmt: skip


class PaddedRows:
    """The data of a DataProto, by reference: verl replaces tensors, it does not write into them.

    prompts [rows, P] are left padded, responses [rows, R] right padded; attention_mask is [rows, P + R]; all
    `rows.TOKEN_FIELDS` are [rows, R]. `extras` are lists by the keys of the reward function.
    """

    def __init__(self, proto: Any, extras: dict[str, Any] | None = None) -> None:
        self.tensors: dict[str, Any] = {name: proto.batch[name] for name in proto.batch.keys()}  # noqa: SIM118
        self.arrays: dict[str, Any] = dict(proto.non_tensor_batch)
        keys = proto.meta_info.get("reward_extra_keys", [])
        self.extras = extras if extras is not None else {key: self.arrays.get(key) for key in keys}
        self.count = len(proto)

    def groups(self) -> list[str]:
        """Returns the prompt of each row, by verl's uid; [] without uids: then equal prompts are a group."""
        return [str(uid) for uid in rows.read_column(self.arrays["uid"], self.count)] if "uid" in self.arrays else []

    def lengths(self) -> tuple[list[int], list[int]]:
        """Returns the numbers of tokens of each prompt and each response, without padding."""
        width = self.tensors["prompts"].shape[-1]
        mask = self.tensors["attention_mask"]
        return mask[:, :width].sum(-1).tolist(), mask[:, width:].sum(-1).tolist()

    def count_aborted(self) -> int:
        """Counts the rows that can't be trained on: the engine returned no token for them."""
        return int((self.tensors["response_mask"].sum(-1) == 0).sum())

    def scores(self) -> list[float | None]:
        scores = self.tensors.get("token_level_scores", self.tensors.get("rm_scores"))
        return [None] * self.count if scores is None else scores.sum(-1).tolist()

    def advantages(self) -> list[Any]:
        """Returns the mean over each response's own tokens; None if unknown or if the response has no tokens."""
        advantages, mask = self.tensors.get("advantages"), self.tensors.get("response_mask")
        if advantages is None or mask is None:
            return [None] * self.count
        counts = mask.sum(-1)
        means = ((advantages * mask).sum(-1) / counts.clamp(min=1)).tolist()
        return [mean if count else None for mean, count in zip(means, counts.tolist(), strict=True)]

    def rows(self, max_tokens: int | None) -> list[VerlRow]:
        """Returns the rows without texts and token fields. `max_tokens`: the maximum of a response."""
        result: list[VerlRow] = [{} for _ in range(self.count)]
        columns = {key: rows.read_column(self.arrays.get(name), self.count) for key, name in COLUMNS.items()}
        extras = {name: rows.read_column(values, self.count) for name, values in self.extras.items()}
        scores, advantages, lengths = self.scores(), self.advantages(), self.lengths()[1]
        if groups := self.groups():
            rows.number_rows_in_groups(result, groups)
        for index, row in enumerate(result):
            row_columns = {name: values[index] for name, values in columns.items()}
            rows.add_columns(row, row_columns, scores[index], advantages[index])
            rows.add_lengths(row, lengths[index], max_tokens)
            rows.add_reward_extras(row, {name: values[index] for name, values in extras.items()})
        return result

    def add_tokens(self, target: Sequence[VerlRow], indices: Sequence[int]) -> None:
        """Adds the token fields to the rows with these indices."""
        width = self.tensors["prompts"].shape[-1]
        prompts, responses = self.lengths()
        names = [name for name in rows.TOKEN_FIELDS if name in self.tensors]
        for index in indices:
            prompt, response = prompts[index], responses[index]
            prompt_ids = self.tensors["prompts"][index, width - prompt :].tolist()
            response_ids = self.tensors["responses"][index, :response].tolist()
            fields = {name: self.tensors[name][index, :response].tolist() for name in names}
            rows.add_token_fields(target[index], prompt_ids, response_ids, fields)

    def add_texts(self, target: Sequence[VerlRow], tokenizer: Any) -> None:
        rows.add_texts(target, self.tensors["prompts"], self.tensors["responses"], tokenizer)
