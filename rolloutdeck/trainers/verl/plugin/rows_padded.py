"""Rows of a `DataProto`: padded tensors in `batch`, arrays in `non_tensor_batch`, as V0 and fully async have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rolloutdeck.trainers.verl.plugin import rows
from rolloutdeck.trainers.verl.plugin.rows import VerlRow


class PaddedRows:
    """What rows need of a DataProto, by reference: verl replaces tensors, it does not write into them.

    prompts [rows, P] are left padded, responses [rows, R] right padded; attention_mask is [rows, P + R]; whatever is
    in `rows.TOKEN_FIELDS` is [rows, R]. `extras` are lists by the reward function's keys.
    """

    def __init__(self, proto: Any, extras: dict[str, Any] | None = None) -> None:
        self.tensors: dict[str, Any] = {name: proto.batch[name] for name in proto.batch.keys()}  # noqa: SIM118
        self.arrays: dict[str, Any] = dict(proto.non_tensor_batch)
        keys = proto.meta_info.get("reward_extra_keys", [])
        self.extras = extras if extras is not None else {key: self.arrays.get(key) for key in keys}
        self.count = len(proto)

    def groups(self) -> list[str]:
        """The prompt of each row, by verl's uid; equal prompts make a group where there is none."""
        return [str(uid) for uid in rows.read_column(self.arrays["uid"], self.count)] if "uid" in self.arrays else []

    def lengths(self) -> tuple[list[int], list[int]]:
        """Tokens of each prompt and each response, padding left out."""
        width = self.tensors["prompts"].shape[-1]
        mask = self.tensors["attention_mask"]
        return mask[:, :width].sum(-1).tolist(), mask[:, width:].sum(-1).tolist()

    def aborted(self) -> int:
        """Rows of which nothing can be trained: the engine gave no token of its own."""
        return int((self.tensors["response_mask"].sum(-1) == 0).sum())

    def scores(self) -> list[float | None]:
        scores = self.tensors.get("token_level_scores", self.tensors.get("rm_scores"))
        return [None] * self.count if scores is None else scores.sum(-1).tolist()

    def advantages(self) -> list[Any]:
        """The mean over each response's own tokens; None where they are not known or the response has none."""
        advantages, mask = self.tensors.get("advantages"), self.tensors.get("response_mask")
        if advantages is None or mask is None:
            return [None] * self.count
        counts = mask.sum(-1)
        means = ((advantages * mask).sum(-1) / counts.clamp(min=1)).tolist()
        return [mean if count else None for mean, count in zip(means, counts.tolist(), strict=True)]

    def rows(self, most: int | None) -> list[VerlRow]:
        """Everything but texts and token fields. `most`: the tokens that a response may have."""
        made: list[VerlRow] = [{} for _ in range(self.count)]
        self._put_columns(made)
        _, lengths = self.lengths()
        for row, tokens in zip(made, lengths, strict=True):
            rows.add_lengths(row, tokens, most)
        if groups := self.groups():
            rows.number_rows_in_groups(made, groups)
        names = list(self.extras)
        columns = [rows.read_column(self.extras[name], self.count) for name in names]
        for place, row in enumerate(made):
            rows.add_reward_extras(row, {name: column[place] for name, column in zip(names, columns, strict=True)})
        return made

    def _put_columns(self, made: Sequence[VerlRow]) -> None:
        models, infos, sources, turns, versions = (
            rows.read_column(self.arrays.get(name), self.count)
            for name in ("reward_model", "extra_info", "data_source", "__num_turns__", "min_global_steps")
        )
        advantages = self.advantages()
        for place, (row, score) in enumerate(zip(made, self.scores(), strict=True)):
            rows.add_known_fields(
                row,
                score=score,
                ground_truth=rows.get_ground_truth(models[place]),
                dataset_index=rows.get_dataset_index(infos[place]),
                data_source=sources[place],
                num_turns=turns[place],
                policy_version=versions[place] if isinstance(versions[place], int) else None,
                advantages=advantages[place],
            )

    def put_tokens(self, made: Sequence[VerlRow], places: Sequence[int]) -> None:
        """Token fields of the rows at these places."""
        width = self.tensors["prompts"].shape[-1]
        prompts, responses = self.lengths()
        known = [name for name in rows.TOKEN_FIELDS if name in self.tensors]
        for place in places:
            prompt, response = prompts[place], responses[place]
            rows.add_token_fields(
                made[place],
                self.tensors["prompts"][place, width - prompt :].tolist(),
                self.tensors["responses"][place, :response].tolist(),
                {name: self.tensors[name][place, :response].tolist() for name in known},
            )

    def put_texts(self, made: Sequence[VerlRow], tokenizer: Any) -> None:
        """Decoded as verl does for its own files, so that both tell of the same samples."""
        for place, row in enumerate(made):
            row["prompt"] = tokenizer.decode(self.tensors["prompts"][place], skip_special_tokens=True)
            row["response"] = tokenizer.decode(self.tensors["responses"][place], skip_special_tokens=True)
