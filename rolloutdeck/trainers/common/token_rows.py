"""Rows of trainers that pass samples as token ids: texts are decoded, token fields go to the selected groups."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolloutdeck.trainers.common.token_selection import TokenBudget

TokenRow = dict[str, Any]


@dataclass
class TokenSample:
    """One sample. `mask`: 1 for tokens of the response that the model generated. `decode`: ids -> text.

    `mask` and `logprobs` have one item per token of the response; others are left out. `row`: the other keys of
    `Run.log_samples`; a `prompt` or `response` in it is used instead of the decoded text.
    """

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    decode: Callable[[Sequence[int]], str]
    mask: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    row: TokenRow = field(default_factory=dict)

    def build_row(self) -> TokenRow:
        """Returns the row without token fields and without keys that are None."""
        texts = {"prompt": self.prompt_ids, "response": self.response_ids}
        row = {name: self.decode(ids) for name, ids in texts.items() if self.row.get(name) is None}
        row |= {name: value for name, value in self.row.items() if value is not None}
        return {"response_length": len(self.response_ids), **row}

    def build_token_fields(self) -> TokenRow:
        row: TokenRow = {"prompt_ids": list(self.prompt_ids), "response_ids": list(self.response_ids)}
        for name, values in (("response_mask", self.mask), ("logprobs", self.logprobs)):
            if values is not None and len(values) == len(self.response_ids):
                row[name] = list(values)
        return row


def build_text_rows(build_samples: Callable[[], Sequence[TokenSample]]) -> tuple[Sequence[TokenSample], list[TokenRow]]:
    """Returns the samples, and one row without token fields for each."""
    samples = build_samples()
    return samples, [sample.build_row() for sample in samples]


def add_token_fields(
    rows: Sequence[TokenRow], samples: Sequence[TokenSample], budget: TokenBudget, split: str, step: int
) -> None:
    """Adds the token fields of the selected groups. Without a group, samples with the same prompt are one."""
    groups = [str(row.get("group", row["prompt"])) for row in rows]
    for index in budget.select_rows(groups, split, step):
        rows[index].update(samples[index].build_token_fields())


def copy_tokenizer(tokenizer: Any) -> Any:
    """Returns a copy for the session's thread: a fast tokenizer that two threads use at once raises in either."""
    try:
        return copy.deepcopy(tokenizer)
    except Exception:  # tokenizers are code of other libraries; not all can be copied
        return tokenizer
