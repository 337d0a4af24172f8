"""The page that asks how samples are exported. The download itself is the API's. Start in `views.py`.

Depends on: `dashboard.pages.common`; exports, the reward check's questions and the query language.
Invariant: the page reads no body; it only counts.
"""

__all__: list[str] = []
