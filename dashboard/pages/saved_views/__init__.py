"""The menu of saved views, which several pages have: open, save, rename, replace, share and delete.

Depends on: `dashboard.pages.common`; saved_views.
Invariant: a saved view stores the query string of a page, not what the page shows.
"""

from dashboard.pages.saved_views.links import build_view_url, find_views

__all__ = ["build_view_url", "find_views"]
