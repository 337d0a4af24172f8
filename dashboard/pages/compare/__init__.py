"""The comparison of two to six steps. Start in `views.py`.

Depends on: `dashboard.pages.common`; compare, query and samples.
Invariant: the page only reads. All numbers come from `rollouts.compare`.
"""

from dashboard.pages.compare.views import build_shareable_context

__all__ = ["build_shareable_context"]
