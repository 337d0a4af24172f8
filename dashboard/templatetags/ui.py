"""Values on every page: scores, changes, numbers, times, hostile text, and links that keep the page's state."""

from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from dashboard import assets
from dashboard.pages import common
from dashboard.pages.findings import describe_sample, describe_score, format_short_number
from dashboard.pages.sample import render_field_buttons, render_prompt_bars
from rolloutdeck.lib import format_bytes
from rollouts.models import Sample
from rollouts.query import get_rule_text
from rollouts.samples import extract_final_answer

MIN_CHANGES = {"score": 0.0005, "truncated": 0.0005}
MAX_ANSWER_CHARS = 4000  # at the end of a response, in which its answer is searched

register = template.Library()

register.filter("num", common.format_number)
register.filter("short", format_short_number)
register.filter("signed", common.format_signed_number)
register.filter("seconds", common.format_seconds)
register.filter("bytes", format_bytes)
register.filter("plain", common.render_text)
register.filter("line", common.render_text_line)
register.filter("markdown", common.render_note)
register.filter("code_spans", common.render_code_spans)
register.filter("printable", common.replace_control_characters)
register.filter("percent", common.format_percent)
register.filter("run_status", common.format_run_status)
register.filter("rule", get_rule_text)
register.filter("estimate", common.format_estimate)
register.filter("estimate_change", common.format_change)
register.filter("share", common.format_share)
register.filter("has_text", common.has_text)
register.simple_tag(common.render_estimate_scale, name="estimate_scale")
register.simple_tag(common.render_time, name="ago")
register.simple_tag(common.render_score, name="score")
register.simple_tag(common.render_highlighted_text, name="highlighted")
register.simple_tag(common.render_sample_marks, name="sample_marks")
register.simple_tag(common.render_status_strip, name="status_strip")
register.simple_tag(render_prompt_bars, name="prompt_bars")
register.simple_tag(render_field_buttons, name="field_buttons")
register.simple_tag(assets.build_asset_url, name="asset")
register.simple_tag(assets.render_module_script, name="module")
register.simple_tag(assets.get_release_hash, name="release")


@register.simple_tag(takes_context=True, name="help")
def help_dialog(context: template.Context) -> SafeString:
    return common.render_help_dialog(context["page_name"], context["language"], context["single_keys"])


@register.simple_tag(takes_context=True)
def footer_keys(context: template.Context) -> SafeString:
    return common.render_footer(context["page_name"], context["language"])


@register.filter
def minus(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


@register.simple_tag(takes_context=True)
def rows(context: template.Context) -> SafeString:
    boards = common.GroupLinks(context["run"], context["url_state"])
    link, every = context["rows_link"], context["requested_step"] == "all"
    shown = context.get("sample")
    return common.render_sample_rows(
        context["page"].rows, context["columns"], link, boards, with_step=every, selected=shown.pk if shown else ""
    )


@register.simple_tag(takes_context=True)
def bars(context: template.Context) -> SafeString:
    return common.render_step_bars(context["strip"], context["run"].uid, context["current"], context["url_state"])


@register.simple_tag(takes_context=True)
def page_link(context: template.Context, **changes: str) -> str:
    """`?…` of this page's state with `changes`."""
    return str(context["url_state"].link(**changes)) or "?"


@register.filter
def toggle_link(bar: Any, url_state: common.StepUrlState) -> str:
    """The link of a bar: adds its term to the query or removes it."""
    return url_state.toggle_link(bar["term"] if isinstance(bar, dict) else bar.term) or "?"


@register.simple_tag(takes_context=True)
def sort_link(context: template.Context, name: str, shown_as: str) -> str:
    """A column's header: a link that sorts by it or reverses the order, with an arrow for the current order."""
    url_state: common.StepUrlState = context["url_state"]
    arrow = {name: " ↑", f"-{name}": " ↓"}.get(context["order"], "")
    link = url_state.column_link(name, context["default_order"]) or "?"
    return format_html('<a class="quiet" href="{}" data-ask>{}{}</a>', link, shown_as, arrow)


@register.simple_tag(takes_context=True)
def part_sort_link(context: template.Context, name: str, is_rescore: bool) -> str:
    """The header of a reward part or a re-score. The column is narrow, so `score.v2` is `v2`."""
    if is_rescore:
        return sort_link(context, f"rescore:{name}", common.render_text(name.removeprefix("score.")))
    return sort_link(context, f"part:{name}", common.render_text(name))


@register.simple_tag
def text_end(sample: Sample) -> SafeString:
    """The end of a response for a list."""
    return common.render_text_end(sample.tail, is_cut=sample.chars > len(sample.tail))


@register.filter
def reason_name(key: str, reasons: list[dict[str, str]]) -> str:
    """The name of a reason in the project; its key if the project has removed it."""
    return next((_(reason["name"]) for reason in reasons if reason["key"] == key), key)


@register.filter
def final_answer(body: Any) -> str:
    """The answer at the end of a response; empty if there is none."""
    return extract_final_answer(body.response[-MAX_ANSWER_CHARS:], {**body.rewards, **body.extras})


@register.simple_tag(takes_context=True)
def badge(context: template.Context, letter: str) -> SafeString:
    """The letter of a compared step in the colour of its run. Only the first step of a colour is filled."""
    return format_html('<b class="letter {}">{}</b>', context["badges"].get(letter, ""), letter)


@register.simple_tag
def change(value: float | None, of: str) -> SafeString | str:
    """The change since the previous step: `▲ 0.03` of a score, `▼ 1.2 pt` of a share; empty if there is no value."""
    if value is None:
        return ""
    if abs(value) < MIN_CHANGES[of]:
        return format_html('<span class="change muted" title="{}">=</span>', _("same as the previous step"))
    better = value > 0 if of == "score" else value < 0
    text = f"{abs(value):.3g}" if of == "score" else _("{points} pt").format(points=f"{100 * abs(value):.1f}")
    return format_html(
        '<span class="change {}" title="{}">{} {}</span>',
        "better" if better else "worse", _("compared with the previous step"), "▲" if value > 0 else "▼", text,
    )  # fmt: skip


@register.filter
def sample_headline(sample: Sample) -> str:
    """`grpo · train step 12 · score 0.10 · expected 75 · 116 tok`."""
    step = sample.step
    names = ("tokens", "chars", "truncated", "index", "data_source")
    expected = _("expected {value}").format(value=sample.expected) if sample.expected else ""
    facets = [] if common.has_text(sample) else ["no-text"]
    details = describe_sample({"facets": facets, **{name: getattr(sample, name) for name in names}})
    parts = [
        step.run.name,
        _("{split} step {step}").format(split=step.split, step=step.step),
        describe_score(sample.score),
        expected,
        *details,
    ]
    return common.replace_control_characters(" · ".join(part for part in parts if part))
