"""Labels, flags, review queues with their agreement, the reward check and findings.

Depends on: the shared modules of `dashboard.api`, `dashboard.permissions` and the domain.
Invariant: a blind reviewer gets nothing that the queue hides.
"""

__all__: list[str] = []
