"""Pins with their files, replay plans, and what replays did.

Depends on: the shared modules of `dashboard.api`, `dashboard.permissions` and the domain.
Invariant: a file is served only after its safety check.
"""

__all__: list[str] = []
