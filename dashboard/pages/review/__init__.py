"""Quick lists and review decisions. Start in `views.py`, then `batch_rows.py`.

Depends on: `dashboard.pages.common`, the pages `flags` and `sample`; flags and review.
Invariant: a decision is stored by the domain; the next sample of the list is chosen after it.
"""

__all__: list[str] = []
