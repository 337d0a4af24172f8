"""HTML of table rows and of the step strip, in Python: as templates they take ten times as long."""

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
from rollouts.models import Sample
from rollouts.query import PART_PREFIX, RESCORE_PREFIX

MAX_BAR_HEIGHT = 30  # pixels
# Of the column of marks in `sample_rows.css`, without its padding but with a last gap; and of the mark "+2".
MARKS_WIDTH, MORE_WIDTH = 130, 28


def render_sample_rows(
    rows: Iterable[SampleRow],
    columns: list[str],
    link: str,
    group_links: GroupLinks,
    *,
    with_step: bool,
    selected: str = "",
) -> SafeString:
    """A `<tr>` for each row. `link` is the URL of the page, to which `sel=` is appended. `selected`: id of the sample
    that the page shows."""
    link = escape(link + ("&" if "?" in link and not link.endswith("?") else ""))
    return mark_safe(
        "\n".join(
            render_sample_row(row, columns, link, group_links, with_step, row.sample.pk == selected) for row in rows
        )
    )


def render_sample_row(
    row: SampleRow, columns: list[str], link: str, group_links: GroupLinks, with_step: bool, is_selected: bool
) -> str:
    sample = row.sample
    staleness = "" if sample.staleness is None else sample.staleness
    cells = [
        f'<td class="num c-step">{sample.step.step}</td>' if with_step else "",
        f'<td class="num c-score">{formatting.render_score(sample.score)}</td>',
        render_group_cell(row, group_links) if "group" in columns else "",
        f'<td class="num muted c-n">{"" if sample.index is None else sample.index}</td>' if "n" in columns else "",
        f'<td class="num c-adv">{formatting.format_signed_number(sample.advantage)}</td>' if "adv" in columns else "",
        *(render_part_cell(sample, name) for name in columns if name.startswith((PART_PREFIX, RESCORE_PREFIX))),
        f'<td class="num c-len">{row.length}</td>',
        f'<td class="num c-stale">{staleness}</td>' if "staleness" in columns else "",
        f'<td class="num muted c-time">{formatting.format_seconds(sample.duration)}</td>'
        if "duration" in columns
        else "",
        f'<td class="marks">{render_fitting_marks(row)}</td>',
        f'<td class="muted c-source">{formatting.render_text(sample.data_source)}</td>' if "source" in columns else "",
        render_text_cell(row, link),
        render_expected_cell(row) if "expected" in columns else "",
    ]
    viewed = f' data-viewed="{escape(row.viewed_label)}"{" data-ok" * row.is_ok}' if row.viewed_label else ""
    selected = ' aria-selected="true"' if is_selected else ""
    return f'<tr id="r-{sample.pk}" data-id="{sample.pk}"{viewed}{selected}>{"".join(cells)}</tr>'


def render_group_cell(row: SampleRow, group_links: GroupLinks) -> str:
    link, title = escape(group_links.link(row.sample)), escape(_("open its group side by side"))
    inside = f'<a href="{link}" data-board title="{title}">{formatting.render_text(row.group)}</a>' if link else ""
    return f'<td class="num group">{inside}</td>'


def render_part_cell(sample: Sample, name: str) -> str:
    """`part:NAME` is a reward part, `rescore:KEY=NAME` a re-score."""
    if name.startswith(RESCORE_PREFIX):
        value = (sample.rescores or {}).get(name.removeprefix(RESCORE_PREFIX).partition("=")[0])
    else:
        value = (sample.parts or {}).get(name.removeprefix(PART_PREFIX))
    text = "" if value is None else formatting.format_narrow_number(value).replace("-", "−")
    return f'<td class="num c-part">{text}</td>'


def render_text_cell(row: SampleRow, link: str) -> str:
    """The text around the hit of the query, else the end of the response."""
    sample = row.sample
    if row.snippet:
        text = formatting.render_snippet(row.snippet)
        return f'<td class="tail" colspan="2"><a class="quiet snippet" href="{link}sel={sample.pk}">{text}</a></td>'
    text = formatting.render_text_end(sample.tail, is_cut=sample.chars > len(sample.tail))
    label = "" if sample.tail else f' aria-label="{escape(_("no text"))}"'
    return f'<td class="tail" colspan="2"><a class="quiet" href="{link}sel={sample.pk}"{label}>{text}</a></td>'


def render_expected_cell(row: SampleRow) -> str:
    expected = formatting.render_text_line(row.sample.expected)
    if not row.has_answer_mismatch or not row.sample.answer:
        return f'<td class="mono c-expected">{expected}</td>'
    got = formatting.render_text_line(row.sample.answer)
    title = escape(_("expected {expected}, got {got}").format(expected=row.sample.expected, got=row.sample.answer))
    return f'<td class="mono c-expected" title="{title}">{expected} ≠ <b class="got">{got}</b></td>'


def render_sample_marks(row: SampleRow) -> SafeString:
    return render_tags(row.marks())


def render_fitting_marks(row: SampleRow) -> SafeString:
    """As many marks as the column has room for. "+2" stands for the others and names them."""
    marks = row.marks()
    if sum(map(estimate_mark_width, marks)) <= MARKS_WIDTH:
        return render_tags(marks)
    left, shown = float(MARKS_WIDTH - MORE_WIDTH), 0
    for mark in marks:
        left -= estimate_mark_width(mark)
        if left < 0:
            break
        shown += 1
    hidden = marks[shown:]
    more = ("plain", ", ".join(text for _kind, _title, text in hidden), f"+{len(hidden)}")
    return render_tags([*marks[:shown], more])


def estimate_mark_width(mark: tuple[str, str, str]) -> float:
    """In pixels, with the gap to the next mark: `.tag` is set in 10 px, and a Chinese character fills its square."""
    return 12 + sum(6.6 if character < "\u2000" else 11 for character in mark[2])


def render_tags(marks: Iterable[tuple[str, str, str]]) -> SafeString:
    """The marks have a text as well as a colour."""
    tag = '<span class="tag {}" title="{}">{}</span>'
    return mark_safe(" ".join(tag.format(kind, escape(title), escape(text)) for kind, title, text in marks))


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
        "" if bar.score is None else titles["mean"].format(mean=formatting.format_number(bar.score)),
        titles["flagged"].format(count=bar.flags) if bar.flags else "",
        titles["replayed"].format(count=bar.replayed) if bar.replayed else "",
    ]
    title = escape(" · ".join(part for part in parts if part))
    current, here = (' aria-current="true"', " here") if is_current else ("", "")
    x, width = f'x="{bar.x}%"', f'width="{0.94 * bar.width:.3f}%"'
    y, height = f"{bar.y * MAX_BAR_HEIGHT / 100:.2f}", f"{bar.height * MAX_BAR_HEIGHT / 100:.2f}"
    flags = f'<rect class="flags" {x} {width} y="31" height="2"/>' if bar.flags else ""
    replayed = f'<rect class="reuse" {x} {width} y="33.5" height="2"/>' if bar.replayed else ""
    return (
        f'<a href="{link}"{current}><title>{title}</title><rect class="hit" {x} width="{bar.width}%" height="44"/>'
        f'<rect class="bar{here}" {x} {width} y="{y}" height="{height}"/>'
        f"{flags}{replayed}</a>"
    )
