"""Review queues: one's own queues, a new one, progress, and answering item by item. Start in `views.py`.

Depends on: `dashboard.pages.common` and the page `sample`; queues and labels.
Invariant: what a reviewer sees comes from `rollouts/queues/content.py`, which knows what a blind queue hides.
"""

__all__: list[str] = []
