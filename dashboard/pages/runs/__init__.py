"""The run list: query, columns, groups, bulk actions. Start in `views.py`, then `columns.py`.

Depends on: `dashboard.pages.common`, the pages `run` and `saved_views`; runs, query and demo; `workers.dispatch`.
Invariant: the list and its bulk actions contain only runs of projects that the user may see.
"""

__all__: list[str] = []
