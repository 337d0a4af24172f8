"""Template tags and filters.

Depends on: `dashboard.assets`, the pages that define what a tag renders, and the domain.
Invariant: modules only register functions; Django finds them by their names.
"""

__all__: list[str] = []
