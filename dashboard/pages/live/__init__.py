"""The live feed of the newest steps. Start in `views.py`. `dashboard.consumers` updates open pages.

Depends on: `dashboard.pages.common`, the page `step`; live.
Invariant: the page only reads.
"""

__all__: list[str] = []
