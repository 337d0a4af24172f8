"""How many samples of a step have tokens, and the command that uploads the missing tokenizer."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import template

from rollouts.indexing import find_missing_tokenizer_command
from rollouts.lib import MAX_TOKEN_COMMANDS, cached
from rollouts.models import Step

register = template.Library()


@register.inclusion_tag("step/tokens.html", takes_context=True)
def token_statistics(context: template.Context, row: Step) -> dict[str, Any]:
    run = context["run"]
    return {"row": row, "command": load_tokenizer_command(row, run.created_at, run.version)}


@cached(MAX_TOKEN_COMMANDS)
def load_tokenizer_command(step: Step, created_at: datetime, version: int) -> str:
    """Cached until the run's version changes."""
    return find_missing_tokenizer_command(step)
