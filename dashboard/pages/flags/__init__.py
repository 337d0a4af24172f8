"""Flags of a sample, of many samples, and their undo. Start in `views.py`.

Depends on: `dashboard.pages.common`, the pages `sample` and `step`; flags and review.
Invariant: a change of many flags is one bulk flag action, which can be undone.
"""

from dashboard.pages.flags.views import parse_flag_form

__all__ = ["parse_flag_form"]
