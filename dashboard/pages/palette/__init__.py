"""The command palette (Ctrl+K). Start in `views.py`; `static/js/palette/` ranks the entries.

Depends on: `dashboard.pages.common`, the page `saved_views`; models.
Invariant: it lists only what the user may open.
"""

__all__: list[str] = []
