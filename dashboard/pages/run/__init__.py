"""The overview of a run: charts, overlays, prompt heatmap, events, replay summary. Start in `views.py`.

Depends on: `dashboard.pages.common`, the page `pins`; charts, metrics, prompts, replay and runs.
Invariant: the page only reads. `rollouts.charts` and `rollouts.metrics` decide which charts it has.
"""

from dashboard.pages.run.overlays import MAX_OVERLAYS

__all__ = ["MAX_OVERLAYS"]
