"""Rows of the TransferQueue: jagged tensors without padding, NonTensorStacks for all else, as V1 has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rolloutdeck.trainers.verl.plugin import rows
from rolloutdeck.trainers.verl.plugin.rows import VerlRow

FIELDS = (
    "prompts", "responses", "rm_scores", "num_turns", "reward_model", "data_source", "extra_info", "extra_fields",
)  # fmt: skip


class JaggedRows:
    """What rows need of the keys of one batch, read from the queue when it is made; padding rows are left out.

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
        """Blocks until the queue has answered: on the trainer's thread, before it clears these keys."""
        return self.queue.kv_batch_get(keys=list(keys), partition_id=self.partition, select_fields=list(fields))

    def groups(self) -> list[str]:
        return [key.rpartition("_")[0].rpartition("_")[0] or key for key in self.keys]

    def groups_kept(self) -> int:
        """Groups whose tokens were read."""
        groups = self.groups()
        return len({groups[place] for place in self.tokens})

    def sessions(self) -> int:
        """Trajectories: the outputs of one session count once."""
        return len({key.rpartition("_")[0] for key in self.keys})

    def read_tokens(self, places: Sequence[int]) -> None:
        if not places:
            return
        data = self.read([self.keys[place] for place in places], rows.TOKEN_FIELDS)
        known = {name: data[name].unbind() for name in rows.TOKEN_FIELDS if name in data}
        for number, place in enumerate(places):
            self.tokens[place] = {name: parts[number] for name, parts in known.items()}

    def rows(self, most: int | None) -> list[VerlRow]:
        """Everything but texts."""
        made = [self._row(place, most) for place in range(self.count)]
        for place, fields in self.tokens.items():
            told = {name: part.tolist() for name, part in fields.items()}
            rows.add_token_fields(made[place], self.prompts[place].tolist(), self.responses[place].tolist(), told)
        return made

    def _row(self, place: int, most: int | None) -> VerlRow:
        row: VerlRow = {}
        told = {name: values[place] for name, values in self.columns.items()}
        rows.add_group_from_key(row, self.keys[place])
        version, turns = self.versions[self.keys[place]], rows.unwrap_scalar(told["num_turns"])
        rows.add_known_fields(
            row,
            score=self.scores[place] if self.scores else None,
            ground_truth=rows.get_ground_truth(told["reward_model"]),
            dataset_index=rows.get_dataset_index(told["extra_info"]),
            data_source=told["data_source"],
            num_turns=turns if isinstance(turns, int) else None,
            policy_version=version if isinstance(version, int) else None,
        )
        rows.add_lengths(row, len(self.responses[place]), most)
        fields = told["extra_fields"]
        extras = fields.get("reward_extra_info") if isinstance(fields, Mapping) else None
        rows.add_reward_extras(row, extras if isinstance(extras, Mapping) else {})
        return row

    def put_texts(self, made: Sequence[VerlRow], tokenizer: Any) -> None:
        for row, prompt, response in zip(made, self.prompts, self.responses, strict=True):
            row["prompt"] = tokenizer.decode(prompt, skip_special_tokens=True)
            row["response"] = tokenizer.decode(response, skip_special_tokens=True)
