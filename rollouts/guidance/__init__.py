"""Guidance: rules by which the labels of a project act on its running trainings, and what they select now.

Depends on: query, samples and projects.
Invariant: a version never changes. A trainer gets keys of prompts and responses, no texts and no names of people.
"""

from rollouts.guidance.rules import MAX_RULES, Rule, parse_rules
from rollouts.guidance.selection import (
    TEXTS_AT_ONCE,
    RuleSelection,
    SelectedRows,
    build_response_keys,
    has_text,
    select_rows,
)
from rollouts.guidance.versions import (
    NO_RULES,
    RuleVersion,
    list_guidance,
    load_guidance,
    load_rules_by_version,
    save_guidance,
)

__all__ = [
    "MAX_RULES", "NO_RULES", "TEXTS_AT_ONCE", "Rule", "RuleSelection", "RuleVersion", "SelectedRows",
    "build_response_keys", "has_text", "list_guidance", "load_guidance", "load_rules_by_version", "parse_rules",
    "save_guidance", "select_rows",
]  # fmt: skip
