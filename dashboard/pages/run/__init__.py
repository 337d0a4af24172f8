"""The overview of a run: charts, overlays, prompt heatmap, timeline, replay summary. Start in `views.py`."""

from dashboard.pages.run.overlays import MAX_OVERLAYS

__all__ = ["MAX_OVERLAYS"]
