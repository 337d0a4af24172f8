"""The two long pieces of HTML, rows of samples and bars of steps: a template takes ten times as long for them."""

from __future__ import annotations

from collections.abc import Iterable

from django.urls import reverse
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from dashboard.pages import text
from dashboard.pages.ask import Ask
from dashboard.pages.boards import Boards
from dashboard.pages.listing import Row
from dashboard.pages.strip import Bar, Strip


def rows(page: Iterable[Row], columns: list[str], link: str, boards: Boards, *, with_step: bool) -> SafeString:
    """`<tr>` for each row; `link` is the page's address, to which `sel=` is added."""
    joined = link + ("&" if "?" in link and not link.endswith("?") else "")
    return mark_safe("\n".join(row(one, columns, escape(joined), boards, with_step) for one in page))


def row(one: Row, columns: list[str], link: str, boards: Boards, with_step: bool) -> str:
    sample = one.sample
    cells = [
        f'<td class="num">{sample.step.step}</td>' if with_step else "",
        f'<td class="num">{text.score(sample.score)}</td>',
        group(one, boards) if "group" in columns else "",
        f'<td class="num muted">{"" if sample.index is None else sample.index}</td>' if "n" in columns else "",
        f'<td class="num">{text.signed(sample.advantage)}</td>' if "adv" in columns else "",
        f'<td class="num">{one.length}</td><td class="marks">{marks(one)}</td>',
        f'<td class="muted">{text.plain(sample.data_source)}</td>' if "source" in columns else "",
        tail(one, link),
        f'<td class="mono">{text.line(sample.expected)}</td>' if "expected" in columns else "",
    ]
    return f'<tr id="r-{sample.pk}" data-id="{sample.pk}"{look(one)}>{"".join(cells)}</tr>'


def look(one: Row) -> str:
    """For the mark of a row that the person has looked at."""
    return f' data-look="{escape(one.look)}"{" data-fine" * one.fine}' if one.look else ""


def group(one: Row, boards: Boards) -> str:
    """Where all responses of the row's group stand side by side."""
    link = escape(boards.link(one.sample))
    said = escape(_("its group, side by side"))
    inside = f'<a href="{link}" data-board title="{said}">{text.plain(one.group)}</a>' if link else ""
    return f'<td class="num group">{inside}</td>'


def tail(one: Row, link: str) -> str:
    sample = one.sample
    cut = " cut" if sample.chars > len(sample.tail) else ""
    inside = f"<span><bdi>{text.line(sample.tail)}</bdi></span>"
    named = "" if sample.tail else f' aria-label="{escape(_("no text"))}"'
    return f'<td class="tail"><a class="quiet{cut}" href="{link}sel={sample.pk}"{named}>{inside}</a></td>'


def marks(one: Row) -> SafeString:
    """What stands out about a sample, in words: never by colour alone."""
    return mark_safe(
        " ".join(
            f'<span class="tag {kind}" title="{escape(full)}">{escape(mark)}</span>' for kind, full, mark in one.marks()
        )
    )


def bars(track: Strip, uid: str, here: int | None, ask: Ask) -> SafeString:
    """The strip's bars as links to their steps; a bar that stands for several leads to the last of them."""
    address = reverse("step", args=[uid, "STEP"])
    kept = escape(ask.kept)
    drawn = (bar(one, address.replace("STEP", str(one.last)) + kept, one.holds(here)) for one in track.bars)
    return mark_safe("".join(drawn))


def bar(one: Bar, link: str, here: bool) -> str:
    told = [
        one.steps,
        "" if one.score is None else _("mean {mean}").format(mean=text.num(one.score)),
        _("{count} flagged").format(count=one.flags) if one.flags else "",
        _("{count} replayed").format(count=one.reused) if one.reused else "",
    ]
    title = escape(" · ".join(part for part in told if part))
    place = f'x="{one.x}%" width="{one.width}%"'
    kind, below = ("bar here" if here else "bar"), ("flags" if one.flags else "base")
    return (
        f'<a href="{link}"><title>{title}</title><rect class="hit" {place} height="100%"/>'
        f'<svg {place} height="30"><rect class="{kind}" width="94%" y="{one.y}%" height="{one.height}%"/></svg>'
        f'<svg {place} y="31" height="5"><rect class="{below}" width="94%" height="2"/>{reused(one)}</svg></a>'
    )


def reused(one: Bar) -> str:
    """The mark of a bar whose steps replayed another's generations."""
    return '<rect class="reuse" width="94%" y="2.5" height="2"/>' if one.reused else ""
