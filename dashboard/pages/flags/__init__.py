"""Flags of a sample, of many samples, and their undo. Start in `views.py`."""

from dashboard.pages.flags.views import parse_flag_form

__all__ = ["parse_flag_form"]
