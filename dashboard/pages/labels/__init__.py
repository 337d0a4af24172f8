"""The labels of a sample and the rubric of a project. Start in `views.py`; `rubric.py` is the editor.

Depends on: `dashboard.pages.common`; labels and samples.
Invariant: a form works without a script, and shows what was typed next to each error.
"""

__all__: list[str] = []
