"""One prompt over steps, attempts and runs. Start in `views.py`, then `history_chart.py`.

Depends on: `dashboard.pages.common`; prompts and samples.
Invariant: the page only reads.
"""

__all__: list[str] = []
