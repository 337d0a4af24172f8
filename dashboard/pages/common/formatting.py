"""How values and hostile text look on every page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from math import isfinite

from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

# Half surrogates cannot be sent at all; NUL, bidi overrides and zero-width spaces act on what stands around them.
# Joiners (U+200C, U+200D) and direction marks are ordinary letters' company and stay.
LONE_SURROGATE_PATTERN = re.compile(r"[\ud800-\udfff]")
CONTROL_CHARACTER_PATTERN = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x85\u200b\u2028\u2029\u202a-\u202e\u2060\u2066-\u2069\ufeff]"
)
# What reward functions look for, see rollouts/samples/final_answer.py.
ANSWER_PATTERN = re.compile(
    r"####[^\n]*|\\boxed\{(?:[^{}\n]|\{[^{}\n]*\})*\}|\banswer[ \t]*[:：][ \t]*[^\s][^\n]{0,400}", re.IGNORECASE
)
ANSWER_START_PATTERN = re.compile(r"####|\\boxed\{|answer")  # how each of them begins, in small letters
HARMLESS = bytes([9, 10, 13, *range(32, 127)])
MAX_MARKED_CHARS = 200_000
BLOCK_CHARS = 20_000
MAX_NUMBER_CHARS = 7  # characters of a score in a table
RUN_STATUS_LABELS = {  # by `Run.status`
    "running": N_("running"),
    "silent": N_("no heartbeat"),
    "finished": N_("finished"),
    "failed": N_("failed"),
}


def grade_score(score: float | None) -> str:
    """Colour class of a score: `bad` to 0, `good` from 1, else `partial`."""
    if score is None:
        return "none"
    return "bad" if score <= 0 else "good" if score >= 1 else "partial"


def format_number(value: float | None, digits: int = 2) -> str:
    """A number short enough for a dense table: -0.10, 1,024, 1.2e-06."""
    if value is None:
        return ""
    if value and (abs(value) < 10**-digits / 2 or abs(value) >= 1e7):
        return f"{value:.1e}"
    return f"{value:,.{digits}f}" if isinstance(value, float) and abs(value) < 1e4 else f"{value:,.0f}"


def format_signed_number(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}".replace("-", "−")


def format_percent(part: float | None, whole: float | None) -> str:
    return "" if part is None or not whole else f"{100 * part / whole:.1f} %"


def format_run_status(status: str) -> str:
    return _(RUN_STATUS_LABELS[status])


def render_time(moment: datetime | None) -> str:
    """A `<time>` that the page's script keeps relative; without script it shows the UTC time."""
    if moment is None:
        return ""
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        moment.isoformat(timespec="seconds"),
        moment.strftime("%Y-%m-%d %H:%M:%S"),
        moment.strftime("%Y-%m-%d %H:%M"),
    )


def render_score(value: float | None, extra: str = "") -> SafeString:
    shown = "–" if value is None else format_narrow_number(value).replace("-", "−")
    return mark_safe(f'<span class="score {grade_score(value)} {extra}">{shown}</span>')


def format_narrow_number(value: float) -> str:
    """`num` in at most `WIDEST` characters: a number that a column cuts reads as another one."""
    if not isfinite(value):  # which has no exponent to write
        return format_number(value)
    shown = (
        format_number(value),
        format_number(value, 0),
        format_scientific_number(value, 1),
        format_scientific_number(value, 0),
    )
    return next(one for one in shown if len(one) <= MAX_NUMBER_CHARS)


def format_scientific_number(value: float, digits: int) -> str:
    power, _, exponent = f"{value:.{digits}e}".partition("e")
    return f"{power}e{int(exponent)}"


def render_control_character(character: str) -> str:
    """A character that would act on its surroundings: named, and shut in an isolate of its own."""
    return f'<i class="acting" data-code="U+{ord(character):04X}">{"" if character < " " else character}</i>'


def render_text(text: str) -> SafeString:
    """Hostile text as it is, escaped; characters that hide or turn text round are shown by name."""
    if text.isascii() and not text.encode().translate(None, HARMLESS):
        return mark_safe(escape(text))  # ten times as fast, and nearly all text of megabytes
    safe = escape(LONE_SURROGATE_PATTERN.sub("\ufffd", text))
    return mark_safe(CONTROL_CHARACTER_PATTERN.sub(lambda found: render_control_character(found.group()), safe))


def mark_control_characters(html: str) -> str:
    """Clean HTML whose text has no character left that acts on its surroundings."""
    return CONTROL_CHARACTER_PATTERN.sub(lambda found: render_control_character(found.group()), html)


def render_text_line(text: str) -> SafeString:
    """One line of a table: `plain`, with line ends as ⏎."""
    return render_text(text.replace("\r\n", "⏎ ").replace("\n", "⏎ "))


def find_answers(text: str, start: int = 0) -> Iterator[re.Match[str]]:
    """`ANSWER.finditer(text, start)`, looked for only where a marker begins: six times as fast."""
    small = text[start:].lower()
    if len(small) != len(text) - start or "\u017f" in small:  # letters that are two in small, or another's capital
        yield from ANSWER_PATTERN.finditer(text, start)
        return
    at = 0
    while begun := ANSWER_START_PATTERN.search(small, at):
        found = ANSWER_PATTERN.match(text, start + begun.start())
        if found:
            yield found
        at = found.end() - start if found else begun.start() + 1


def split_into_blocks(text: str) -> Iterator[str]:
    """The text in parts of about `BLOCK` characters, each ending with its line."""
    at = 0
    while at < len(text):
        end = text.find("\n", at + BLOCK_CHARS) + 1 or len(text)
        yield text[at:end]
        at = end


def render_highlighted_text(text: str, words: Iterable[str] = (), answers: bool = True) -> SafeString:
    """`plain`, with the answer's marker boxed and the query's words marked. Very long text is left without marks, in
    blocks of whole lines of which the browser lays out only those in sight."""
    if len(text) > MAX_MARKED_CHARS:
        return mark_safe(
            "".join(f'<span class="block">{render_text(block)}</span>' for block in split_into_blocks(text))
        )
    wanted = [re.escape(word) for word in words if word]
    hits = [f"(?P<hit>{'|'.join(wanted)})"] if wanted else []
    parts: list[str] = []
    at = 0
    marked = "|".join([*hits, *([ANSWER_PATTERN.pattern] if answers else [])])
    for found in re.finditer(marked, text, re.IGNORECASE) if marked else ():
        kind = "hit" if wanted and found.group("hit") else "answer"
        parts += [render_text(text[at : found.start()]), f'<mark class="{kind}">{render_text(found.group())}</mark>']
        at = found.end()
    return mark_safe("".join([*parts, render_text(text[at:])]))


def render_code_spans(written: str) -> SafeString:
    """A sentence of ours, what stands between backticks as code."""
    parts = escape(written).split("`")
    return mark_safe("".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts)))


def replace_control_characters(written: str) -> str:
    """For an attribute, or for pasting elsewhere: what hides or turns text cannot be shown by name there."""
    return CONTROL_CHARACTER_PATTERN.sub("\ufffd", LONE_SURROGATE_PATTERN.sub("\ufffd", written))
