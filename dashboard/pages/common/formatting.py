"""Values, hostile text and Markdown as HTML, for all pages."""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from math import isfinite
from unicodedata import bidirectional, category

import nh3
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.utils.translation import ngettext
from markdown_it import MarkdownIt

from rollouts.errors import InvalidInputError
from rollouts.query import InvalidQueryError, Query, Snippet, TextTerm, build_hit_pattern

# Lone surrogates cannot be encoded. NUL, bidi overrides and zero-width spaces change the text around them. Joiners
# (U+200C, U+200D) and direction marks are part of normal text.
LONE_SURROGATE_PATTERN = re.compile(r"[\ud800-\udfff]")
CONTROL_CHARACTER_PATTERN = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x85\u200b\u2028\u2029\u202a-\u202e\u2060\u2066-\u2069\ufeff]"
)
# What reward functions search for, see rollouts/samples/responses/final_answer.py.
ANSWER_PATTERN = re.compile(
    r"####[^\n]*|\\boxed\{(?:[^{}\n]|\{[^{}\n]*\})*\}|\banswer[ \t]*[:：][ \t]*[^\s][^\n]{0,400}", re.IGNORECASE
)
ANSWER_START_PATTERN = re.compile(r"####|\\boxed\{|answer")  # their beginnings, in lower case
PLAIN_BYTES = bytes([9, 10, 13, *range(32, 127)])
MAX_MARKED_CHARS = 200_000
BLOCK_CHARS = 20_000
MAX_MARKDOWN_CHARS = 200_000
MAX_PARAGRAPH_CHARS = 10_000  # of Markdown
MAX_NUMBER_CHARS = 7  # characters of a score in a table
RUN_STATUS_LABELS = {  # by `Run.status`
    "planned": N_("planned"),
    "running": N_("running"),
    "silent": N_("no heartbeat"),
    "finished": N_("finished"),
    "failed": N_("failed"),
}
MIN_SIGNED = 1e-9  # a smaller change is none
# The tags of Markdown of a model. Images and links would tell another site that this response is read.
MARKDOWN_TAGS = {
    "p", "br", "hr", "em", "strong", "s", "code", "pre", "blockquote", "ul", "ol", "li", "span",
    "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip
NOTE_TAGS = MARKDOWN_TAGS | {"h3", "h4", "h5", "h6", "a"}


def grade_score(score: float | None) -> str:
    """The colour class of a score: `bad` up to 0, `good` from 1, else `partial`."""
    if score is None:
        return "none"
    return "bad" if score <= 0 else "good" if score >= 1 else "partial"


def format_number(value: float | None, digits: int = 2) -> str:
    """A number short enough for a table: -0.10, 1,024, 1.2e-06."""
    if value is None:
        return ""
    if value and (abs(value) < 10**-digits / 2 or abs(value) >= 1e7):
        return f"{value:.1e}"
    return f"{value:,.{digits}f}" if isinstance(value, float) and abs(value) < 1e4 else f"{value:,.0f}"


def format_signed_number(value: float | None, digits: int = 2) -> str:
    """The same with a sign: +0.25, −1.0e-03. The difference of equal means is +0.00: sums of floats differ by noise."""
    if value is None:
        return ""
    value = 0.0 if abs(value) < MIN_SIGNED else value
    return f"{'−' if value < 0 else '+'}{format_number(abs(float(value)), digits)}"


def format_seconds(seconds: float | None) -> str:
    """A duration: 0.4 s, 38 s, 54 min, 3.2 h."""
    if seconds is None:
        return ""
    if -0.05 < seconds <= 0:  # clocks of two requests differ by a moment
        return "0 s"
    if 0 < seconds < 0.095:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 599.5:
        return f"{seconds:.0f} s" if seconds >= 99.5 else f"{seconds:.1f} s".replace(".0 s", " s")
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"


def format_percent(part: float | None, total: float | None) -> str:
    return "" if part is None or not total else f"{100 * part / total:.1f} %"


def format_run_status(status: str) -> str:
    return _(RUN_STATUS_LABELS[status])


def render_time(moment: datetime | None) -> str:
    """A `<time>` that the page's script shows as a relative time. Without JavaScript it shows UTC."""
    if moment is None:
        return ""
    texts = (moment.isoformat(timespec="seconds"), f"{moment:%Y-%m-%d %H:%M:%S}", f"{moment:%Y-%m-%d %H:%M}")
    return format_html('<time datetime="{}" title="{} UTC">{}</time>', *texts)


def render_score(value: float | None, extra: str = "") -> SafeString:
    text = "–" if value is None else format_narrow_number(value).replace("-", "−")
    return mark_safe(f'<span class="score {grade_score(value)} {extra}">{text}</span>')


def format_narrow_number(value: float) -> str:
    """At most `MAX_NUMBER_CHARS` characters: a number that a column cuts reads as another number."""
    if not isfinite(value):
        return format_number(value)
    texts = [format_number(value), format_number(value, 0)]
    for digits in (1, 0):
        mantissa, _e, exponent = f"{value:.{digits}e}".partition("e")
        texts.append(f"{mantissa}e{int(exponent)}")
    return next(text for text in texts if len(text) <= MAX_NUMBER_CHARS)


def mark_control_characters(html: str) -> str:
    """Shows the control characters in the text of safe HTML by name, isolated from the text around them."""
    return CONTROL_CHARACTER_PATTERN.sub(render_control_character, html)


def render_control_character(match: re.Match[str]) -> str:
    character = match.group()
    return f'<i class="acting" data-code="U+{ord(character):04X}">{"" if character < " " else character}</i>'


def render_text(text: str) -> SafeString:
    """Escapes hostile text. Characters that hide or reorder text are shown by name."""
    if text.isascii() and not text.encode().translate(None, PLAIN_BYTES):
        return mark_safe(escape(text))  # ten times as fast
    return mark_safe(mark_control_characters(escape(LONE_SURROGATE_PATTERN.sub("\ufffd", text))))


def render_text_line(text: str) -> SafeString:
    """`render_text` on one line, with line ends as ⏎."""
    return render_text(text.replace("\r\n", "⏎ ").replace("\n", "⏎ "))


def find_direction(text: str) -> str:
    """The direction of a text by its first letter, as `dir="auto"` finds it: `ltr` or `rtl`."""
    if text.isascii():
        return "ltr"
    classes = (bidirectional(character) for character in text)
    return "ltr" if next((name for name in classes if name in ("L", "R", "AL")), "L") == "L" else "rtl"


def render_text_end(text: str, *, is_cut: bool) -> SafeString:
    """The end of a text for a list. The style sheet cuts its beginning between letters."""
    start = '<span class="muted">… </span>' if is_cut else ""
    return mark_safe(f'<bdi dir="{find_direction(text)}">{start}{render_text_line(text)}</bdi>')


def render_snippet(snippet: Snippet) -> SafeString:
    """The text around a hit for a list, with the number of hits if there are several."""
    before, hit, after = map(render_text_line, (snippet.before, snippet.hit, snippet.after))
    start = '<span class="muted">… </span>' if snippet.is_cut else ""
    where = f'<span class="muted small-text">{escape(_("prompt"))} </span>' if snippet.in_prompt else ""
    count = ngettext("{count} hit", "{count} hits", snippet.count).format(count=f"{snippet.count:,}")
    many = f'<span class="hits muted" title="{escape(count)}">×{snippet.count:,}</span>' if snippet.count > 1 else ""
    direction = find_direction(snippet.before + snippet.hit + snippet.after)
    text = f'{where}{start}{before}<mark class="hit">{hit}</mark>{after}'
    return mark_safe(f'<bdi dir="{direction}">{text}</bdi>{many}')


def find_answers(text: str, start: int = 0) -> Iterator[re.Match[str]]:
    """`ANSWER_PATTERN.finditer(text, start)`, six times as fast: it is tried only at the beginning of a marker."""
    lower = text[start:].lower()
    if len(lower) != len(text) - start or "\u017f" in lower:  # lower case changes positions, or ſ matches S
        yield from ANSWER_PATTERN.finditer(text, start)
        return
    at = 0
    while marker := ANSWER_START_PATTERN.search(lower, at):
        match = ANSWER_PATTERN.match(text, start + marker.start())
        if match:
            yield match
        at = match.end() - start if match else marker.start() + 1


def split_into_blocks(text: str, size: int = BLOCK_CHARS) -> Iterator[str]:
    """Parts of `size` to twice as many characters: whole lines if possible, else whole words. A browser needs 20
    seconds for the layout of a line of megabytes in several scripts."""
    at = 0
    while at < len(text):
        end = find_block_end(text, at + size, at + 2 * size)
        yield text[at:end]
        at = end


def find_block_end(text: str, middle: int, limit: int) -> int:
    if limit >= len(text):
        return text.find("\n", middle) + 1 or len(text)
    if end := text.find("\n", middle, limit) + 1 or text.find(" ", middle, limit) + 1:
        return end
    return next((end for end in range(middle, limit) if not joins(text[end - 1], text[end])), limit)


def joins(character: str, following: str) -> bool:
    """Whether a mark or a joiner (U+200D) makes one visible character of both."""
    return category(following).startswith("M") or "\u200d" in (character, following)


class HighlightedTerms(tuple[str, ...]):
    """The words of a query to highlight. `pattern` finds its hits exactly, also those of regular expressions."""

    pattern: str = ""


def find_query_words(query: Query) -> HighlightedTerms:
    words = HighlightedTerms(leaf.text for leaf in query.leaves if isinstance(leaf, TextTerm))
    words.pattern = build_hit_pattern(query)
    return words


def needs_blocks(text: str) -> bool:
    """Whether the layout of the text takes a browser longer than 0.1 s if it is not split into blocks."""
    return len(text) > (MAX_MARKED_CHARS if text.isascii() else 2 * BLOCK_CHARS)


def render_highlighted_text(text: str, words: Iterable[str] = (), answers: bool = True) -> SafeString:
    """`render_text` with answers boxed and words marked, in blocks if it is long. A very long text has no marks."""
    escaped_words = [re.escape(word) for word in words if word]
    patterns = [f"(?P<hit>{'|'.join(escaped_words)})"] if escaped_words else []
    patterns += [ANSWER_PATTERN.pattern] if answers else []
    if len(text) > MAX_MARKED_CHARS:
        patterns = []
    if not needs_blocks(text):
        return highlight_matches(text, patterns)
    blocks = (f'<span class="block">{highlight_matches(block, patterns)}</span>' for block in split_into_blocks(text))
    return mark_safe("".join(blocks))


def highlight_matches(text: str, patterns: list[str]) -> SafeString:
    parts: list[str] = []
    at = 0
    for match in re.finditer("|".join(patterns), text, re.IGNORECASE) if patterns else ():
        kind = "hit" if "hit" in match.re.groupindex and match.group("hit") else "answer"
        parts += [render_text(text[at : match.start()]), f'<mark class="{kind}">{render_text(match.group())}</mark>']
        at = match.end()
    return mark_safe("".join([*parts, render_text(text[at:])]))


def render_code_spans(text: object) -> SafeString:
    """One of our own messages, with the text between backticks as code. A SafeString stays as it is."""
    if isinstance(text, SafeString):
        return text
    *parts, rest = render_text(str(text or "")).split("`")
    if len(parts) % 2:  # the last backtick has no partner
        rest = f"{parts.pop()}`{rest}"
    code = "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))
    return mark_safe(code + rest)


def render_query_error(q: str, error: InvalidInputError) -> SafeString:
    """The message, and the query with the invalid part underlined."""
    message = render_code_spans(str(error))
    if not isinstance(error, InvalidQueryError):
        return message
    start, end = error.span
    if q[start:end].strip():
        return format_html("{} <code>{}<u>{}</u>{}</code>", message, q[:start], q[start:end], q[end:])
    return format_html("{} <code>{}<u>&nbsp;</u></code>", message, q)


def replace_control_characters(text: str) -> str:
    """For attributes and the clipboard, where characters cannot be shown by name."""
    return CONTROL_CHARACTER_PATTERN.sub("\ufffd", LONE_SURROGATE_PATTERN.sub("\ufffd", text))


def render_markdown(text: str) -> SafeString:
    """Markdown of a model with math, sanitised. Headings keep their `#`: in some tasks `####` is the answer marker."""
    markdown = build_markdown_parser().disable(["heading", "lheading", "link", "autolink"])
    html = markdown.render(prepare_markdown(text))
    if len(text) > MAX_MARKDOWN_CHARS:
        message = _("… cut off after {count} characters; the raw view shows the full text.")
        html += f"<p>{escape(message.format(count=f'{MAX_MARKDOWN_CHARS:,}'))}</p>"
    return mark_safe(mark_control_characters(nh3.clean(html, tags=MARKDOWN_TAGS, attributes={})))


def render_note(text: str, *, has_links: bool = True) -> SafeString:
    """Markdown of a team member, sanitised, with headings and links. Links lead only to http and https addresses and to
    this server, and the other site does not learn from which page."""
    markdown = build_markdown_parser()
    if not has_links:
        markdown.disable(["link", "autolink"])
    tokens = markdown.parse(prepare_markdown(text))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):  # below the headings of the page
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
    html = nh3.clean(
        markdown.renderer.render(tokens, markdown.options, {}),
        tags=NOTE_TAGS,
        attributes={"a": {"href", "target"}},
        set_tag_attribute_values={"a": {"target": "_blank"}},
        link_rel="noopener noreferrer nofollow",
        url_schemes={"http", "https"},
    )
    return mark_safe(mark_control_characters(html))


def build_markdown_parser() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False, "linkify": False, "breaks": True})
    return markdown.enable(["table", "strikethrough"]).disable(["image", "html_block", "html_inline", "entity"])


def prepare_markdown(text: str) -> str:
    shown = split_long_lines(text[:MAX_MARKDOWN_CHARS])
    return escape_math_brackets(LONE_SURROGATE_PATTERN.sub("\ufffd", shown))


def split_long_lines(text: str) -> str:
    """A long line as several paragraphs, for the same reason as `split_into_blocks`."""
    lines = text.split("\n")
    if max(map(len, lines)) <= MAX_PARAGRAPH_CHARS:
        return text
    return "\n".join("\n\n".join(split_into_blocks(line, MAX_PARAGRAPH_CHARS // 2)) for line in lines)


def escape_math_brackets(text: str) -> str:
    """Doubles the backslash before math brackets; for Markdown a single one is an escape."""
    for bracket in ("\\[", "\\]", "\\(", "\\)"):
        text = text.replace(bracket, "\\" + bracket)
    return text
