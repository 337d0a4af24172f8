"""The guidance rules that selected a sample in its training, and what they did with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from rolloutdeck.protocol import GUIDANCE_FIELD, parse_rule_keys
from rollouts.guidance import Rule, load_rules_by_version
from rollouts.models import Sample
from rollouts.samples import SampleBody

EFFECTS = {
    "mask": N_("masked"),
    "drop": N_("dropped"),
    "weight": N_("weight {value}"),
    "reward": N_("passed {value} to the reward function"),
}


@dataclass(frozen=True, slots=True)
class RuleMark:
    """`effect` and `query` are empty if it is not known which version of the rules applied. `link` leads to it."""

    key: str
    effect: str = ""
    query: str = ""
    link: str = ""


def load_rule_marks(samples: Sequence[Sample], bodies: Mapping[str, SampleBody]) -> dict[str, list[RuleMark]]:
    """{sample id: marks} of the samples whose training logged rules. One query, none if there are no such samples."""
    keys = {
        sample.pk: found
        for sample in samples
        if (body := bodies.get(sample.pk)) and (found := parse_rule_keys(body.extras.get(GUIDANCE_FIELD)))
    }
    selected = [sample for sample in samples if sample.pk in keys]
    versions = {sample.step.guidance["version"] for sample in selected if sample.step.guidance}
    rules = load_rules_by_version(selected[0].step.run.project, versions) if versions else {}
    marks = {}
    for sample in selected:
        version = sample.step.guidance["version"] if sample.step.guidance else 0
        page = reverse("guidance", args=[sample.step.run.project.slug])
        link = f"{page}?version={version}" if version in rules else ""
        own = rules.get(version, {})
        marks[sample.pk] = [build_rule_mark(key, own.get(key), link) for key in keys[sample.pk]]
    return marks


def build_rule_mark(key: str, rule: Rule | None, link: str) -> RuleMark:
    if rule is None:
        return RuleMark(key, link=link)
    return RuleMark(key, _(EFFECTS[rule.action]).format(value=f"{rule.value:g}"), rule.query, link)
