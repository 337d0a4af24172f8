"""A response as Markdown with math, sanitised. Without headings, images and links."""

from __future__ import annotations

import nh3
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from markdown_it import MarkdownIt

from dashboard.pages.common.formatting import LONE_SURROGATE_PATTERN, mark_control_characters

MAX_RENDERED_CHARS = 200_000

# Images never load from elsewhere, links stay text: both would tell a stranger that somebody reads this.
TAGS = {
    "p", "br", "hr", "em", "strong", "s", "code", "pre", "blockquote", "ul", "ol", "li", "span",
    "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip
MATH = ("\\[", "\\]", "\\(", "\\)")


def render_markdown(text: str) -> SafeString:
    """Markdown as HTML, sanitised. Headings keep their `#`, since on some tasks `####` is what the reward looks for."""
    markdown = MarkdownIt("commonmark", {"html": False, "linkify": False, "breaks": True}).enable(
        ["table", "strikethrough"]
    )
    markdown.disable(["heading", "lheading", "image", "link", "autolink", "html_block", "html_inline", "entity"])
    html = markdown.render(escape_math_brackets(LONE_SURROGATE_PATTERN.sub("\ufffd", text[:MAX_RENDERED_CHARS])))
    said = _("… cut off after {count} characters; the raw view shows the full text.").format(
        count=f"{MAX_RENDERED_CHARS:,}"
    )
    cut = "" if len(text) <= MAX_RENDERED_CHARS else f"<p>{escape(said)}</p>"
    return mark_safe(mark_control_characters(nh3.clean(html + cut, tags=TAGS, attributes={})))


def escape_math_brackets(text: str) -> str:
    """Doubles the backslash before math brackets, which Markdown would otherwise take for an escape."""
    for mark in MATH:
        text = text.replace(mark, "\\" + mark)
    return text
