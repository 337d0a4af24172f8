"""The group view: responses to one prompt in one step, and their unit tests. Start in `views.py`.

Depends on: `dashboard.pages.common`, the pages `sample` and `step`; prompts, review and samples.
Invariant: the page only reads.
"""

__all__: list[str] = []
