"""The rule for Correct, wherever a page says how many are."""

from __future__ import annotations

from typing import Any

from django import template

from rollouts.query import get_rule_text
from rollouts.samples import extract_final_answer

ENDING = 4000  # characters of a response in which its answer is looked for

register = template.Library()

register.filter("rule", get_rule_text)


@register.filter
def got(body: Any) -> str:
    """The answer that a response ends in; empty where none is found."""
    return extract_final_answer(body.response[-ENDING:], {**body.rewards, **body.extras})
