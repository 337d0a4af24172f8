"""The letter of a compared step, in the colour of its run."""

from __future__ import annotations

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag(takes_context=True)
def badge(context: template.Context, letter: str) -> SafeString:
    """Full for the first step of a colour, hollow for the others, as the checkpoints of one run are."""
    return format_html('<b class="letter {}">{}</b>', context["badges"].get(letter, ""), letter)
