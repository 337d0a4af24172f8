"""The timeline of a run: the seconds of each step by phase, the slowest samples of a step, and their staleness.

Depends on: `dashboard.pages.common`; metrics and samples.
Invariant: the page only reads. The shown phases of a step add up to its seconds.
"""

__all__: list[str] = []
