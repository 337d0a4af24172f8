"""The menu of saved views, which several pages have: open, save, rename, replace, share and delete."""

from dashboard.pages.saved_views.links import build_view_url, find_views

__all__ = ["build_view_url", "find_views"]
