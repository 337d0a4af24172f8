"""Does a pinned artifact fit the run that asks for it? Facts of both are compared, one by one. Standard library only.

A fact is a JSON value under one of the names in `COMPATIBILITY_FACTS`; a missing one, or null, is unknown:

role serialisation format          what the bytes are, as the trainer's code that loads them expects it
rows prompts samples_per_prompt    of one step's batch; `rows` counts generations, `prompts` different prompts
max_prompt_length max_response_length    in tokens; `UNLIMITED_LENGTH` where the trainer has no such limit
parameter_sync_step                inner steps per update where generating and training run apart, else 1
tokenizer                          sha256 of the sorted (token, id) list
model                              its name or path
dataset                            hash of the step's ordered prompt keys
versions                           {package: version} of the trainer and what it generated with
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
    """One fact in which they differ, or which is unknown (None) on either side.

    `verdict` is `refuse` or `warn`; `loosened`: it is a warning only because the project says so.
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
    def untold(self) -> bool:
        """Neither side knows it, and it would never refuse: no warning. What could refuse, as another tokenizer, stays
        one."""
        return is_unknown_on_both_sides(self.fact, self.pinned, self.asking)


def compare_facts(
    pinned: Mapping[str, Any], asking: Mapping[str, Any], loosened: Collection[str] = ()
) -> list[FactDifference]:
    """All differences in the order of `COMPATIBILITY_FACTS`; none means that the artifact fits and that everything is
    known.

    `loosened` names refusals that the project has made warnings.
    """
    pairs = [(fact, pinned.get(fact), asking.get(fact)) for fact in COMPATIBILITY_FACTS]
    return [build_difference(*pair, loosened) for pair in pairs if is_reported_difference(*pair)]


def is_incompatible(found: Collection[FactDifference]) -> bool:
    """Whether a run must not replay what has these differences."""
    return any(one.verdict == "refuse" for one in found)


def is_unknown_on_both_sides(fact: str, pinned: Any, asking: Any) -> bool:
    return fact in WARN_FACTS and pinned is None and asking is None


def is_reported_difference(fact: str, pinned: Any, asking: Any) -> bool:
    if pinned is None or asking is None:
        return True
    # Replayed log-probs are of an older policy than the one that a correction reckons with, whatever both runs say.
    return bool(asking) if fact == "rollout_correction" else bool(pinned != asking)


def build_difference(fact: str, pinned: Any, asking: Any, loosened: Collection[str]) -> FactDifference:
    strict = fact in REFUSE_FACTS and pinned is not None and asking is not None
    verdict = "refuse" if strict and fact not in loosened else "warn"
    return FactDifference(fact, pinned, asking, verdict, loosened=strict and fact in loosened)
