"""Compares a pinned artifact with the run that would replay it, fact by fact. Standard library only.

A fact is a JSON value under one of the names in `COMPATIBILITY_FACTS`. A missing fact, or null, is unknown:

role serialisation format          format of the files, as the trainer's loading code expects it
rows prompts samples_per_prompt    of one step's batch; `rows` counts generations, `prompts` different prompts
max_prompt_length max_response_length    in tokens; `UNLIMITED_LENGTH` if the trainer has no such limit
parameter_sync_step                inner steps per update if generation and training run separately, else 1
tokenizer                          sha256 of the sorted (token, id) list
model                              name or path of the model
dataset                            hash of the step's ordered prompt keys
versions                           {package: version} of the trainer and its inference engine
rollout_correction                 whether the trainer corrects for the difference of rollout and training policy
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

REFUSE_FACTS = (
    "role", "serialisation", "format", "rows", "prompts", "samples_per_prompt", "max_prompt_length",
    "max_response_length", "parameter_sync_step", "tokenizer",
)  # fmt: skip
WARN_FACTS = ("model", "dataset", "versions", "rollout_correction")
COMPATIBILITY_FACTS = (*REFUSE_FACTS, *WARN_FACTS)
UNLIMITED_LENGTH = "unlimited"


@dataclass(frozen=True)
class FactDifference:
    """A fact that differs between pin and run, or that is unknown (None) on either side.

    asking: the value of the run. verdict: the result, `refuse` or `warn`.
    loosened: the result is a warning because the project overrides the check. The field names are JSON keys.
    """

    fact: str
    pinned: Any
    asking: Any
    verdict: str
    loosened: bool = False

    @property
    def unknown(self) -> bool:
        return self.pinned is None or self.asking is None

    @property
    def unknown_on_both_sides(self) -> bool:
        """Whether the fact is unknown on both sides and can't refuse. A fact that could, such as the tokenizer, remains
        a warning even if both sides do not know it."""
        return self.fact in WARN_FACTS and self.pinned is None and self.asking is None


def compare_facts(
    pinned: Mapping[str, Any], asking: Mapping[str, Any], loosened: Collection[str] = ()
) -> list[FactDifference]:
    """Returns all differences in the order of `COMPATIBILITY_FACTS`. A refusal of a fact in `loosened` is a warning."""
    differences = []
    for fact in COMPATIBILITY_FACTS:
        pinned_value, value = pinned.get(fact), asking.get(fact)
        if pinned_value is None or value is None:
            differences.append(FactDifference(fact, pinned_value, value, "warn"))
        # Replayed log-probs are of an older policy than the correction assumes, even if both runs use the correction.
        elif value if fact == "rollout_correction" else value != pinned_value:
            is_loosened = fact in REFUSE_FACTS and fact in loosened
            verdict = "refuse" if fact in REFUSE_FACTS and not is_loosened else "warn"
            differences.append(FactDifference(fact, pinned_value, value, verdict, is_loosened))
    return differences


def is_incompatible(differences: Collection[FactDifference]) -> bool:
    """Returns whether a run must not replay an artifact with these differences."""
    return any(difference.verdict == "refuse" for difference in differences)
