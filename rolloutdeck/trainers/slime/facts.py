"""Facts of `compatibility` of a rollout, computed from slime's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolloutdeck.trainers.common import drop_none, parse_int

SLIME_FACTS = {"role": "rollout", "serialisation": "torch", "format": "slime-rollout", "parameter_sync_step": 1}


def build_argument_facts(arguments: Mapping[str, Any], rows: int | None = None) -> dict[str, Any]:
    """Returns the facts of a run with these arguments. `rows`: the number it generated, if known."""
    names = ("rollout_batch_size", "n_samples_per_prompt")
    prompts, samples_per_prompt = (parse_int(arguments.get(name)) for name in names)
    if rows is None and prompts and samples_per_prompt:
        rows = prompts * samples_per_prompt
    facts = {
        **SLIME_FACTS,
        "rows": rows,
        "prompts": prompts,
        "samples_per_prompt": samples_per_prompt,
        "max_prompt_length": parse_int(arguments.get("rollout_max_prompt_len")),
        "max_response_length": parse_int(arguments.get("rollout_max_response_len")),
        "model": arguments.get("hf_checkpoint"),
    }
    return drop_none(facts)
