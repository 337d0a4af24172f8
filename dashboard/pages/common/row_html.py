"""HTML of table rows and of the step strip, in Python: as templates they take ten times as long."""

from collections.abc import Iterable

from django.urls import reverse
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from dashboard.pages.common.formatting import (
    format_number,
    format_signed_number,
    render_score,
    render_text,
    render_text_line,
)
from dashboard.pages.common.group_links import GroupLinks
from dashboard.pages.common.sample_rows import SampleRow
from dashboard.pages.common.step_strip import StepBar, StepStrip
from dashboard.pages.common.url_state import StepUrlState

MAX_BAR_HEIGHT = 30  # pixels


def render_sample_rows(
    rows: Iterable[SampleRow], columns: list[str], link: str, group_links: GroupLinks, *, with_step: bool
) -> SafeString:
    """A `<tr>` for each row. `link` is the URL of the page, to which `sel=` is appended."""
    link = escape(link + ("&" if "?" in link and not link.endswith("?") else ""))
    return mark_safe("\n".join(render_sample_row(row, columns, link, group_links, with_step) for row in rows))


def render_sample_row(row: SampleRow, columns: list[str], link: str, group_links: GroupLinks, with_step: bool) -> str:
    sample = row.sample
    cells = [
        f'<td class="num">{sample.step.step}</td>' if with_step else "",
        f'<td class="num">{render_score(sample.score)}</td>',
        render_group_cell(row, group_links) if "group" in columns else "",
        f'<td class="num muted">{"" if sample.index is None else sample.index}</td>' if "n" in columns else "",
        f'<td class="num">{format_signed_number(sample.advantage)}</td>' if "adv" in columns else "",
        f'<td class="num">{row.length}</td><td class="marks">{render_sample_marks(row)}</td>',
        f'<td class="muted">{render_text(sample.data_source)}</td>' if "source" in columns else "",
        render_text_end_cell(row, link),
        f'<td class="mono">{render_text_line(sample.expected)}</td>' if "expected" in columns else "",
    ]
    viewed = f' data-look="{escape(row.viewed_label)}"{" data-fine" * row.is_ok}' if row.viewed_label else ""
    return f'<tr id="r-{sample.pk}" data-id="{sample.pk}"{viewed}>{"".join(cells)}</tr>'


def render_group_cell(row: SampleRow, group_links: GroupLinks) -> str:
    link, title = escape(group_links.link(row.sample)), escape(_("open its group side by side"))
    inside = f'<a href="{link}" data-board title="{title}">{render_text(row.group)}</a>' if link else ""
    return f'<td class="num group">{inside}</td>'


def render_text_end_cell(row: SampleRow, link: str) -> str:
    sample = row.sample
    cut = " cut" if sample.chars > len(sample.tail) else ""
    text = f"<span><bdi>{render_text_line(sample.tail)}</bdi></span>"
    label = "" if sample.tail else f' aria-label="{escape(_("no text"))}"'
    return f'<td class="tail"><a class="quiet{cut}" href="{link}sel={sample.pk}"{label}>{text}</a></td>'


def render_sample_marks(row: SampleRow) -> SafeString:
    """The marks have a text as well as a colour."""
    tag = '<span class="tag {}" title="{}">{}</span>'
    return mark_safe(" ".join(tag.format(kind, escape(title), escape(text)) for kind, title, text in row.marks()))


def render_step_bars(strip: StepStrip, uid: str, current: int | None, url_state: StepUrlState) -> SafeString:
    """The bars as links to their steps. A bar of several steps links to the last of them."""
    before, after = escape(reverse("step", args=[uid, "STEP"])).split("STEP")
    after += escape(url_state.without_sample)
    titles = {  # translated once for all bars
        "step": _("step {step}"),
        "steps": _("steps {first} to {last}"),
        "mean": _("mean {mean}"),
        "flagged": _("{count} flagged"),
        "replayed": _("{count} replayed"),
    }
    bars = (render_step_bar(bar, f"{before}{bar.last}{after}", bar.contains(current), titles) for bar in strip.bars)
    return mark_safe('<rect class="base" width="100%" y="31" height="2"/>' + "".join(bars))


def render_step_bar(bar: StepBar, link: str, is_current: bool, titles: dict[str, str]) -> str:
    """In pixels: with an `<svg>` and percents for each bar, the browser takes twice as long."""
    parts = [
        titles["step" if bar.first == bar.last else "steps"].format(step=bar.last, first=bar.first, last=bar.last),
        "" if bar.score is None else titles["mean"].format(mean=format_number(bar.score)),
        titles["flagged"].format(count=bar.flags) if bar.flags else "",
        titles["replayed"].format(count=bar.replayed) if bar.replayed else "",
    ]
    title = escape(" · ".join(part for part in parts if part))
    x, width = f'x="{bar.x}%"', f'width="{0.94 * bar.width:.3f}%"'
    y, height = f"{bar.y * MAX_BAR_HEIGHT / 100:.2f}", f"{bar.height * MAX_BAR_HEIGHT / 100:.2f}"
    flags = f'<rect class="flags" {x} {width} y="31" height="2"/>' if bar.flags else ""
    replayed = f'<rect class="reuse" {x} {width} y="33.5" height="2"/>' if bar.replayed else ""
    return (
        f'<a href="{link}"><title>{title}</title><rect class="hit" {x} width="{bar.width}%" height="44"/>'
        f'<rect class="{"bar here" if is_current else "bar"}" {x} {width} y="{y}" height="{height}"/>'
        f"{flags}{replayed}</a>"
    )
