"""Our middlewares. `settings.MIDDLEWARE` has their order, with those of Django and WhiteNoise.

Depends on: `pages.common`, for error pages; `sign_in`; permissions.
Invariant: every response has the content security policy. Start in `headers.py`.
"""

__all__: list[str] = []
