"""The tokens of one row, without the padding of verl's batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress
from typing import Any

from rolloutdeck.safe_pickle.errors import SafePickleError

ReadNumbers = Callable[[str], list[Any] | None]  # a field's numbers in one row; None if the dump has no such field
RESPONSE_FIELDS = ("response_mask", "rollout_log_probs", "rm_scores")


@dataclass(frozen=True, slots=True)
class RowTokens:
    """`response_mask` is 1 for tokens of the model and 0 for tokens of a tool.

    All fields except the ids are None if the run did not record them, else as long as `response_ids`.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int] | None = None
    logprobs: list[float] | None = None
    rm_scores: list[float] | None = None


def extract_row_tokens(numbers: ReadNumbers, padded: bool) -> RowTokens:
    """Raises SafePickleError if the row has no tokens, or a field of another length than its response."""
    prompts, responses = numbers("prompts"), numbers("responses")
    if prompts is None or responses is None:
        raise SafePickleError("the dump has no tokens")
    response_fields = [numbers(name) for name in RESPONSE_FIELDS]
    if any(values is not None and len(values) != len(responses) for values in response_fields):
        raise SafePickleError("a row whose masks or scores are not as long as its response")
    if not padded:
        return RowTokens(prompts, responses, *response_fields)
    prompt_mask, response_mask = _find_real_tokens(
        len(prompts), len(responses), numbers("attention_mask"), response_fields[0]
    )
    return RowTokens(
        _select(prompts, prompt_mask), *(_select(values, response_mask) for values in (responses, *response_fields))
    )


def _find_real_tokens(
    prompt: int, response: int, attention: list[Any] | None, model_mask: list[Any] | None
) -> tuple[list[Any], list[Any]]:
    """Returns masks of the positions of a padded prompt and response that are not padding.

    Without an attention mask, the complete prompt counts, and the response ends at the last token of the model.
    """
    if attention is not None and len(attention) == prompt + response:
        return attention[:prompt], attention[prompt:]
    end = response if model_mask is None else max((at + 1 for at, real in enumerate(model_mask) if real), default=0)
    return [1] * prompt, [1] * end + [0] * (response - end)


def _select(values: Any, response_mask: list[Any]) -> Any:
    return None if values is None else list(compress(values, response_mask))
