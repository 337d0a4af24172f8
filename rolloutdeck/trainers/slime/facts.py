"""What of a rollout must fit a run that replays it: the facts of `compatibility`, by slime's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SLIME_ROLLOUT_FORMAT = "slime-rollout"


def build_argument_facts(told: Mapping[str, Any], rows: int | None = None) -> dict[str, Any]:
    """Of a run with these arguments; `rows` that it has made, where it has. What is not known is left out."""
    prompts, each = parse_int(told.get("rollout_batch_size")), parse_int(told.get("n_samples_per_prompt"))
    if rows is None and prompts and each:
        rows = prompts * each
    facts = {
        "role": "rollout",
        "serialisation": "torch",
        "format": SLIME_ROLLOUT_FORMAT,
        "rows": rows,
        "prompts": prompts,
        "samples_per_prompt": each,
        "max_prompt_length": parse_int(told.get("rollout_max_prompt_len")),
        "max_response_length": parse_int(told.get("rollout_max_response_len")),
        "parameter_sync_step": 1,
        "model": told.get("hf_checkpoint"),
    }
    return {name: value for name, value in facts.items() if value is not None}


def parse_int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
