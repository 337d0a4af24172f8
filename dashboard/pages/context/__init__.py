"""The page of a run's context: configuration, command, code version, versions, hosts, disk usage, audit entries.

Depends on: `dashboard.pages.common`; runs and projects.
Invariant: the page only reads. What looks like a secret was removed when it arrived.
"""

__all__: list[str] = []
