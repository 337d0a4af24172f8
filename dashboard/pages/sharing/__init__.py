"""Links that show a finding, a comparison or a chart without an account. Start in `views.py`.

A link shows a snapshot: `content.py` renders the complete page when the link is created.
"""
