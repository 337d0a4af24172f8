"""How many samples of a step have their tokens, and what would bring those that are lacking."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import template

from rollouts.indexing import find_missing_tokenizer_command
from rollouts.lib import MAX_TOKEN_COMMANDS, cached
from rollouts.models import Step

register = template.Library()


@register.inclusion_tag("step/tokens.html", takes_context=True)
def token_figures(context: template.Context, row: Step) -> dict[str, Any]:
    run = context["run"]
    return {"row": row, "command": lacking(row, run.created_at, run.version)}


@cached(MAX_TOKEN_COMMANDS)
def lacking(step: Step, born: datetime, version: int) -> str:
    """The run's version names the content, so this is asked once of an unchanged run."""
    return find_missing_tokenizer_command(step)
