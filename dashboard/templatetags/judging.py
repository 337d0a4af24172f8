"""The rule for Correct, wherever a page says how many are."""

from __future__ import annotations

from django import template

from rollouts import judging

register = template.Library()

register.filter("rule", judging.rule_of)
