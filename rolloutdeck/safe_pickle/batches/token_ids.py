"""The tokens of one row, without the padding that verl's batches have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress
from typing import Any

from rolloutdeck.safe_pickle.errors import SafePickleError

Numbers = Callable[[str], list[Any] | None]  # a field's numbers in one row; None where the dump has no such field
OF_RESPONSE = ("response_mask", "rollout_log_probs", "rm_scores")


@dataclass(frozen=True, slots=True)
class RowTokens:
    """`response_mask` is 1 where the model wrote, 0 where a tool did. All but the ids are None where the run did not
    record them, and as long as `response_ids` where it did."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int] | None = None
    logprobs: list[float] | None = None
    rm_scores: list[float] | None = None


def extract_row_tokens(numbers: Numbers, padded: bool) -> RowTokens:
    """Raises SafePickleError when the row holds no tokens, or a field of another length than its response."""
    prompts, responses = numbers("prompts"), numbers("responses")
    if prompts is None or responses is None:
        raise SafePickleError("the dump holds no tokens")
    besides = [numbers(name) for name in OF_RESPONSE]
    if any(values is not None and len(values) != len(responses) for values in besides):
        raise SafePickleError("a row whose masks or scores are not as long as its response")
    if not padded:
        return RowTokens(prompts, responses, *besides)
    keep_prompt, keep = _kept(len(prompts), len(responses), numbers("attention_mask"), besides[0])
    return RowTokens(_where(prompts, keep_prompt), *(_where(values, keep) for values in (responses, *besides)))


def _kept(
    prompt: int, response: int, attention: list[Any] | None, mask: list[Any] | None
) -> tuple[list[Any], list[Any]]:
    """Which places of a padded prompt and response are real.

    Without an attention mask the prompt stays whole, and the response ends with the last token that the model wrote.
    """
    if attention is not None and len(attention) == prompt + response:
        return attention[:prompt], attention[prompt:]
    end = response if mask is None else max((at + 1 for at, real in enumerate(mask) if real), default=0)
    return [1] * prompt, [1] * end + [0] * (response - end)


def _where(values: Any, keep: list[Any]) -> Any:
    return None if values is None else list(compress(values, keep))
