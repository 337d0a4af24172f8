"""One sample: text, turns, tokens, fields, diff, prefetched panes. Start in `views.py`, then `pane.py`.

Depends on: `dashboard.pages.common`, the page `pins`; indexing, query and samples.
Invariant: the page only reads. Texts of a model are escaped before they become markup.
"""

from dashboard.pages.sample.fields_view import render_field_buttons
from dashboard.pages.sample.pane import (
    build_flags_context,
    build_pane_context,
    load_sample_labels,
    parse_highlight_words,
)
from dashboard.pages.sample.prompt_history import render_prompt_bars
from dashboard.pages.sample.text_view import build_text_view

__all__ = [
    "build_flags_context", "build_pane_context", "build_text_view", "load_sample_labels", "parse_highlight_words",
    "render_field_buttons", "render_prompt_bars",
]  # fmt: skip
