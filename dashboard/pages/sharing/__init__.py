"""Links that show a finding, a comparison or a chart without an account. Start in `views.py`.

Depends on: `dashboard.pages.common`, the pages `compare` and `findings`; sharing, findings and metrics.
Invariant: a link shows a snapshot: `content.py` renders the complete page when the link is created.
"""

__all__: list[str] = []
