"""The reward of a run compared with what people say. Start in `views.py`.

Depends on: `dashboard.pages.common`; the reward check and labels.
Invariant: everything that is chosen is in the URL, so a link shows the same.
"""

__all__: list[str] = []
