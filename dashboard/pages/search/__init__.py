"""The search over the samples of all runs of a project.

Depends on: `dashboard.pages.common`; query and runs.
Invariant: the page requests one part of the runs after the other, so a search ends when the user leaves.
"""

__all__: list[str] = []
