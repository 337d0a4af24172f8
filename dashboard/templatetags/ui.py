"""How values look on every page: scores, numbers, times, hostile text, links that keep the page's state."""

from __future__ import annotations

from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from dashboard import assets
from dashboard.pages.common import (
    GroupLinks,
    StepUrlState,
    format_number,
    format_percent,
    format_run_status,
    format_signed_number,
    render_code_spans,
    render_footer,
    render_help_dialog,
    render_highlighted_text,
    render_sample_marks,
    render_sample_rows,
    render_score,
    render_status_strip,
    render_step_bars,
    render_text,
    render_text_line,
    render_time,
    replace_control_characters,
)
from dashboard.pages.sample import render_field_buttons, render_prompt_bars

register = template.Library()

register.filter("num", format_number)
register.filter("signed", format_signed_number)
register.filter("plain", render_text)
register.filter("line", render_text_line)
register.filter("coded", render_code_spans)
register.filter("bare", replace_control_characters)
register.filter("percent", format_percent)
register.filter("run_status", format_run_status)
register.simple_tag(render_time, name="ago")
register.simple_tag(render_score, name="score")
register.simple_tag(render_highlighted_text, name="reading")
register.simple_tag(render_sample_marks, name="marks")
register.simple_tag(render_status_strip, name="cells")
register.simple_tag(render_prompt_bars, name="past_bars")
register.simple_tag(render_field_buttons, name="keyed")
register.simple_tag(assets.build_asset_url, name="asset")
register.simple_tag(assets.render_module_script, name="module")
register.simple_tag(assets.get_release_hash, name="release")


@register.simple_tag(takes_context=True, name="help")
def help_dialog(context: template.Context) -> SafeString:
    return render_help_dialog(context["page_name"], context["language"], context["single_keys"])


@register.simple_tag(takes_context=True)
def foot(context: template.Context) -> SafeString:
    return render_footer(context["page_name"], context["language"])


@register.filter
def minus(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


@register.simple_tag(takes_context=True)
def rows(context: template.Context) -> SafeString:
    boards = GroupLinks(context["run"], context["url_state"])
    link, every = context["rows_link"], context["word"] == "all"
    return render_sample_rows(context["page"].rows, context["columns"], link, boards, with_step=every)


@register.simple_tag(takes_context=True)
def bars(context: template.Context) -> SafeString:
    return render_step_bars(context["strip"], context["run"].uid, context["current"], context["url_state"])


@register.simple_tag(takes_context=True)
def page_link(context: template.Context, **changes: str) -> str:
    """`?…` of this page's state with some of it changed."""
    return str(context["url_state"].link(**changes)) or "?"


@register.filter
def toggle_link(one: Any, url_state: StepUrlState) -> str:
    """The link of a bar or bin: the query with its term, or without."""
    return url_state.toggle_link(one["term"] if isinstance(one, dict) else one.term) or "?"


@register.simple_tag(takes_context=True)
def sort_link(context: template.Context, name: str, shown_as: str) -> str:
    """A column's header: a link that sorts by it or turns its order round, with the arrow of the present order."""
    url_state: StepUrlState = context["url_state"]
    arrow = {name: " ↑", f"-{name}": " ↓"}.get(context["order"], "")
    link = url_state.column_link(name, context["usual"]) or "?"
    return format_html('<a class="quiet" href="{}" data-ask>{}{}</a>', link, shown_as, arrow)


@register.filter
def reason_name(key: str, reasons: list[dict[str, str]]) -> str:
    """What the project calls a reason; its key when the project has dropped it."""
    return next((_(reason["name"]) for reason in reasons if reason["key"] == key), key)
