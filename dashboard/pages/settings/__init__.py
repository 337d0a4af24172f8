"""Projects, members, tokens, sign-in, language and display preferences. One module per page.

Depends on: `dashboard.pages.common`; projects, retention, indexing and runs; `workers.dispatch`.
Invariant: every change of a project is in its audit log. Start in `projects.py`.
"""

__all__: list[str] = []
