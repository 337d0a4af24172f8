"""The re-scores of a run: the list, and one of them compared with the score. Start in `views.py`.

Depends on: `dashboard.pages.common`; the re-scores.
Invariant: a reviewer of a blind queue sees no re-score.
"""

__all__: list[str] = []
