"""The domain: what the web process and the workers share.

Depends on: `rolloutdeck`.
Invariant: it knows neither HTTP nor Celery.
"""

__all__: list[str] = []
