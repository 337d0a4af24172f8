"""The guidance rules of a project: how its labels act on running trainings. Start in `views.py`.

Depends on: `dashboard.pages.common`; guidance.
Invariant: the form works without a script, and shows what was typed next to each error.
"""

__all__: list[str] = []
