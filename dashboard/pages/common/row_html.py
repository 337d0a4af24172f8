"""The two long pieces of HTML, rows of samples and bars of steps: a template takes ten times as long for them."""

from __future__ import annotations

from collections.abc import Iterable

from django.urls import reverse
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from dashboard.pages.common import formatting
from dashboard.pages.common.group_links import GroupLinks
from dashboard.pages.common.sample_rows import SampleRow
from dashboard.pages.common.step_strip import StepBar, StepStrip
from dashboard.pages.common.url_state import StepUrlState

TALL = 30  # pixels of the strip's highest bar


def render_sample_rows(
    page: Iterable[SampleRow], columns: list[str], link: str, boards: GroupLinks, *, with_step: bool
) -> SafeString:
    """`<tr>` for each row; `link` is the page's address, to which `sel=` is added."""
    joined = link + ("&" if "?" in link and not link.endswith("?") else "")
    return mark_safe("\n".join(render_sample_row(one, columns, escape(joined), boards, with_step) for one in page))


def render_sample_row(one: SampleRow, columns: list[str], link: str, boards: GroupLinks, with_step: bool) -> str:
    sample = one.sample
    cells = [
        f'<td class="num">{sample.step.step}</td>' if with_step else "",
        f'<td class="num">{formatting.render_score(sample.score)}</td>',
        render_group_cell(one, boards) if "group" in columns else "",
        f'<td class="num muted">{"" if sample.index is None else sample.index}</td>' if "n" in columns else "",
        f'<td class="num">{formatting.format_signed_number(sample.advantage)}</td>' if "adv" in columns else "",
        f'<td class="num">{one.length}</td><td class="marks">{render_sample_marks(one)}</td>',
        f'<td class="muted">{formatting.render_text(sample.data_source)}</td>' if "source" in columns else "",
        render_text_end_cell(one, link),
        f'<td class="mono">{formatting.render_text_line(sample.expected)}</td>' if "expected" in columns else "",
    ]
    return f'<tr id="r-{sample.pk}" data-id="{sample.pk}"{render_viewed_attributes(one)}>{"".join(cells)}</tr>'


def render_viewed_attributes(one: SampleRow) -> str:
    """For the mark of a row that the person has looked at."""
    return f' data-look="{escape(one.look)}"{" data-fine" * one.fine}' if one.look else ""


def render_group_cell(one: SampleRow, boards: GroupLinks) -> str:
    """Where all responses of the row's group stand side by side."""
    link = escape(boards.link(one.sample))
    said = escape(_("open its group side by side"))
    inside = f'<a href="{link}" data-board title="{said}">{formatting.render_text(one.group)}</a>' if link else ""
    return f'<td class="num group">{inside}</td>'


def render_text_end_cell(one: SampleRow, link: str) -> str:
    sample = one.sample
    cut = " cut" if sample.chars > len(sample.tail) else ""
    inside = f"<span><bdi>{formatting.render_text_line(sample.tail)}</bdi></span>"
    named = "" if sample.tail else f' aria-label="{escape(_("no text"))}"'
    return f'<td class="tail"><a class="quiet{cut}" href="{link}sel={sample.pk}"{named}>{inside}</a></td>'


def render_sample_marks(one: SampleRow) -> SafeString:
    """What stands out about a sample, in words: never by colour alone."""
    return mark_safe(
        " ".join(
            f'<span class="tag {kind}" title="{escape(full)}">{escape(mark)}</span>' for kind, full, mark in one.marks()
        )
    )


def render_step_bars(track: StepStrip, uid: str, here: int | None, ask: StepUrlState) -> SafeString:
    """The strip's bars as links to their steps; a bar that stands for several leads to the last of them."""
    before, after = escape(reverse("step", args=[uid, "STEP"])).split("STEP")
    after += escape(ask.without_sample)
    said = get_bar_titles()
    drawn = (render_step_bar(one, f"{before}{one.last}{after}", one.holds(here), said) for one in track.bars)
    base = '<rect class="base" width="100%" y="31" height="2"/>'
    return mark_safe(base + "".join(drawn))


def get_bar_titles() -> dict[str, str]:
    """The words of the bars' titles, translated once for all of them."""
    return {
        "step": _("step {step}"),
        "steps": _("steps {first} to {last}"),
        "mean": _("mean {mean}"),
        "flagged": _("{count} flagged"),
        "replayed": _("{count} replayed"),
    }


def render_step_bar(one: StepBar, link: str, here: bool, said: dict[str, str]) -> str:
    """Everything in pixels of the strip's height: with an `<svg>` of its own for each bar the browser takes twice as
    long."""
    parts = [
        said["step" if one.first == one.last else "steps"].format(step=one.last, first=one.first, last=one.last),
        "" if one.score is None else said["mean"].format(mean=formatting.format_number(one.score)),
        said["flagged"].format(count=one.flags) if one.flags else "",
        said["replayed"].format(count=one.reused) if one.reused else "",
    ]
    title = escape(" · ".join(part for part in parts if part))
    x, wide = f'x="{one.x}%"', f'width="{0.94 * one.width:.3f}%"'
    kind = "bar here" if here else "bar"
    return (
        f'<a href="{link}"><title>{title}</title><rect class="hit" {x} width="{one.width}%" height="44"/>'
        f'<rect class="{kind}" {x} {wide} y="{one.y * TALL / 100:.2f}" height="{one.height * TALL / 100:.2f}"/>'
        f"{render_bar_marks(one, f'{x} {wide}')}</a>"
    )


def render_bar_marks(one: StepBar, place: str) -> str:
    """The marks of a bar with flags, and of one whose steps replayed another's generations."""
    flags = f'<rect class="flags" {place} y="31" height="2"/>' if one.flags else ""
    return flags + (f'<rect class="reuse" {place} y="33.5" height="2"/>' if one.reused else "")
