"""The names of rules and reasons, in the user's language."""

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

# Why samples are kept, in the order of the report.
REASONS = {
    "evaluation": N_("evaluation"),
    "run-tag": N_("the run has the tag keep"),
    "last-step": N_("last step of its attempt"),
    "pinned": N_("pinned step"),
    "bound-plan": N_("in a plan of an unfinished run"),
    "flagged": N_("group of a flagged sample"),
    "labelled": N_("group of a labelled sample"),
    "queued": N_("group of a sample in an open review queue"),
    "finding": N_("group of a sample in a finding"),
    "not-indexed": N_("not completely indexed"),
    "not-verified": N_("body differs from the dump"),
    "young": N_("too young"),
    "every": N_("every k-th step"),
    "sample": N_("in the sample of groups"),
    "extreme": N_("best or worst group"),
    "whole": N_("no rule for it"),
}
RULES = {
    "every": N_("only every k-th step is kept"),
    "sample": N_("only a sample of groups is kept"),
    "age": N_("limit of age"),
    "count": N_("limit of steps per run"),
    "size": N_("limit of bytes"),
}
# Why raw bytes are kept.
RAW_REASONS = {
    "young": N_("too young"),
    "evaluation": N_("evaluation"),
    "run-tag": N_("the run has the tag keep"),
    "no-samples": N_("no samples, such as metrics"),
    "not-indexed": N_("not indexed"),
    "not-verified": N_("body differs from the dump"),
    "tokens-only": N_("tokens only, a tokenizer may come later"),
    "several-steps": N_("several steps in one file"),
}


def describe_reason(reason: str) -> str:
    return _(REASONS.get(reason, reason))


def describe_raw_reason(reason: str) -> str:
    return _(RAW_REASONS.get(reason, reason))


def describe_rule(rule: str) -> str:
    return _(RULES.get(rule, rule))
