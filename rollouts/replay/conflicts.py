"""Conflicts inside a plan: entries that no run could replay together, found without any run.

A run has one trainer, one batch size and one number of responses, and the facts of a pin must equal those of the run.
So two entries whose facts differ cannot both be replayed. The plan's facts are those that most of its entries share;
the earliest entry decides between equal numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from rolloutdeck.protocol import REFUSE_FACTS
from rolloutdeck.trainer_api import find_loader
from rollouts.replay.compatibility import EntryCompatibility
from rollouts.replay.exclusion import PADDED_ROLES

# Facts that depend on the settings of the pinned run. The first one that differs explains the others.
FACT_NAMES = {
    "role": N_("role"),
    "format": N_("format"),
    "serialisation": N_("serialisation"),
    "prompts": N_("prompts per step"),
    "samples_per_prompt": N_("responses per prompt"),
    "rows": N_("rows per step"),
    "max_prompt_length": N_("maximum prompt length"),
    "max_response_length": N_("maximum response length"),
    "parameter_sync_step": N_("parameter sync steps"),
    "tokenizer": N_("tokenizer"),
}
assert set(FACT_NAMES) == set(REFUSE_FACTS)
MAX_VALUE_CHARS = 40


def find_plan_conflicts(
    entries: Sequence[EntryCompatibility],
    overridden: Collection[str] = (),
    requested: Mapping[str, Any] | None = None,
    *,
    on_selected: str = "keep",
) -> dict[int, str]:
    """Returns {target step: reason} of the entries that differ from the plan's other entries.

    `requested` are the facts of a run, if one is known: the entries that fit it are the plan. Unless selected
    samples are kept, compares what remains of each batch.
    """
    loadable = [entry for entry in entries if entry.artifacts]
    plan = find_plan_facts([get_entry_facts(entry, None, on_selected) for entry in loadable], requested or {})
    conflicts = {}
    for entry in loadable:
        if reason := explain_conflict(get_entry_facts(entry, plan.get("role"), on_selected), plan, overridden):
            conflicts[entry.entry.target_step] = reason
    return conflicts


def get_entry_facts(entry: EntryCompatibility, role: Any, on_selected: str) -> Mapping[str, Any]:
    """Returns the facts of the entry's artifact with this role, else of its first one. Its role is always known."""
    artifact = next((row for row in entry.artifacts if row.role == role), entry.artifacts[0])
    facts, rows = artifact.facts, entry.excluded.artifacts.get(artifact.pk)
    if on_selected != "keep" and rows and not rows.is_fully_selected and artifact.role not in PADDED_ROLES:
        facts = rows.get_remaining_facts(facts)
    return {**facts, "role": artifact.role}


def find_plan_facts(entries: Sequence[Mapping[str, Any]], requested: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the value of each fact that the run requests, else the most frequent one.

    Only the entries that have the values chosen so far count.
    """
    same = list(entries)
    plan: dict[str, Any] = {}
    for fact in FACT_NAMES:
        values = [repr(facts[fact]) for facts in same if facts.get(fact) is not None]
        if not values:
            continue
        chosen = repr(requested.get(fact))
        if chosen not in values:
            chosen = Counter(values).most_common(1)[0][0]  # equal counts keep the order of the entries
        same = [facts for facts in same if facts.get(fact) is None or repr(facts[fact]) == chosen]
        plan[fact] = next(facts[fact] for facts in same if facts.get(fact) is not None)
    return plan


def explain_conflict(facts: Mapping[str, Any], plan: Mapping[str, Any], overridden: Collection[str]) -> str:
    for fact in FACT_NAMES:
        own, others = facts.get(fact), plan.get(fact)
        if fact in overridden or own is None or others is None or own == others:
            continue
        if fact in ("prompts", "samples_per_prompt") and (shape := format_shape(facts)) != format_shape(plan):
            text = _("{own} per step; the plan has {others}")
            return text.format(own=shape, others=format_shape(plan))
        if fact in ("role", "format") and (trainers := find_trainers(facts, plan)):
            text = _("pinned from {own}; the plan's other steps are from {others}")
            return text.format(own=trainers[0], others=trainers[1])
        text = _("{fact} {own}; the plan's other steps have {others}")
        return text.format(fact=_(FACT_NAMES[fact]), own=format_value(own), others=format_value(others))
    return ""


def format_shape(facts: Mapping[str, Any]) -> str:
    prompts, responses = (facts.get(name) for name in ("prompts", "samples_per_prompt"))
    if prompts is None or responses is None:
        text = _("{count} prompts") if responses is None else _("{count} responses per prompt")
        return text.format(count=responses if prompts is None else prompts)
    return _("{prompts} prompts × {responses} responses").format(prompts=prompts, responses=responses)


def find_trainers(facts: Mapping[str, Any], plan: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the trainers that load both formats, if they are known and differ."""
    own, others = (find_loader(str(values.get("format") or "")) for values in (facts, plan))
    return (own.name, others.name) if own and others and own.name != others.name else None


def format_value(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"
